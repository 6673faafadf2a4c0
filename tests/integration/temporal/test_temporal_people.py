"""People's view of runs, and their messages: inboxes, messages at any time, calls of unknown outcome."""

import asyncio
from typing import Any, Literal

import pytest
from support.temporal_runs import (
    Run,
    Temporal,
    ask_once,
    check_healthy,
    clerk,
    pending,
    question,
    result,
    status,
    until,
    waiting,
)
from support.transcripts import asks_for, call, kind_of, result_of, says, shape
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from standfast import (
    Agent,
    InputError,
    InterruptedResponse,
    InterruptError,
    Loop,
    SessionConflictError,
    ToolDurabilityError,
    tool,
)
from standfast import run as run_here
from standfast.temporal import start_agent
from standfast.testing import ScriptedModel

# --- inboxes ---


async def test_a_run_that_waits_is_found_by_what_it_waits_for_and_then_no_longer(temporal: Temporal) -> None:
    async with question(temporal) as run:
        query = f"StandfastSession = '{temporal.session()}' AND StandfastWaiting = 'question'"
        assert await until(lambda: _found(temporal, query)) == [run.id]
        assert await _found(
            temporal, f"{query} AND StandfastStatus = 'waiting' AND StandfastDeadline > '2020-01-01T00:00:00Z'"
        )
        await run.execute_update("answer", {"text": "Ada"})
        await result(run)
        ended = f"StandfastSession = '{temporal.session()}' AND StandfastStatus = 'complete'"
        assert await until(lambda: _found(temporal, ended)) == [run.id]
        assert await _found(temporal, query) == []


async def _found(temporal: Temporal, query: str) -> list[str]:
    return [run.id async for run in temporal.client.list_workflows(query)]


async def test_a_run_is_found_by_its_tenant(temporal: Temporal) -> None:
    async with temporal.worker(Agent("helper"), llm=ScriptedModel(["ok"])):
        run = await temporal.start(Agent("helper"), tenant_id=temporal.name)
        await result(run)
    assert await until(lambda: _found(temporal, f"StandfastTenant = '{temporal.name}'")) == [run.id]


async def test_the_inbox_of_a_client_has_what_waits_in_the_whole_namespace(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        runs = [await temporal.start(clerk, session=name) for name in ("s1", "s2")]
        for run in runs:
            await pending(run)

        async def both() -> list[dict[str, Any]]:
            ours = [item for item in await temporal.people.waiting() if temporal.name in item["workflow_id"]]
            return ours if len(ours) == 2 else []

        items = await until(both)
        assert {(item["workflow_id"], item["kind"], item["name"]) for item in items} == {
            (run.id, "question", "c1") for run in runs
        }
        for run in runs:
            await run.execute_update("answer", {"text": "Ada"})
            await result(run)


@pytest.mark.parametrize("ask", ["answer", "message"])
async def test_a_run_that_has_ended_takes_nothing_more_and_says_so(temporal: Temporal, ask: str) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(["done"])):
        run = await temporal.start(clerk)
        await result(run)
        with pytest.raises(InputError, match=f"Run {run.id} has ended: `.*` does not count") as refused:
            await getattr(temporal.people, ask)(run.id, "hello")
        assert ("start its agent in the same session" in str(refused.value)) == (ask == "message")
        with pytest.raises(InputError, match=f"Run {run.id} has ended, so there is nothing to export"):
            await temporal.people.export(run.id)


@pytest.mark.parametrize("ask", ["status", "pending", "resume", "export"])
async def test_a_run_that_there_is_not_is_named(temporal: Temporal, ask: str) -> None:
    with pytest.raises(InputError, match="There is no run 'clerk/nobody'"):
        await getattr(temporal.people, ask)("clerk/nobody")


async def test_a_run_whose_worker_is_away_does_not_hide_the_others(temporal: Temporal) -> None:
    away = Temporal(temporal.client, temporal.store, f"{temporal.name}-away")
    async with away.worker(clerk, llm=ScriptedModel(ask_once)):
        left = await away.start(clerk)
        await pending(left)
    try:
        async with question(temporal) as run:

            async def ours() -> bool:
                async with asyncio.timeout(9):  # less than a query to a worker that is away takes
                    return run.id in [item["workflow_id"] for item in await temporal.people.waiting()]

            assert await until(ours)
    finally:
        await left.terminate()


# --- messages ---


def slow_tool(started: asyncio.Event, go_on: asyncio.Event) -> Any:
    loop = asyncio.get_running_loop()

    @tool
    async def work() -> str:
        """Work until told to go on; handlers run on a loop of their own."""
        loop.call_soon_threadsafe(started.set)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(go_on.wait(), loop))
        return "worked"

    return work


async def test_a_message_during_a_call_is_told_after_its_result(temporal: Temporal) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()
    agent = Agent("worker", tools=[slow_tool(started, go_on)])
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("work", "w1")), "done"])):
        run = await temporal.start(agent)
        async with asyncio.timeout(60):
            await started.wait()
        await temporal.people.message(run.id, "one")
        await run.signal("message", {"text": "two"})
        go_on.set()
        assert (await result(run))["response"] == "done"
        await check_healthy(run)
    assert shape(await temporal.messages()) == [
        "user go", "calls w1", "result w1", "user one", "user two", "assistant done",
    ]  # fmt: skip


async def test_a_message_while_a_question_is_open_does_not_get_between_call_and_result(temporal: Temporal) -> None:
    async with question(temporal) as run:
        await run.execute_update("message", {"text": "by the way"})
        assert [item["name"] for item in await waiting(run)] == ["c1"]
        await run.execute_update("answer", {"text": "Ada"})
        await result(run)
    assert shape(await temporal.messages()) == [
        "user go", "calls c1", "result c1", "user by the way", "assistant done",
    ]  # fmt: skip


async def test_a_message_while_the_model_thinks_is_told_in_the_next_turn(temporal: Temporal) -> None:
    thinking, go_on = asyncio.Event(), asyncio.Event()
    here = asyncio.get_running_loop()

    async def answer(messages: Any, tools: Any) -> Any:
        if messages[-1].content != "go":
            return says(f"heard {messages[-1].content}")
        here.call_soon_threadsafe(thinking.set)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(go_on.wait(), here))
        return says("first answer")

    agent = Agent("thinker")
    async with temporal.worker(agent, llm=ScriptedModel(answer)):
        run = await temporal.start(agent)
        async with asyncio.timeout(60):
            await thinking.wait()
        await run.execute_update("message", {"text": "more"})
        go_on.set()
        ended = await result(run)
        assert (ended["response"], ended["iterations"]) == ("heard more", 2)
        await check_healthy(run)
    assert shape(await temporal.messages()) == [
        "user go", "assistant first answer", "user more", "assistant heard more",
    ]  # fmt: skip


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("hook", [None, "on_complete"])
async def test_no_message_is_lost_however_close_to_the_end_it_comes(temporal: Temporal, hook: str | None) -> None:
    agent = Agent("closing", on_complete=(lambda context: None) if hook else None)
    accepted: list[str] = []
    async with temporal.worker(agent, llm=ScriptedModel(lambda messages, tools: "done"), max_stored_messages=1_000):
        run = await temporal.start(agent, max_iterations=500)

        async def talk(number: int) -> None:
            text = f"m{number}"
            try:
                await run.execute_update("message", {"text": text})
                accepted.append(text)
            except Exception:  # the run has ended: the sender knows
                return

        await asyncio.gather(*(talk(number) for number in range(30)))
        await result(run)
        await check_healthy(run)
    said = [message.content for message in await temporal.messages() if message.role == "user"]
    assert sorted(said) == sorted(["go", *accepted])
    assert (await temporal.messages())[-1].role == "assistant"


async def test_a_message_that_comes_too_late_for_a_run_at_its_limit_is_kept_for_the_next(temporal: Temporal) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()
    agent = Agent("limited", tools=[slow_tool(started, go_on)], loop=Loop(max_iterations=1))
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("work", "w1")), "heard"])):
        run = await temporal.start(agent)
        async with asyncio.timeout(60):
            await started.wait()
        await run.execute_update("message", {"text": "more"})
        go_on.set()
        assert (await result(run))["status"] == "max-iterations"
        await check_healthy(run)
        assert shape(await temporal.messages()) == ["user go", "calls w1", "result w1", "user more"]
        await temporal.run(agent, "and?")
    assert shape(await temporal.messages())[3:] == ["user more", "user and?", "assistant heard"]


async def test_a_start_while_a_run_is_in_flight_is_refused_or_becomes_a_message(temporal: Temporal) -> None:
    async with question(temporal) as run:
        with pytest.raises(SessionConflictError, match="has a run in flight"):
            await temporal.start(clerk, "again")
        same = await temporal.start(clerk, "by the way", if_running="message")
        assert same.id == run.id
        await run.execute_update("answer", {"text": "Ada"})
        await result(run)
    assert "user by the way" in shape(await temporal.messages())


async def test_if_running_message_starts_a_run_where_none_is_in_flight(temporal: Temporal) -> None:
    agent = Agent("helper")
    async with temporal.worker(agent, llm=ScriptedModel(lambda messages, tools: f"heard {messages[-1].content}")):
        for text in ("one", "two"):
            run = await temporal.start(agent, text, if_running="message")
            assert (await result(run))["response"] == f"heard {text}"
    assert shape(await temporal.messages()) == ["user one", "assistant heard one", "user two", "assistant heard two"]


async def test_hundreds_of_starts_at_once_become_one_run_that_hears_all(temporal: Temporal) -> None:
    agent = Agent("helper")
    runs = await asyncio.gather(*(temporal.start(agent, f"m{number}", if_running="message") for number in range(50)))
    async with temporal.worker(agent, llm=ScriptedModel(lambda messages, tools: "ok")):
        await result(runs[0])
    said = [message.content for message in await temporal.messages() if message.role == "user"]
    assert sorted(said) == sorted(f"m{number}" for number in range(50))


@pytest.mark.parametrize("options", [{"if_running": "wait"}, {"if_running": "message", "message": None}])
async def test_a_start_that_makes_no_sense_is_refused(temporal: Temporal, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="if_running"):
        await start_agent(temporal.client, "helper", **{"message": "x", **options})


# --- calls of unknown outcome ---


def paying(effects: list[str], *, on_unknown: Any = "ask", first: Exception | None = None) -> Agent:
    """Return an agent with a tool that cannot tell the first time whether it has paid."""

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        effects.append(f"paid {amount}")
        if len(effects) == 1:
            raise first or ToolDurabilityError("pay", "p1", reason="the line went dead")
        return "paid"

    return Agent("payer", tools=[pay], loop=Loop(on_unknown=on_unknown))


async def unknown(temporal: Temporal, agent: Agent) -> Run:
    run = await temporal.start(agent)
    (asked,) = await pending(run)
    assert (asked["kind"], asked["name"]) == ("unknown", "p1")
    assert "What came of it?" in asked["message"]
    return run


ONE_PAYMENT: list[Any] = [asks_for(call("pay", "p1", amount=5)), "done"]


async def test_a_call_of_unknown_outcome_is_told_to_the_model(temporal: Temporal) -> None:
    effects: list[str] = []
    agent = paying(effects, on_unknown="tell")
    async with temporal.worker(agent, llm=ScriptedModel(ONE_PAYMENT)):
        assert (await temporal.run(agent))["status"] == "complete"
    assert (effects, kind_of(await temporal.messages(), "p1")) == (["paid 5"], "tool-durability-error")


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        ({"decision": "happened", "result": "receipt 7"}, "receipt 7"),
        ({"decision": "happened", "result": {"receipt": 7}}, '{"receipt":7}'),
        ({"decision": "happened", "result": ""}, ""),
    ],
)
async def test_an_operator_who_knows_that_a_call_happened_gives_its_result(
    temporal: Temporal, decision: dict[str, Any], text: str
) -> None:
    effects: list[str] = []
    agent = paying(effects)
    async with temporal.worker(agent, llm=ScriptedModel(ONE_PAYMENT)):
        run = await unknown(temporal, agent)
        await run.execute_update("resolve", {"tool_call_id": "p1", "by": "eve", **decision})
        assert (await result(run))["status"] == "complete"
        (resolved,) = (await status(run))["resolved"]
        assert (resolved["decision"], resolved["by"]) == ("happened", "eve")
        await check_healthy(run)
    assert effects == ["paid 5"]
    assert result_of(await temporal.messages(), "p1") == text


async def test_a_call_that_did_not_happen_is_run(temporal: Temporal) -> None:
    effects: list[str] = []
    agent = paying(effects)
    async with temporal.worker(agent, llm=ScriptedModel(ONE_PAYMENT)):
        run = await unknown(temporal, agent)
        await run.execute_update("resolve", {"tool_call_id": "p1", "decision": "not-happened"})
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
    assert effects == ["paid 5", "paid 5"]
    assert result_of(await temporal.messages(), "p1") == "paid"


async def test_a_call_that_nobody_can_tell_of_is_left_to_the_model(temporal: Temporal) -> None:
    effects: list[str] = []
    agent = paying(effects)
    async with temporal.worker(agent, llm=ScriptedModel(ONE_PAYMENT)):
        run = await unknown(temporal, agent)
        await run.execute_update("resolve", {"tool_call_id": "p1", "decision": "leave", "reason": "no access"})
        await result(run)
    assert (effects, kind_of(await temporal.messages(), "p1")) == (["paid 5"], "tool-durability-error")


async def test_an_unknown_outcome_may_be_answered_like_a_question(temporal: Temporal) -> None:
    agent = paying([])
    async with temporal.worker(agent, llm=ScriptedModel(ONE_PAYMENT)):
        run = await unknown(temporal, agent)
        await run.execute_update("answer", {"text": "it was paid", "tool_call_id": "p1"})
        await result(run)
    assert result_of(await temporal.messages(), "p1") == "it was paid"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"tool_call_id": "p9", "decision": "leave"}, "call p9 does not wait for it; waiting: p1"),
        ({"tool_call_id": "p1", "decision": "maybe"}, "decision must be"),
        ({"tool_call_id": "p1", "decision": "happened"}, "needs the result"),
        ({"tool_call_id": "p1", "decision": "leave", "result": "x"}, 'goes with the decision "happened"'),
        ({"decision": "leave"}, "'tool_call_id' is missing"),
    ],
)
async def test_a_resolve_that_makes_no_sense_is_refused(temporal: Temporal, data: dict[str, Any], reason: str) -> None:
    agent = paying([])
    async with temporal.worker(agent, llm=ScriptedModel(ONE_PAYMENT)):
        run = await unknown(temporal, agent)
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await run.execute_update("resolve", data)
        assert isinstance(refused.value.cause, ApplicationError)
        assert reason in refused.value.cause.message
        await run.execute_update("resolve", {"tool_call_id": "p1", "decision": "leave"})
        await result(run)
        await check_healthy(run)


async def test_a_call_that_is_run_again_may_ask_a_question(temporal: Temporal) -> None:
    times: list[int] = []

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        times.append(1)
        if len(times) == 1:
            raise ToolDurabilityError("pay", "p1")
        raise InterruptError("Really?")

    agent = Agent("payer", tools=[pay], loop=Loop(on_unknown="ask"))
    async with temporal.worker(agent, llm=ScriptedModel(ONE_PAYMENT)):
        run = await unknown(temporal, agent)
        await temporal.people.resolve(run.id, "p1", "not-happened")

        async def asked() -> bool:
            return [(item["kind"], item["message"]) for item in await waiting(run)] == [("question", "Really?")]

        await until(asked)
        await temporal.people.answer(run.id, "yes")
        await result(run)
        await check_healthy(run)
    assert result_of(await temporal.messages(), "p1") == "yes"


@pytest.mark.parametrize("decision", ["happened", "not-happened"])
@pytest.mark.parametrize("origin", ["an export", "this process", "a session of this process"])
async def test_what_is_unknown_in_a_run_that_is_moved_here_is_resolved_here(
    temporal: Temporal, origin: str, decision: Literal["happened", "not-happened"]
) -> None:
    effects: list[str] = []
    agent = paying(effects)
    turns = ONE_PAYMENT if origin == "an export" else ["done"]
    async with temporal.worker(agent, llm=ScriptedModel(turns)):
        given: dict[str, Any] = {"session": "moved"}
        if origin == "an export":
            before = await unknown(temporal, agent)
            given["checkpoint"] = await temporal.people.export(before.id)
            await before.terminate()
        else:
            kept: dict[str, Any] = (
                {} if origin == "this process" else {"store": temporal.store, "session_id": temporal.session("moved")}
            )
            asked = await run_here(agent, message="Pay 5", llm=ScriptedModel(ONE_PAYMENT), **kept)
            assert isinstance(asked, InterruptedResponse)
            given["checkpoint"] = None if kept else asked.checkpoint
        run = await temporal.start(agent, None, **given)
        (item,) = await pending(run)
        assert (item["kind"], item["name"]) == ("unknown", "p1")
        happened = {"result": "paid by hand"} if decision == "happened" else {}
        await temporal.people.resolve(run.id, "p1", decision, **happened)
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
        assert result_of(await temporal.messages("moved"), "p1") in ("paid by hand", "paid")
    assert len(effects) == (1 if decision == "happened" else 2)
