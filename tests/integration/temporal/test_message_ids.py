"""A message with an id counts once on Temporal, and wherever its session continues."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from support.doubles import poster
from support.resets import resets
from support.temporal_runs import Run, Temporal, has_ended, pending, result, until, waiting
from support.transcripts import calls, shape
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError

from standfast import Agent, Approval, InputError, Message, SessionAccessDeniedError, SessionConflictError, run, tool
from standfast.temporal.workflows.run import run_lifetime
from standfast.testing import ScriptedModel

GREETER = Agent("greeter")


class Flag:
    """An event for several event loops: the worker's handlers have their own."""

    def __init__(self) -> None:
        self.is_set = False

    def set(self) -> None:
        self.is_set = True

    def clear(self) -> None:
        self.is_set = False

    async def wait(self) -> None:
        while not self.is_set:
            await asyncio.sleep(0.01)


def echoes() -> ScriptedModel:
    return ScriptedModel(lambda messages, tools: f"answer to {messages[-1].content}")


def held_back() -> tuple[Flag, ScriptedModel]:
    """A model that echoes once the flag is set."""
    release = Flag()

    async def answer(messages: Any, tools: Any) -> str:
        await release.wait()
        return f"answer to {messages[-1].content}"

    return release, ScriptedModel(answer)


async def test_a_message_that_was_answered_is_answered_again(temporal: Temporal) -> None:
    model = echoes()
    async with temporal.worker(GREETER, llm=model, max_stored_messages=2):
        for text in ("a", "b", "c"):
            await temporal.run(GREETER, text, message_id=f"m-{text}")
        for text in ("a", "c", "b"):
            again = await temporal.run(GREETER, text, message_id=f"m-{text}")
            assert (again["status"], again["response"], again["iterations"]) == ("complete", f"answer to {text}", 0)
        with pytest.raises(WorkflowFailureError) as raised:
            await temporal.run(GREETER, "other", message_id="m-a")
        assert "'m-a' was already used for another message" in str(raised.value.cause)
        in_process = await run(
            GREETER, message="b", message_id="m-b", session_id=temporal.session(), store=temporal.store, llm=model
        )
    assert in_process.response == "answer to b"
    assert len(model.calls) == 3
    assert shape(await temporal.messages()) == ["user c", "assistant answer to c"]


async def test_a_session_in_process_continues_with_its_message_on_temporal(temporal: Temporal) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects)])
    model = ScriptedModel(lambda messages, tools: calls("c1") if messages[-1].role == "user" else "done")
    given: dict[str, Any] = {"session_id": temporal.session(), "store": temporal.store, "llm": model}
    await run(agent, message="go", message_id="m1", **given)
    async with temporal.worker(agent, llm=model):
        assert (await temporal.run(agent, "go", message_id="m1"))["response"] == "done"
    assert (effects, len(model.calls)) == (["c1"], 2)


async def test_a_start_of_a_message_in_flight_finds_its_run(temporal: Temporal) -> None:
    @tool(approval=Approval())
    def post(text: str) -> str:
        return "posted"

    agent = Agent("poster", tools=[post])
    async with temporal.worker(agent, llm=ScriptedModel([calls("c1"), "done"])):
        started = await asyncio.gather(*(temporal.start(agent, "go", message_id="m1") for _ in range(3)))
        assert len({(await one.describe()).run_id for one in started}) == 1
        await pending(started[0])
        again = await temporal.start(agent, "go", message_id="m1", if_running="message")
        with pytest.raises(InputError, match="'m1' was already used for another message"):
            await temporal.start(agent, "other", message_id="m1")
        with pytest.raises(SessionConflictError):
            await temporal.start(agent, "go", message_id="m2")
        await temporal.people.decide(again.id, "c1", "approve")
        assert (await result(again))["response"] == "done"
    assert shape(await temporal.messages()) == ["user go", "calls c1", "result c1", "assistant done"]


async def test_strangers_do_not_learn_of_a_message(temporal: Temporal) -> None:
    release, model = held_back()
    async with temporal.worker(GREETER, llm=model):
        handle = await temporal.start(GREETER, "go", message_id="m1", user_id="ada")
        for message in ("go", "other"):
            with pytest.raises(SessionAccessDeniedError):
                await temporal.start(GREETER, message, message_id="m1", user_id="eve")
        release.set()
        await result(handle)
        for message in ("go", "other"):
            with pytest.raises(WorkflowFailureError) as raised:
                await temporal.run(GREETER, message, message_id="m1", user_id="eve")
            assert "m1" not in str(raised.value.cause)


async def test_a_message_is_heard_once_by_whichever_way_it_is_sent(temporal: Temporal) -> None:
    release, model = held_back()
    people = temporal.people
    async with temporal.worker(GREETER, llm=model):
        handle = await temporal.start(GREETER, "one", message_id="m1")
        await people.message(handle.id, "one", message_id="m1")
        await people.message(handle.id, "two", message_id="m2")
        for _ in range(2):
            await people.message(handle.id, "two", message_id="m2")
            await handle.execute_update("message", {"text": "two", "id": "m2"})
            await temporal.start(GREETER, "two", message_id="m2", if_running="message")
        for message_id in ("m1", "m2"):
            with pytest.raises(InputError, match=f"{message_id}.* was already used for"):
                await people.message(handle.id, "other", message_id=message_id)
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.execute_update("message", {"text": "other", "id": message_id})
            with pytest.raises(InputError, match="was already used for"):
                await temporal.start(GREETER, "other", message_id=message_id, if_running="message")
        release.set()
        assert (await result(handle))["response"] == "answer to two"

        # The next run of the session knows them as well.
        release.clear()
        handle = await temporal.start(GREETER, "three", message_id="m3")
        await people.message(handle.id, "two", message_id="m2")
        await handle.execute_update("message", {"text": "one", "id": "m1"})
        for message_id in ("m1", "m2"):
            with pytest.raises(InputError, match="was already used for"):
                await people.message(handle.id, "other", message_id=message_id)
        release.set()
        assert (await result(handle))["response"] == "answer to three"
        assert (await temporal.run(GREETER, "two", message_id="m2"))["response"] == "answer to two"
    said = [message.content for message in await temporal.messages() if message.role == "user"]
    assert said == ["one", "two", "three"]


async def test_a_message_that_a_terminated_run_has_not_heard_is_heard_once(temporal: Temporal) -> None:
    begun = Flag()

    async def waits(messages: Any, tools: Any) -> str:
        begun.set()
        await Flag().wait()
        return ""

    model = echoes()
    async with temporal.worker(GREETER, llm=ScriptedModel(waits)):
        handle = await temporal.start(GREETER, "one", message_id="m1")
        await begun.wait()
        await temporal.people.message(handle.id, "two", message_id="m2")
        await handle.terminate("the test")
    async with temporal.worker(GREETER, llm=model):
        assert (await temporal.run(GREETER, "two", message_id="m2"))["response"] == "answer to two"
        assert (await temporal.run(GREETER, "one", message_id="m1"))["response"] == "answer to one"
    assert shape(await temporal.messages()) == [
        "user two", "assistant answer to two", "user one", "assistant answer to one",
    ]  # fmt: skip


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("way", ["cancel", "terminate"])
async def test_a_message_whose_run_was_ended_continues_and_repeats_no_effect(temporal: Temporal, way: str) -> None:
    effects, begun = list[str](), Flag()

    async def answer(messages: Any, tools: Any) -> Any:
        if messages[-1].role == "user":
            return calls("c1")
        if not begun.is_set:
            begun.set()
            await Flag().wait()
        return "done"

    agent = Agent("poster", tools=[poster(effects)])
    async with temporal.worker(agent, llm=ScriptedModel(answer)):
        handle = await temporal.start(agent, "go", message_id="m1")
        await begun.wait()
        await (handle.cancel() if way == "cancel" else handle.terminate("the test"))
        with pytest.raises(WorkflowFailureError):
            await result(handle)
        assert (await temporal.run(agent, "go", message_id="m1"))["response"] == "done"
    assert effects == ["c1"]
    assert shape(await temporal.messages()) == ["user go", "calls c1", "result c1", "assistant done"]


async def test_what_is_said_while_an_answer_is_given_again_is_heard(temporal: Temporal) -> None:
    model = echoes()
    async with temporal.worker(GREETER, llm=model):
        await temporal.run(GREETER, "one", message_id="m1")
    handle = await temporal.start(GREETER, "one", message_id="m1")
    await handle.signal("message", {"text": "two", "id": "m2"})
    async with temporal.worker(GREETER, llm=model):
        assert (await result(handle))["response"] == "answer to two"
    assert len(model.calls) == 2


def asked_for_two_posts(effects: list[str]) -> tuple[Agent, ScriptedModel]:
    """An agent that posts once for each message, if that is approved."""

    def answer(messages: Sequence[Message], tools: Any) -> Any:
        said = sum(message.role == "user" for message in messages)
        return calls(f"c{said}") if messages[-1].role == "user" else "done"

    agent = Agent("poster", tools=[poster(effects, approval=Approval())])
    return agent, ScriptedModel(answer)


async def approved(temporal: Temporal, run: Run) -> None:
    """Approve what a run asks until it has ended."""

    async def has_approved() -> bool:
        for item in await waiting(run):
            with suppress(InputError):
                await temporal.people.decide(run.id, item["name"], "approve")
        return await has_ended(run)

    await until(has_approved)


async def check_once(temporal: Temporal, agent: Agent, effects: list[str]) -> None:
    """Send both messages again, and check that each was heard once, and has had its effect once."""
    for text, message_id in (("one", "m1"), ("two", "m2")):
        run = await temporal.start(agent, text, message_id=message_id)
        await approved(temporal, run)
        with suppress(WorkflowFailureError):
            assert (await result(run))["response"] == "done"
    await check_heard(temporal, effects)


async def check_heard(temporal: Temporal, effects: list[str]) -> None:
    """Check that each of both messages was heard once, and has had its effect once."""
    said = [message.content for message in await temporal.messages() if message.role == "user"]
    assert (said, sorted(effects)) == (["one", "two"], ["c1", "c2"])


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("with_messages", [True, False], ids=["signals again", "no signals"])
async def test_messages_that_are_sent_again_after_any_reset_count_once(temporal: Temporal, with_messages: bool) -> None:
    agent, model = asked_for_two_posts(effects := list[str]())
    async with temporal.worker(agent, llm=model):
        first = await temporal.start(agent, "one", message_id="m1")
        await pending(first)
        await temporal.people.message(first.id, "two", message_id="m2")
        await approved(temporal, first)
        await check_once(temporal, agent, effects)
        async for again in resets(temporal, first, with_messages=with_messages):
            for text, message_id in (("two", "m2"), ("one", "m1")):
                with suppress(InputError):
                    await temporal.people.message(again.id, text, message_id=message_id)
            await approved(temporal, again)
            await check_once(temporal, agent, effects)


@pytest.mark.slow
@pytest.mark.parametrize("with_messages", [True, False], ids=["signals again", "no signals"])
@pytest.mark.parametrize("by", ["client", "command"])
async def test_a_message_without_an_id_is_heard_once_after_any_reset(
    temporal: Temporal, by: str, with_messages: bool
) -> None:
    agent, model = asked_for_two_posts(effects := list[str]())
    async with temporal.worker(agent, llm=model):
        first = await temporal.start(agent, "one")
        await pending(first)
        if by == "client":
            await temporal.people.message(first.id, "two")
        else:  # Temporal's own
            await first.signal("message", {"text": "two"})
        await approved(temporal, first)
        assert (await result(first))["response"] == "done"
        async for again in resets(temporal, first, with_messages=with_messages):
            await approved(temporal, again)
            assert (await result(again))["response"] == "done"
            await check_heard(temporal, effects)


@pytest.mark.slow
async def test_messages_that_are_sent_again_after_a_run_has_moved_count_once(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifetime, "EVENTS", 12)
    agent, model = asked_for_two_posts(effects := list[str]())
    async with temporal.worker(agent, llm=model):
        first = await temporal.start(agent, "one", message_id="m1")
        await temporal.people.message(first.id, "two", message_id="m2")
        here = temporal.client.get_workflow_handle(first.id, result_type=dict)
        for _ in range(3):
            for text, message_id in (("one", "m1"), ("two", "m2")):
                await temporal.people.message(first.id, text, message_id=message_id)
                await temporal.start(agent, text, message_id=message_id, if_running="message")
            with pytest.raises(InputError, match="m2 was already used for"):
                await temporal.people.message(first.id, "other", message_id="m2")
        assert (await here.describe()).run_id != first.result_run_id
        await approved(temporal, here)
        await check_once(temporal, agent, effects)


@pytest.mark.parametrize("wrong", ["", "x" * 201, "a\nb", "\ud800", 7], ids=ascii)
async def test_an_id_that_cannot_be_one_is_refused(temporal: Temporal, wrong: Any) -> None:
    with pytest.raises(InputError, match="message_id"):
        await temporal.start(GREETER, "go", message_id=wrong)
    with pytest.raises(InputError, match="message_id must be"):
        await temporal.people.message("greeter/x", "go", message_id=wrong)


@pytest.mark.slow
async def test_the_longest_ids_do_not_fill_a_run(temporal: Temporal) -> None:
    release, model = held_back()
    async with temporal.worker(GREETER, llm=model):
        handle = await temporal.start(GREETER, "one", message_id="🎉" * 200)
        for number in range(40):
            await temporal.people.message(handle.id, f"{number}", message_id=f"{number:04}" + "🎉" * 196)
        sizes = await until(lambda: handle.query("status"))
        assert sizes
        release.set()
        await result(handle)
    assert len([one for one in await temporal.messages() if one.role == "user"]) == 41
