"""Answers and messages at a gate, when their run is reset, moved, interrupted, or continues elsewhere."""

import contextlib
from typing import Any

import pytest
from support.drivers import looked_at
from support.resets import reset, resets
from support.temporal_runs import Temporal, chain, check_healthy, pending, result, status, until, waiting, wedges
from support.transcripts import asks_for, call
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from integration.local.test_held_answers import ADA, HELD, READ, clerk, roles, says
from integration.temporal.test_events import followed
from standfast import (
    Agent,
    Approval,
    GateOpened,
    Guardrail,
    InputError,
    Loop,
    Message,
    TurnEnded,
    is_interrupted,
    run,
)
from standfast.temporal import load_shown
from standfast.temporal.client.clients import RunsInProcess
from standfast.temporal.workflows.run import run_lifetime
from standfast.testing import ScriptedModel


def refunding() -> ScriptedModel:
    return ScriptedModel(["a refund"])


async def decided(temporal: Temporal, handle: Any, decision: str = "approve", gate: str = "answer-2") -> None:
    await pending(handle)
    await temporal.people.decide(handle.id, gate, decision, by="ada")


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_after_a_reset_nobody_is_asked_again_about_an_answer(temporal: Temporal, decision: str) -> None:
    model, agent = refunding(), clerk(inputs=[READ], outputs=[HELD])
    async with temporal.worker(agent, llm=model):
        handle = await temporal.start(agent, "4111")
        await decided(temporal, handle, gate="message-2")
        await until(lambda: _waits_at(handle, "answer-2"))
        await decided(temporal, handle, decision)
        before, ends = await result(handle), []
        async for again in resets(temporal, handle):
            ends.append(await result(again))
            await check_healthy(again)
    assert len(ends) > 4
    assert all(end == before for end in ends)
    assert before["status"] == ("complete" if decision == "approve" else "guardrail-tripped")
    assert len(model.calls) == 1
    assert roles(await temporal.messages()) == ["user", "assistant"]


async def _waits_at(handle: Any, gate: str) -> bool:
    return any(item["name"] == gate for item in await waiting(handle))


async def test_what_time_has_decided_stays_so_after_a_reset(temporal: Temporal) -> None:
    agent = clerk(outputs=[Guardrail(HELD.check, approval=Approval(timeout=0.3))])
    async with temporal.worker(agent, llm=refunding()):
        handle = await temporal.start(agent)
        before = await result(handle)
        ends = [await result(again) async for again in resets(temporal, handle)]
    assert before["response"].endswith("; it was not decided in time]")
    assert all(end == before for end in ends)
    assert [message.content for message in await temporal.messages()] == ["go", before["response"]]


async def test_a_run_that_grows_long_while_an_answer_waits_continues_as_new(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifetime, "EVENTS", 60)
    model, agent = refunding(), clerk(outputs=[HELD])
    async with temporal.worker(agent, llm=model):
        handle = await temporal.start(agent)
        (item,) = await pending(handle)
        for number in range(40):
            await handle.signal("reject", {"gate": "answer-2", "by": f"nobody {number}"})

        async def moved() -> bool:
            return (await temporal.client.get_workflow_handle(handle.id).describe()).run_id != handle.result_run_id

        await until(moved)
        latest = temporal.client.get_workflow_handle(handle.id)
        (left,) = await pending(latest)
        assert (left["message"], left["shown"]) == (item["message"], item["shown"])
        await temporal.people.decide(handle.id, "answer-2", "approve", by="ada", digest=left["digest"])
        assert (await result(handle))["response"] == "a refund"
        assert not [failed for one in await chain(temporal.client, handle) for failed in wedges(one)]
    assert len(model.calls) == 1


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [("on Temporal", "on Temporal"), ("in process", "on Temporal"), ("in process", "in process")],
)
@pytest.mark.parametrize("gate", ["answer-2", "message-2"])
async def test_the_next_run_of_a_session_asks_about_the_same(
    temporal: Temporal, begins: str, goes_on: str, gate: str
) -> None:
    model = refunding()
    agent = clerk(outputs=[HELD]) if gate == "answer-2" else clerk(inputs=[READ])
    given: Any = {"llm": model, "store": temporal.store, "session_id": temporal.session("s")}
    async with temporal.worker(agent, llm=model):
        if begins == "on Temporal":
            handle = await temporal.start(agent, "4111")
            (item,) = await pending(handle)
            await handle.terminate()
        else:
            waits = await run(agent, message="4111", **given)
            assert is_interrupted(waits)
            (item,) = await RunsInProcess(temporal.store).pending(f"in-process:clerk/{given['session_id']}")
            if goes_on == "in process":
                ended = await run(agent, decisions=[looked_at(waits, says("approve", gate))], **given)
                assert (ended.status, len(model.calls)) == ("complete", 1)
                return
        later = await temporal.start(agent, None)
        (again,) = await pending(later)
        assert (again["message"], again["shown"], again["digest"]) == (item["message"], item["shown"], item["digest"])
        await decided(temporal, later, gate=gate)
        assert (await result(later))["response"] == "a refund"
    assert len(model.calls) == 1
    assert roles(await temporal.messages()) == ["user", "assistant"]


async def test_what_was_decided_before_a_run_was_lost_counts_for_the_next(temporal: Temporal) -> None:
    agent = clerk(outputs=[HELD])
    async with temporal.worker(agent, llm=refunding()):
        handle = await temporal.start(agent)
        await pending(handle)
    both = [HELD, Guardrail(_any, approval=Approval(message="Bob?", approvers=["bob"]))]
    agent = clerk(outputs=both)
    async with temporal.worker(agent, llm=ScriptedModel(["a refund"])):
        await handle.terminate()
        other = await temporal.start(agent, session="t")
        await decided(temporal, other)
        await until(lambda: _asks(other, "bob"))
        await other.terminate()
        later = await temporal.start(agent, None, session="t")
        await until(lambda: _asks(later, "bob"))
        await temporal.people.decide(later.id, "answer-2", "approve", by="bob")
        assert (await result(later))["response"] == "a refund"


def _any(ctx: Any, answer: Message) -> str:
    return "look at it"


async def _asks(handle: Any, by: str) -> bool:
    return any(item["approvers"] == [by] for item in await waiting(handle))


async def test_decisions_outside_count_when_a_run_in_process_continues_or_temporal_takes_over(
    temporal: Temporal,
) -> None:
    for session, where in (("a", "in process"), ("b", "on Temporal")):
        model, agent = refunding(), clerk(outputs=[HELD])
        given: Any = {"llm": model, "store": temporal.store, "session_id": temporal.session(session)}
        assert is_interrupted(await run(agent, message="go", **given))
        people, address = RunsInProcess(temporal.store), f"in-process:clerk/{given['session_id']}"
        (item,) = await people.pending(address)
        wrong = {"gate": "answer-2", "decision": "approve", "digest": item["digest"]}
        with pytest.raises(InputError, match="bob may not decide it; ada may"):
            await people.decide(address, {**wrong, "by": "bob"})
        with pytest.raises(InputError, match="nothing can be edited here"):
            await people.decide(address, {**wrong, "by": "ada", "edit": {"text": "no"}})
        await people.decide(address, {**wrong, "by": "ada"})
        assert await people.pending(address) == []
        if where == "in process":
            ended = await run(agent, **given)
            assert (ended.status, ended.response, len(model.calls)) == ("complete", "a refund", 1)
            continue
        async with temporal.worker(agent, llm=model):
            handle = await temporal.start(agent, None, session=session)
            assert (await result(handle))["response"] == "a refund"
        assert len(model.calls) == 1


@pytest.mark.parametrize("is_signed", [True, False])
async def test_an_export_has_the_answer_that_waits_and_it_is_decided_elsewhere(
    temporal: Temporal, is_signed: bool
) -> None:
    key: dict[str, Any] = {"checkpoint_key": "a key of the tests"} if is_signed else {}
    model, agent = refunding(), clerk(outputs=[HELD])
    async with temporal.worker(agent, llm=model, **key):
        handle = await temporal.start(agent)
        await pending(handle)
        exported = await temporal.people.export(handle.id)
        await handle.terminate()
    assert exported.questions is not None
    assert exported.questions[0].held is not None
    waits = await run(agent, checkpoint=exported, llm=model, **key)
    assert is_interrupted(waits)
    ended = await run(
        agent, checkpoint=waits.checkpoint, decisions=[looked_at(waits, says("approve"))], llm=model, **key
    )
    assert (ended.status, ended.response, len(model.calls)) == ("complete", "a refund", 1)


@pytest.mark.parametrize("is_signed", [True, False])
async def test_a_checkpoint_with_an_answer_that_waits_continues_on_temporal(
    temporal: Temporal, is_signed: bool
) -> None:
    key: dict[str, Any] = {"checkpoint_key": "a key of the tests"} if is_signed else {}
    model, agent = ScriptedModel(["a refund", "another refund"]), clerk(outputs=[HELD])
    waits = await run(agent, message="go", llm=model, **key)
    assert is_interrupted(waits)
    async with temporal.worker(agent, llm=model, **key):
        handle = await temporal.start(agent, None, checkpoint=waits.checkpoint.model_dump(mode="json"))
        (item,) = await pending(handle)
        # For an unsigned one, the model is called for the answer again.
        assert item["shown"][0]["text"] == ("a refund" if is_signed else "another refund")
        await decided(temporal, handle)
        assert (await result(handle))["status"] == "complete"


async def test_of_a_long_answer_all_can_be_read_wherever_it_waits(temporal: Temporal) -> None:
    text = "refund " * 5_000
    model = ScriptedModel(lambda messages, tools: text)
    agent = clerk(outputs=[HELD])
    given: Any = {"llm": model, "store": temporal.store, "session_id": temporal.session("s")}
    await run(agent, message="go", **given)
    (item,) = await RunsInProcess(temporal.store).pending(f"in-process:clerk/{given['session_id']}")
    assert item["shown"][0]["kind"] == "left-out"
    assert (await load_shown(temporal.store, item))[0]["text"] == text
    async with temporal.worker(agent, llm=model):
        for session in ("s", "t"):
            handle = await temporal.start(agent, None if session == "s" else "go", session=session)
            (item,) = await pending(handle)
            assert item["shown"][0]["kind"] == "left-out"
            assert (await load_shown(temporal.store, item))[0]["text"] == text
            await decided(temporal, handle)
            assert (await result(handle))["status"] == "complete"


async def test_a_message_that_comes_while_an_answer_waits_is_heard_after_it(temporal: Temporal) -> None:
    model = ScriptedModel(["a refund", "hello"])
    agent = clerk(outputs=[HELD])
    async with temporal.worker(agent, llm=model):
        handle = await temporal.start(agent)
        await pending(handle)
        await temporal.people.message(handle.id, "more")
        await decided(temporal, handle)
        assert (await result(handle))["response"] == "hello"
    assert [message.content for message in await temporal.messages()] == ["go", "a refund", "more", "hello"]


async def test_a_run_that_is_cancelled_drops_the_answer_and_the_session_continues(temporal: Temporal) -> None:
    model = ScriptedModel(["a refund", "hello"])
    agent = clerk(outputs=[HELD])
    async with temporal.worker(agent, llm=model):
        handle = await temporal.start(agent)
        await pending(handle)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await result(handle)
        later = await temporal.start(agent, "more")
        assert (await result(later))["response"] == "hello"
    assert [message.content for message in await temporal.messages()] == ["go", "more", "hello"]


async def test_what_a_waiting_answer_has_used_counts_at_once_and_even_if_its_run_is_cancelled(
    temporal: Temporal,
) -> None:
    used = {"usage": {"input_tokens": 60, "output_tokens": 40}}
    agent = clerk(outputs=[HELD], loop=Loop(session_token_budget=150))
    async with temporal.worker(agent, llm=ScriptedModel([{"text": "a refund", **used}, {"text": "hello", **used}])):
        handle = await temporal.start(agent)
        await pending(handle)
        assert (await status(handle))["usage"]["input_tokens"] == 60
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await result(handle)
        assert (await status(handle))["usage"]["input_tokens"] == 60
        session = await temporal.store.load_session(temporal.session())
        assert session is not None
        assert session.usage is not None
        assert session.usage.total_tokens == 100
        later = await result(await temporal.start(agent, "more"))
        assert later["usage"]["input_tokens"] == 60
        assert (await result(await temporal.start(agent, "more")))["status"] == "token-budget-exhausted"


async def test_an_answer_outlives_its_worker(temporal: Temporal) -> None:
    model, agent = refunding(), clerk(outputs=[HELD])
    async with temporal.worker(agent, llm=model):
        handle = await temporal.start(agent)
        (item,) = await pending(handle)
    await handle.signal("approve", {"gate": "answer-2", "by": "ada", "digest": item["digest"]})
    async with (await temporal.elsewhere()).worker(agent, llm=ScriptedModel([])):
        assert (await result(handle))["response"] == "a refund"
        await check_healthy(handle)


async def test_events_tell_of_the_gate_of_an_answer_and_then_of_the_answer(temporal: Temporal) -> None:
    agent = clerk(outputs=[HELD])
    async with temporal.worker(agent, llm=refunding()):
        handle = await temporal.start(agent)
        await decided(temporal, handle)
        await result(handle)
        events = await followed(temporal, handle)
    (opened,) = [event for event in events if isinstance(event, GateOpened)]
    assert (opened.gate, opened.approvers, opened.call) == ("answer-2", ("ada",), None)
    assert [event.text for event in events if isinstance(event, TurnEnded)][-1] == "a refund"


async def test_on_temporal_an_agent_that_a_tool_runs_waits_with_its_answer(temporal: Temporal) -> None:
    helper = Agent("helper", description="Helps.", model="m", output_guardrails=[Guardrail(_any, approval=ADA)])
    outer = Agent("outer", model="b", tools=[helper])
    models = {"b": ScriptedModel([asks_for(call("helper", "d1", message="help")), "done"]), "m": refunding()}
    async with temporal.worker(outer, helper, llm=lambda name: models[str(name)]):
        handle = await temporal.start(outer)
        child = temporal.client.get_workflow_handle(f"{handle.id}/d1")

        async def asked() -> bool:
            with contextlib.suppress(RPCError):
                return bool(await waiting(child))
            return False

        await until(asked)
        await temporal.people.decide(child.id, "answer-2", "approve", by="ada")
        assert (await result(handle))["status"] == "complete"
    assert (await temporal.messages())[2].content == "a refund"


async def test_what_is_said_after_people_have_looked_does_not_pass_with_what_they_approve(temporal: Temporal) -> None:
    heard: list[list[str]] = []

    def answer(messages: Any, tools: Any) -> str:
        heard.append([message.content for message in messages if message.role == "user"])
        return "thanks"

    agent = clerk(inputs=[READ])
    async with temporal.worker(agent, llm=ScriptedModel(answer)):
        handle = await temporal.start(agent, "4111")
        await pending(handle)
        await temporal.people.message(handle.id, "4111 again")
        last = await reset(temporal, handle, 0, with_messages=True)  # it takes both before the model call
        await decided(temporal, last, gate="message-2")
        await until(lambda: _waits_at(last, "message-4"))
        assert heard == [["4111"]]
        await decided(temporal, last, "reject", gate="message-4")
        assert (await result(last))["status"] == "guardrail-tripped"
