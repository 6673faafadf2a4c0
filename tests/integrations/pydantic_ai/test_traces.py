"""pydantic-ai's OpenTelemetry spans of a run appear once, even after a process dies and a turn continues."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.foreign_shops import noted
from support.mortal_programs import run_until_complete


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # Neither the run that died nor its lost call has a span, and reading them from the store makes none.
        ("durable", [["chat", False, 10], ["chat", False, 10], ["invoke_agent", False, 20]]),
        # Each request is a run of pydantic-ai's. Its tools are called by us, without a span.
        ("ours", [["chat", False, 10], ["invoke_agent", False, 10], ["chat", False, 10], ["invoke_agent", False, 10]]),
    ],
)  # fmt: skip
async def test_spans_are_there_once_also_where_a_process_is_killed_in_a_tool(
    tmp_path: Path, kind: str, expected: list[Any]
) -> None:
    done = await run_until_complete("integrations.pydantic_ai.traced_desk", tmp_path, kind)
    [told] = json.loads(done.said["response"])
    assert (told["kind"], done.deaths, done.charges) == ("tool-durability-error", 1, [5])
    assert done.said["tokens"] == 20  # including the request that was read from the store
    assert [json.loads(line) for line in noted(tmp_path, "spans")] == expected
    again = await run_until_complete("integrations.pydantic_ai.traced_desk", tmp_path, kind)
    assert again.said["response"] == done.said["response"]
    more = [json.loads(line) for line in noted(tmp_path, "spans")][len(expected) :]
    assert [line for line in more if line[0] in ("chat", "execute_tool")] == []  # nothing was asked or run again
