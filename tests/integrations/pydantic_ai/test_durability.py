"""A conversation of pydantic-ai goes on where it was, whenever its process is killed, and charges once."""

from pathlib import Path
from typing import Any

import pytest
from support.mortal_programs import run_until_complete

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
    "after-write-2000000000",  # the turn is over, and nobody has heard of it
]
PAID_AGAIN = {"before-the-answer-is-kept", "before-the-last-answer"}  # nobody can know that the model has answered
UNKNOWN = {"after-the-claim", "in-the-tool", "before-the-result-is-kept"}


async def sell(folder: Path, kind: str, window: str) -> Any:
    sold = await run_until_complete("integrations.pydantic_ai.conversations", folder, kind, window)
    assert sold.deaths == 1
    return sold.said


STREAMED = ["after-write-1000", "in-the-tool", "after-the-result-is-kept", "after-write-2000"]


@pytest.mark.parametrize("window", [*WINDOWS, *(f"{window}-stream" for window in STREAMED)])
async def test_a_conversation_that_is_killed_anywhere_charges_once_or_the_model_is_told(
    tmp_path: Path, window: str
) -> None:
    said = await sell(tmp_path, "durable", window)
    assert said["asked"] == (3 if window in PAID_AGAIN else 2)
    if window.removesuffix("-stream") in UNKNOWN:
        assert said.get("charged", 0) == (0 if window == "after-the-claim" else 1)
        assert [(one["kind"], one["toolName"]) for one in said["read"]] == [("tool-durability-error", "charge")]
    else:
        assert (said["charged"], said["read"]) == (1, [{"charged": 5}])


GATED = ["at-the-gate", "after-the-decision", "in-the-tool", "after-the-result-is-kept"]


@pytest.mark.parametrize("window", GATED)
async def test_a_conversation_that_waits_for_people_charges_once_wherever_it_is_killed(
    tmp_path: Path, window: str
) -> None:
    said = await sell(tmp_path, "gated", window)
    assert (said["asked"], said["charged"]) == (2, 1)
    assert [one.get("kind", "charged") for one in said["read"]] == [
        "tool-durability-error" if window in UNKNOWN else "charged"
    ]


@pytest.mark.parametrize("window", ["in-the-tool", "before-the-last-answer"])
async def test_without_durability_it_charges_again(tmp_path: Path, window: str) -> None:
    said = await sell(tmp_path, "bare", window)
    assert said["charged"] == 2
