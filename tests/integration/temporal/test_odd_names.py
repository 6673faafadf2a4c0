"""Names and ids that a database would change are refused with a reason, at every door, and leave no trace."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.temporal_runs import Temporal, check_healthy, pending, refusals, result, until
from temporalio.client import WorkflowUpdateFailedError

from integration.local.test_tool_approvals import posts, world
from standfast import Agent, Approval, InputError, pipeline, resume, run
from standfast.temporal import OnRecord, StandfastClient, UserClient, start_agent, start_pipeline
from standfast.testing import ScriptedModel

NUL, HALF, LONG = "a\0b", "a\ud800b", "a" * 10_000
ODD = pytest.mark.parametrize("odd", [NUL, HALF, LONG], ids=["NUL", "half a character", "long"])
ASKED = Approval(message="ok?", approvers=["ada", "bob"], quorum=2)

Door = Callable[[StandfastClient, str, str], Awaitable[Any]]
CLIENT: dict[str, Door] = {
    "decide": lambda client, run, odd: client.decide(run, "c1", "approve", by=odd),
    "its id": lambda client, run, odd: client.decide(run, "c1", "approve", by="ada", id=odd),
    "its gate": lambda client, run, odd: client.decide(run, odd, "approve", by="ada"),
    "its digest": lambda client, run, odd: client.decide(run, "c1", "approve", by="ada", digest=odd),
    "answer": lambda client, run, odd: client.answer(run, "yes", by=odd),
    "its call": lambda client, run, odd: client.answer(run, "yes", tool_call_id=odd),
    "message": lambda client, run, odd: client.message(run, "hello", by=odd),
    "resume": lambda client, run, odd: client.resume(run, by=odd),
    "its name": lambda client, run, odd: client.resume(run, name=odd),
    "its model": lambda client, run, odd: client.resume(run, model=odd),
    "resolve": lambda client, run, odd: client.resolve(run, "c1", "leave", by=odd),
    "cancel": lambda client, run, odd: client.cancel(run, by=odd),
    "its own id": lambda client, run, odd: client.cancel(run, by="ada", id=odd),
}


@ODD
async def test_what_is_sent_with_an_odd_name_is_refused_before_it_is_on_record(temporal: Temporal, odd: str) -> None:
    posted, post = world(ASKED)
    client = StandfastClient(temporal.client, store=temporal.store)
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        handle = await temporal.start("a")
        await pending(handle)
        for door, send in CLIENT.items():
            with pytest.raises(InputError) as raised:
                await send(client, handle.id, odd)
            assert "within" not in str(raised.value), door
        assert {row.by for row in await temporal.store.load_decisions(str(handle.result_run_id))} <= {None}
        (item,) = await pending(handle)
        assert item["approved_by"] == []
        await check_healthy(handle)
    assert posted == []


@ODD
async def test_a_run_itself_refuses_odd_names_by_signal_and_update(temporal: Temporal, odd: str) -> None:
    if odd == HALF:
        pytest.skip("no JSON of another program's has it")
    posted, post = world(ASKED)
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        handle = await temporal.start("a")
        await pending(handle)
        sent: list[tuple[str, dict[str, Any]]] = [
            ("approve", {"gate": "c1", "by": odd}),
            ("approve", {"gate": odd, "by": "ada"}),
            ("reject", {"gate": "c1", "by": odd}),
            ("answer", {"text": "yes", "by": odd}),
            ("message", {"text": "hello", "by": odd}),
            ("resume", {"by": odd}),
            ("resolve", {"tool_call_id": "c1", "decision": "leave", "by": odd}),
        ]
        for name, data in sent:
            await handle.signal(name, data)

        async def all_of_them() -> bool:
            return len(await refusals(handle)) == len(sent)

        await until(all_of_them)
        for name, data in [
            ("decide", {"gate": "c1", "decision": "approve", "by": odd}),
            ("message", {"text": "hello", "by": odd}),
        ]:
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.execute_update(name, data)
        (item,) = await pending(handle)
        assert item["approved_by"] == []
        await check_healthy(handle)
    assert posted == []
    assert [row.by for row in await temporal.store.load_decisions(str(handle.result_run_id))] == []


@pytest.mark.parametrize("odd", [NUL, HALF], ids=["NUL", "half a character"])
async def test_nothing_is_started_for_an_odd_name(temporal: Temporal, odd: str) -> None:
    echo = ScriptedModel(["done"])
    made = pipeline("w").step("ok", approval=Approval()).build()
    options: dict[str, Any] = {"task_queue": temporal.name}
    starts: list[Callable[[], Awaitable[Any]]] = [
        lambda: start_agent(temporal.client, "a", message="go", user_id=odd, **options),
        lambda: start_agent(temporal.client, "a", message="go", instance_id=odd, **options),
        lambda: start_agent(
            temporal.client, "a", message="go", on_record=OnRecord(store=temporal.store, by=odd), **options
        ),
        lambda: start_pipeline(temporal.client, made, user_id=odd, **options),
        lambda: start_pipeline(temporal.client, made, restart_of=odd, restart_from="ok", **options),
        lambda: run(Agent("a"), message="go", user_id=odd, llm=echo),
        lambda: run(Agent("a"), messages=[{"role": "user", "content": "go", "by": odd}], llm=echo),
        lambda: resume(Agent("a"), {}, decisions=[{"gate": "c1", "decision": "approve", "by": odd}], llm=echo),
        lambda: run(Agent("a"), message="go", user_id=odd, llm=echo, store=temporal.store),
    ]
    for start in starts:
        with pytest.raises(InputError, match=r"NUL|surrogate|unicode|must be 1 to 200 characters"):
            await start()
    with pytest.raises(InputError):
        UserClient(temporal.client, user_id=odd)
    assert [run.id async for run in temporal.client.list_workflows(f"TaskQueue = '{temporal.name}'")] == []


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("spelling", ["Ada", "ＡＤＡ", "ada\u200b", " ada", "ada\x07"])
async def test_another_spelling_of_a_name_is_not_another_person(temporal: Temporal, spelling: str) -> None:
    post = world(ASKED)[1]
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        handle = await temporal.start("a")
        await pending(handle)
        await temporal.people.decide(handle.id, "c1", "approve", by="ada")
        with pytest.raises(InputError, match="has approved it already"):
            await temporal.people.decide(handle.id, "c1", "approve", by=spelling)
        await temporal.people.decide(handle.id, "c1", "approve", by="bob")
        await result(handle)
    rows = await temporal.store.load_decisions(str(handle.result_run_id))
    assert [row.by for row in rows] == ["ada", spelling, "bob"]  # as they were given
