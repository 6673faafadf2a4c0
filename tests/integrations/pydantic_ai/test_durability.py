"""A pydantic-ai conversation continues where it was, whenever its process is killed, and charges once."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.any_store import KINDS, place_of
from support.mortal_programs import TESTS

WINDOWS = [
    "after-write-0",  # the turn is begun
    "before-the-model-answers",
    "before-the-answer-is-kept",
    "after-write-1000",  # the model's first answer is kept
    "before-the-tool",
    "before-the-claim",
    "after-the-claim",
    "in-the-tool",
    "before-the-result-is-kept",
    "after-the-result-is-kept",
    "before-the-last-answer",
    "after-write-2000",  # the last answer is kept
    "after-write-2000000000",  # the turn is over, but its result is not reported
]
PAID_AGAIN = {"before-the-answer-is-kept", "before-the-last-answer"}  # the model's answer is lost
UNKNOWN = {"after-the-claim", "in-the-tool", "before-the-result-is-kept"}


Sell = Callable[..., Awaitable[Any]]


@pytest.fixture(scope="session")
def program() -> Iterator["subprocess.Popen[str]"]:
    """The program that plays conversations. It has imported all that they need."""
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "integrations.pydantic_ai.conversations"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(params=KINDS)
def sell(program: "subprocess.Popen[str]", request: pytest.FixtureRequest, tmp_path: Path) -> Sell:
    place = place_of(request.param, request, tmp_path)

    async def play(kind: str, window: str) -> Any:
        assert program.stdin is not None
        assert program.stdout is not None
        print(json.dumps([str(tmp_path), kind, window, place]), file=program.stdin, flush=True)
        said = json.loads(await asyncio.to_thread(program.stdout.readline))
        assert said["deaths"] == 1, said
        return said

    return play


STREAMED = ["after-write-1000", "in-the-tool", "after-the-result-is-kept", "after-write-2000"]


@pytest.mark.parametrize("window", [*WINDOWS, *(f"{window}-stream" for window in STREAMED)])
async def test_a_conversation_that_is_killed_anywhere_charges_once_or_the_model_is_told(
    sell: Sell, window: str
) -> None:
    said = await sell("durable", window)
    assert said["asked"] == (3 if window in PAID_AGAIN else 2)
    if window.removesuffix("-stream") in UNKNOWN:
        assert said.get("charged", 0) == (0 if window == "after-the-claim" else 1)
        assert [(one["kind"], one["toolName"]) for one in said["read"]] == [("tool-durability-error", "charge")]
    else:
        assert (said["charged"], said["read"]) == (1, [{"charged": 5}])


GATED = [
    "before-it-is-on-the-board",
    "after-it-is-on-the-board",
    "at-the-gate",
    "after-the-decision",
    "after-the-decision-outside",
    "in-the-tool",
    "after-the-result-is-kept",
]


@pytest.mark.parametrize("window", GATED)
async def test_a_conversation_that_waits_for_people_charges_once_wherever_it_is_killed(sell: Sell, window: str) -> None:
    said = await sell("gated", window)
    assert (said["asked"], said["charged"]) == (2, 1)
    assert [one.get("kind", "charged") for one in said["read"]] == [
        "tool-durability-error" if window in UNKNOWN else "charged"
    ]


@pytest.mark.parametrize("window", ["in-the-tool", "before-the-last-answer"])
@pytest.mark.parametrize("sell", ["sqlite"], indirect=True)
async def test_without_durability_it_charges_again(sell: Sell, window: str) -> None:
    said = await sell("bare", window)
    assert said["charged"] == 2
