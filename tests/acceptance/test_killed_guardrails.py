"""A worker dies by SIGKILL around guardrails, tools that change the state, what they depend on, and handoffs.

One kill serves all cases of a world: each case is a run that is at its point when the worker dies.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from acceptance.temporal_world import LOST, World, world
from standfast import Message
from standfast.temporal.client.runs.owners import Run

pytestmark = pytest.mark.slow  # one kill serves all of them

REFUSED = 'failed: {"error": "Not run: the guardrail check_call refused it: no"}'
HANDED = 'completed: {"handed_over_to": "mate"}'


class Case(NamedTuple):
    """A run, and where it is when its worker dies; then how it ends.

    Args:
        at: the point, and what is there: "{}" is the case, "{}.1" its first call, "{}.end" its last answer.
        results: what its calls came to, in short: "did 1" is the result of the first.
        state: the calls that have changed the state.
        effects: of all handlers.
        said, answer, calls: how often a guardrail was asked about the message, an answer and calls.
        model: the turns for which the model was asked.
    """

    plan: str
    at: tuple[str, str]
    results: list[str]
    state: list[int]
    effects: int
    said: int
    answer: int
    calls: int
    model: list[int]
    agent: str = "keeper"


CASES = {
    # While a guardrail checks, and until the answer is kept with the verdicts, the model's call is lost and repeated.
    "said": Case("tally", ("in-check-of-said", "{}"), ["did 1"], [1], 1, 2, 1, 1, [0, 1]),
    "bad-said": Case("#bad-said", ("in-check-of-said", "{}"), [], [], 0, 2, 0, 0, []),
    "beside": Case("tally", ("in-check-of-said", "{}"), ["did 1"], [1], 1, 2, 1, 1, [0, 0, 1], "watcher"),
    "bad-beside": Case("tally #bad-said", ("in-check-of-said", "{}"), [], [], 0, 2, 0, 0, [0, 0], "watcher"),
    "beside-model": Case("tally", ("in-model", "{}.0"), ["did 1"], [1], 1, 2, 1, 1, [0, 0, 1], "watcher"),
    "call": Case("tally_badly+tally", ("in-check-of-call", "{}.2"), [REFUSED, "did 2"], [2], 1, 2, 1, 4, [0, 0, 1]),
    "call-unwritten": Case(
        "tally_badly+tally", ("before-reply", "{}.2"), [REFUSED, "did 2"], [2], 1, 2, 1, 4, [0, 0, 1]
    ),
    "answer": Case("tally", ("in-check-of-answer", "{}"), ["did 1"], [1], 1, 1, 2, 1, [0, 1, 1]),
    "bad-answer": Case("tally", ("before-reply", "{}.end"), ["did 1"], [1], 1, 1, 2, 1, [0, 1, 1]),
    # A kept answer is found with its verdicts: people are not asked again.
    "call-kept": Case("tally_badly+tally", ("after-reply", "{}.2"), [REFUSED, "did 2"], [2], 1, 1, 1, 2, [0, 1]),
    "bad-answer-kept": Case("tally", ("after-reply", "{}.end"), ["did 1"], [1], 1, 1, 1, 1, [0, 1]),
    "bad-said-kept": Case("#bad-said", ("after-reply", "{}.end"), [], [], 0, 1, 0, 0, []),
    # A change of the state is kept with the result of its call, or not at all.
    "changed": Case("tally tally", ("after-effect", "{}.1"), [LOST, "did 2"], [2], 2, 1, 1, 2, [0, 1, 2]),
    "changed-after": Case("tally+tally", ("after-effect", "{}.2"), ["did 1", LOST], [1], 2, 1, 1, 2, [0, 1]),
    "changed-safely": Case(
        "tally_safely tally", ("after-effect", "{}.1"), ["did 1", "did 2"], [1, 2], 3, 1, 1, 2, [0, 1, 2]
    ),
    "recorded": Case("tally tally", ("after-record", "{}.1"), ["did 1", "did 2"], [1, 2], 2, 1, 1, 2, [0, 1, 2]),
    "recorded-after": Case("tally+tally", ("after-record", "{}.2"), ["did 1", "did 2"], [1, 2], 2, 1, 1, 2, [0, 1]),
    # While what a call depends on is opened or closed, the call has begun.
    "opening": Case("tally", ("opening-tally", "{}"), [LOST], [], 0, 1, 1, 1, [0, 1]),
    "opening-safely": Case("tally_safely", ("opening-tally_safely", "{}"), ["did 1"], [1], 1, 1, 1, 1, [0, 1]),
    "closing": Case("tally", ("closing-tally", "{}"), [LOST], [], 1, 1, 1, 1, [0, 1]),
    "closing-safely": Case("tally_safely", ("closing-tally_safely", "{}"), ["did 1"], [1], 2, 1, 1, 1, [0, 1]),
    # The conversation is handed over once.
    "handing": Case(
        "transfer_to_mate+tally tally",
        ("after-reply", "{}.1"),
        [HANDED, "did 2", "did 3"],
        [2, 3],
        2,
        1,
        1,
        3,
        [0, 1, 2],
    ),
    "handed": Case("transfer_to_mate tally", ("in-model", "{}.1"), [HANDED, "did 2"], [2], 1, 1, 1, 2, [0, 1, 1, 2]),
}


@dataclass(frozen=True)
class Ended:
    """What became of a run."""

    result: dict[str, Any]
    seen: Case
    messages: list[Message]


async def start(made: World, name: str, case: Case) -> Run:
    point, where = case.at
    made.stop_at(point, where.format(name), worker="a")
    run = await made.start(name, case.plan, agent=case.agent, context={"user": "ann"})
    await made.stands(point, where.format(name), worker="a")
    return run


async def end(made: World, name: str, case: Case, run: Run) -> Ended:
    result, session = await run.result(), await made.store.load_session(name)
    assert session is not None
    calls = json.loads(session.state).get("calls", [])
    counts = (made.count(what, name) for what in ("effects", "checked-said", "checked-answer", "checked-call"))
    seen = Case(
        case.plan,
        case.at,
        [
            text.replace(f"completed: did {name}.", "did ").replace(f"failed: {LOST}", LOST)
            for text in await made.results(name)
        ],
        [int(call.rpartition(".")[2]) for call in calls],
        *counts,
        made.model_calls(name),
        case.agent,
    )
    return Ended(result, seen, await made.store.load_messages(name))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def after(tmp_path_factory: pytest.TempPathFactory, address: str) -> AsyncIterator[dict[str, Ended]]:
    async with world(tmp_path_factory.mktemp("guardrails"), address) as made, asyncio.timeout(240):
        first = await made.worker("a")
        runs = await asyncio.gather(*(start(made, name, case) for name, case in CASES.items()))
        first.kill()
        await made.worker("b")
        ended = await asyncio.gather(
            *(end(made, name, case, run) for (name, case), run in zip(CASES.items(), runs, strict=True))
        )
        yield dict(zip(CASES, ended, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_killed_worker_leaves_verdicts_and_states_with_what_they_belong_to(
    after: dict[str, Ended], name: str
) -> None:
    assert after[name].seen == CASES[name]


def test_what_a_guardrail_refuses_ends_its_run_and_is_stored_nowhere(after: dict[str, Ended]) -> None:
    for name, ended in after.items():
        is_refused = name.startswith("bad-")
        assert ended.result["status"] == ("guardrail-tripped" if is_refused else "complete")
        assert (f"done {name}" in repr(ended.messages)) is not is_refused


def test_the_agent_that_has_the_conversation_when_its_worker_dies_continues_with_it(after: dict[str, Ended]) -> None:
    for name in ("handing", "handed"):
        answers = [message.agent for message in after[name].messages if message.role == "assistant"]
        assert answers == ["keeper", "mate", "mate"]
