"""Gates of other frameworks' agents that standfast runs: two beside each other, then three in a row, of calls alike."""

from collections.abc import Sequence
from typing import Any

from standfast import RunResult, is_interrupted, run

VERDICTS: tuple[dict[str, Any], ...] = (
    {"decision": "approve"},
    {"decision": "reject", "comment": "no"},
    {"decision": "reject", "comment": "no"},
    {"decision": "approve", "edit": {"cents": 4}},
    {"decision": "approve"},
)
STEPS = (2, 1, 1, 1)
"""How many calls that charge 5 the model makes in each answer, before it says something."""
CHARGED = [5, 4, 5]
TOLD = ["5", "rejected by ada", "rejected by ada", "4", "5"]
"""What the model reads of each call; what it is told has this in it."""


async def decided_in_a_row(agent: Any, store: Any) -> tuple[int, RunResult[Any], Sequence[str]]:
    """Decide on the first gate that waits, until none is left; return how many there were, and what the model read."""
    asked, session = 0, {"session_id": "s", "store": store}
    result = await run(agent, message="Sell it.", **session)
    while is_interrupted(result):
        item = result.approvals[0]
        said = {"gate": item.gate, "by": "ada", "digest": item.digest, **VERDICTS[asked]}
        asked += 1
        result = await run(agent, decisions=[said], **session)
    return asked, result, [one.content for one in await store.load_messages("s") if one.role == "tool"]


def check_gates(asked: int, result: RunResult[Any], told: Sequence[str], charged: Sequence[int]) -> None:
    assert (asked, result.status, list(charged), len(told)) == (5, "complete", CHARGED, 5)
    assert [part in text for part, text in zip(TOLD, told, strict=True)] == [True] * 5, told
