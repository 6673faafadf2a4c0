"""Sessions keep every promise through many runs, both drivers, operators and kills; see `chaos_of_sessions`."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterable

import pytest

from acceptance.chaos_faults import Outside, contradictions, faults, told_by_runs, told_by_session
from acceptance.chaos_of_sessions import Chaos
from acceptance.replays import chosen_seed
from acceptance.temporal_worker import append
from acceptance.temporal_world import World
from acceptance.test_one_ledger import three_runs
from standfast import Message, ToolCall
from standfast.runtime.call_ledger import answer_without_run
from standfast.stores import Session
from standfast.temporal.workflows.run import agent_workflows
from standfast.tools.calls import turn_scope

SESSIONS = int(os.environ.get("CHAOS_SESSIONS", "6"))
STEPS = 2  # of a run, after which it continues as new
RUNS = int(os.environ.get("CHAOS_RUNS", "3"))
# With this seed calls of both cases are lost twice: before their claim, then after their effect.
REVEALING = 5209


@pytest.mark.slow
async def test_sessions_keep_every_promise_whatever_happens_to_their_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_workflows, "STEPS", STEPS)  # of the replays
    seed = chosen_seed()
    chaos, cases = Chaos(world, seed, steps=STEPS), [f"s{number}" for number in range(SESSIONS)]
    pipelines = [f"p{number}" for number in range(SESSIONS // 2)]
    desks = [f"d{number}" for number in range(SESSIONS // 3)]
    for _ in range(2):
        await chaos.hire()
    killing = asyncio.create_task(chaos.trouble_workers())
    try:
        async with asyncio.timeout(400):
            await asyncio.gather(
                *(chaos.live(case, RUNS) for case in cases),
                *(chaos.run_pipeline(case) for case in pipelines),
                *(chaos.run_pipeline(case, "desk") for case in desks),
            )
    finally:
        killing.cancel()
        print(f"CHAOS_SEED={seed}", *chaos.books.notes, sep="\n")  # noqa: T201
    assert await faults(chaos, cases, pipelines) == []


WHOLE = '{"note": "ada changed the arguments before it ran", "arguments": {"amount": 7}, "result": "did %s with 7"}'
LIES = {  # by the outcome of the tool's call outside: its number of effects, and its amount
    "did %s": (0, None, "is said to have run, and did not"),
    "Not run: it was rejected": (1, None, "ran, and is said not to have run"),
    "did %s with 7": (1, 7, "ran with 7, and 1000000 is shown"),
    WHOLE: (1, 8, "ran with 8, and 7 is shown"),
}
TRUTHS = {
    "did %s": (1, None),
    "Not run: it was rejected": (0, None),
    "did %s with 1000000": (1, 10**6),
    WHOLE: (1, 7),
    '{"error": "...", "kind": "tool-durability-error"}': (1, None),
}


async def told(
    world: World, contents: Iterable[str], happened: Iterable[tuple[int, int | None]], *, is_entered: bool = True
) -> list[str]:
    """Compare the reports of calls in a transcript with their effects in files; return the faults.

    Args:
        is_entered: the ledger has the answers to calls that did not run.
    """
    results = list(contents)
    calls = [ToolCall(id=f"case.{n}", name="refund", arguments={"amount": 10**6}) for n in range(len(results))]
    results = [content.replace("%s", call.id) for call, content in zip(calls, results, strict=True)]
    messages = [Message(role="user", content="go"), Message(role="assistant", tool_calls=calls)]
    messages += [
        Message(role="tool", content=content, tool_call_id=call.id, tool_name=call.name)
        for call, content in zip(calls, results, strict=True)
    ]
    await world.store.append_messages_atomic("case", messages, Session(id="case", agent_name="teller"))
    if is_entered:
        session = await world.store.load_session("case")
        assert session is not None
        for position, (call, content) in enumerate(zip(calls, results, strict=True)):
            if content.startswith("Not run"):
                answer = json.dumps({"failed": content})
                await answer_without_run(world.store, turn_scope(session.key, 2), position, call, answer)
    chaos = Chaos(world, 0)
    chaos.books.unsure |= {call.id for call in calls}  # none was approved
    for call, (effects, amount) in zip(calls, happened, strict=True):
        for _ in range(effects):
            append(world.folder / "effects.txt", call.id)
        if amount is not None:
            append(world.folder / "amounts.txt", f"{call.id} {amount}")
    return await faults(chaos, ["case"])


async def test_each_lie_in_a_transcript_is_found(world: World) -> None:
    found = await told(world, LIES, [(effects, amount) for effects, amount, _ in LIES.values()])
    for number, (*_, why) in enumerate(LIES.values()):
        assert [one for one in found if f"case.{number} " in one and why in one], (why, found)


async def test_no_truth_in_a_transcript_is_a_fault(world: World) -> None:
    assert await told(world, TRUTHS, TRUTHS.values()) == []


async def test_a_call_that_did_not_run_and_that_the_ledger_lets_run_is_a_fault(world: World) -> None:
    (fault,) = await told(world, ["Not run: it was rejected"], [(0, None)], is_entered=False)
    assert "the ledger lets it run" in fault


async def test_every_place_that_tells_of_an_edited_call_is_heard(world: World) -> None:
    await world.worker("a")
    run = await world.start("case", "refund")
    await world.asks(run)
    for by, edit in (("ada", {"amount": 7}), ("bob", None)):
        (item,) = await world.people.pending(run.id)
        await world.people.decide(run.id, "case.1", "approve", by=by, digest=item["digest"], edit=edit)
    await run.result()
    messages = await world.store.load_messages("case")
    calls = {call.id: call for message in messages for call in message.tool_calls or ()}
    told = [*await told_by_session(world, "case", messages), *await told_by_runs(world, calls)]
    assert {(one.where.removesuffix(f" {run.id}"), one.is_edited) for one in told} == {
        ("the transcript", True), ("a model", True), ("the ledger", False), ("events of", True),
        ("the timeline of", True), ("show", True), ("the summary of an activity", True),
    }  # fmt: skip
    truth, lost, other = (
        Outside(Counter({"case.1": effects}), {"case.1": amounts}) for effects, amounts in ((1, [7]), (0, []), (1, [8]))
    )
    assert [fault for one in told for fault in contradictions(one, truth)] == []
    assert all(list(contradictions(one, lost)) for one in told)
    assert all(list(contradictions(one, other)) for one in told if one.where != "the ledger")


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("mutant", [False, True])
async def test_faults_are_found_where_the_key_of_a_call_is_the_runs(world: World, mutant: bool) -> None:
    await three_runs(world, mutant=mutant)
    assert await faults(Chaos(world, 0), ["case"]) == (["case.1 of charge had 2 effects"] if mutant else [])


@pytest.mark.slow
async def test_the_chaos_itself_finds_out_where_the_key_of_a_call_is_the_runs(world: World) -> None:
    chaos, cases = Chaos(world, REVEALING, mutant=True), ["s0", "s1"]
    for _ in range(2):
        await chaos.hire()
    async with asyncio.timeout(100):
        await asyncio.gather(*(chaos.live(case, 2) for case in cases))
    assert [fault for fault in await faults(chaos, cases) if fault.endswith("had 2 effects")], chaos.books.notes
