"""An acknowledged answer or resolution is in the store, and the session's next run continues from it."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from support.doubles import fail, poster
from support.questions import ask
from support.resets import reset, tasks
from support.temporal_runs import Run, Temporal, check_healthy, pending, question, refusals, result, until, waiting
from support.transcripts import asks_for, call, result_of, shape
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from integration.temporal.test_completed_by_hand import complete
from standfast import Agent, Approval, InputError, Loop, Message, ToolDurabilityError, tool
from standfast.errors import NotConfirmedError
from standfast.runtime.message_ids import Unheard
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


class Deaf:
    """A model that answers with the first of these, and then no more."""

    def __init__(self, first: Any) -> None:
        self._first = first

    async def chat(self, messages: Sequence[Message], tools: Any, **_: Any) -> Any:
        if messages[-1].content != "go":
            await asyncio.Event().wait()
        return self._first


ASKS = asks_for(call("ask", "c1", question="Who?"))
PAYS = asks_for(call("pay", "p1", amount=1))


def paying(effects: list[int]) -> Agent:
    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        effects.append(amount)
        if len(effects) == 1:
            raise ToolDurabilityError("pay", "p1")
        await asyncio.Event().wait()
        return "paid"

    return Agent("payer", tools=[pay], loop=Loop(on_unknown="ask"))


async def by_client(temporal: Temporal, run: Run, door: str, data: dict[str, Any]) -> None:
    await (temporal.people.answer(run.id, **data) if door == "answer" else temporal.people.resolve(run.id, **data))


async def by_update(temporal: Temporal, run: Run, door: str, data: dict[str, Any]) -> None:
    told = await run.execute_update(door, data)
    assert told["accepted"], told


DOORS = pytest.mark.parametrize("say", [by_client, by_update])


async def cut_off(run: Run) -> None:
    await run.terminate()
    with pytest.raises(WorkflowFailureError):
        await result(run)


@pytest.mark.slow(but=1)
@DOORS
async def test_an_answer_that_counts_is_in_the_store(temporal: Temporal, say: Any) -> None:
    agent = Agent("clerk", tools=[ask])
    async with temporal.worker(agent, llm=Deaf(ASKS)):
        run = await temporal.start(agent)
        await pending(run)
        await say(temporal, run, "answer", {"text": "Ada"})
        found = await temporal.messages()
        await cut_off(run)
    assert result_of(found, "c1") == "Ada"
    async with (await temporal.elsewhere()).worker(agent, llm=ScriptedModel(["done"])):
        again = await temporal.start(agent, None)
        assert (await result(again))["status"] == "complete"
    assert shape(await temporal.messages()) == ["user go", "calls c1", "result c1", "assistant done"]
    assert result_of(await temporal.messages(), "c1") == "Ada"


@pytest.mark.slow(but=1)
@DOORS
@pytest.mark.parametrize(
    ("data", "becomes"),
    [({"decision": "happened", "result": "receipt"}, "receipt"), ({"decision": "leave"}, "tool-durability-error")],
)
async def test_what_an_operator_found_out_is_in_the_store(
    temporal: Temporal, say: Any, data: dict[str, Any], becomes: str
) -> None:
    agent = paying(effects := [])
    async with temporal.worker(agent, llm=Deaf(PAYS)):
        run = await temporal.start(agent)
        await pending(run)
        await say(temporal, run, "resolve", {"tool_call_id": "p1", **data})
        found = await temporal.messages()
        await cut_off(run)
    assert becomes in result_of(found, "p1")
    assert effects == [1]


@pytest.mark.slow(but=1)
@DOORS
async def test_a_call_that_did_not_happen_is_known_not_to_have(temporal: Temporal, say: Any) -> None:
    """What is run again may take for long: who has said so is told as soon as the ledger knows."""
    agent = paying([])
    async with temporal.worker(agent, llm=Deaf(PAYS)):
        run = await temporal.start(agent)
        await pending(run)
        await say(temporal, run, "resolve", {"tool_call_id": "p1", "decision": "not-happened"})
        session = await temporal.store.load_session(temporal.session())
        assert session is not None
        (entry,) = (await temporal.store.load_entries(f"{session.key}/2", ["0/p1#2"])).values()
        assert entry.state == "abandoned"
        await cut_off(run)


@pytest.mark.slow(but=1)
@DOORS
async def test_what_a_person_says_to_an_agent_that_is_stuck_is_in_the_store(temporal: Temporal, say: Any) -> None:
    agent = Agent("stuck", tools=[fail], loop=Loop(stuck_threshold=1, on_stuck="escalate"))
    async with temporal.worker(agent, llm=Deaf(asks_for(call("fail", "f1")))):
        run = await temporal.start(agent)
        await pending(run)
        await say(temporal, run, "answer", {"text": "skip it"})
        await cut_off(run)
    async with (await temporal.elsewhere()).worker(agent, llm=ScriptedModel(["done"])):
        again = await temporal.start(agent, None)
        assert (await result(again))["status"] == "complete"
    assert shape(await temporal.messages()) == [
        "user go", "calls f1", "result f1", "user skip it", "assistant done",
    ]  # fmt: skip


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("with_messages", [False, True])
async def test_what_a_stuck_agent_was_told_is_found_after_a_reset(temporal: Temporal, with_messages: bool) -> None:
    agent = Agent("stuck", tools=[fail], loop=Loop(stuck_threshold=1, on_stuck="escalate"))
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("fail", "f1")), "done"])):
        run = await temporal.start(agent)
        await pending(run)
        await temporal.people.answer(run.id, "skip it")
        assert (await result(run))["status"] == "complete"
        before = await temporal.messages()
        for task in range(0, len(await tasks(run)), 2):
            run = await reset(temporal, run, task, with_messages=with_messages)
            assert (await result(run))["status"] == "complete"
            await check_healthy(run)
            assert await temporal.messages() == before


async def _waits_for(run: Run, *calls: str) -> bool:
    return {item["name"] for item in await waiting(run)} == set(calls)


@pytest.mark.slow
async def test_every_turn_that_asked_finds_its_answers_after_a_reset(temporal: Temporal) -> None:
    """People are not asked again, even in later turns: their answers are in the transcript, and another would differ.

    They are taken in as they were given, not as the model asked for them: the run counts messages.
    """
    payer, post = paying([]), poster([], approval=Approval(message="Post?"))
    agent = Agent("clerk", tools=[ask, post, *payer.tools], loop=payer.loop)
    both = asks_for(call("ask", "c3", question="Where?"), call("ask", "c4", question="When?"))
    script = [ASKS, PAYS, both, asks_for(call("post", "c5", text="hi")), "done"]
    async with temporal.worker(agent, llm=ScriptedModel(script)):
        first = await temporal.start(agent)
        await until(partial(_waits_for, first, "c1"))
        await temporal.people.answer(first.id, "Ada")
        await until(partial(_waits_for, first, "p1"))
        await temporal.people.resolve(first.id, "p1", "happened", result="receipt")
        await until(partial(_waits_for, first, "c3", "c4"))
        for call_id, text in (("c4", "now"), ("c3", "here")):
            await temporal.people.answer(first.id, text, tool_call_id=call_id)
        await until(partial(_waits_for, first, "c5"))
        await temporal.people.decide(first.id, "c5", "reject", by="ada")
        assert (await result(first))["status"] == "complete"
        before = await temporal.messages()
        again = first
        for task in range(0, len(await tasks(first)), 2):
            again = await reset(temporal, again, task, with_messages=task % 4 == 0)
            assert (await result(again))["status"] == "complete"
            await check_healthy(again)
            assert await temporal.messages() == before


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("given", [{}, {"tool_call_id": "c1"}], ids=["to the first question", "to its call"])
async def test_an_answer_without_an_id_counts_though_the_reset_run_still_looks_for_earlier_ones(
    temporal: Temporal, given: dict[str, Any]
) -> None:
    agent, llm = Agent("clerk", tools=[ask]), ScriptedModel([ASKS, "done"])
    async with temporal.worker(agent, llm=llm):
        run = await temporal.start(agent)
        await pending(run)
    await run.signal("answer", {"text": "Ada", **given})  # the reset sends it again
    new = await reset(temporal, run, len(await tasks(run)) - 1, with_messages=True)
    async with (await temporal.elsewhere()).worker(agent, llm=llm):
        assert (await result(new))["status"] == "complete"
        await check_healthy(new)
    assert result_of(await temporal.messages(), "c1") == "Ada"


async def test_but_not_if_an_earlier_one_is_found(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask])
    asks = asks_for(*(call("ask", f"c{number}", question=f"{number}?") for number in (1, 2)))
    async with temporal.worker(agent, llm=ScriptedModel([asks, "done"])):
        run = await temporal.start(agent)
        await pending(run, 2)
        await temporal.people.message(run.id, "hurry")  # so that there is a task in which it waits
        at = len(await tasks(run)) - 1
        await temporal.people.answer(run.id, "Ada", tool_call_id="c1")
    for text, call_id in (("Bob", "c1"), ("Eve", "c2")):
        await run.signal("answer", {"text": text, "tool_call_id": call_id})
    new = await reset(temporal, run, at, with_messages=True)
    async with (await temporal.elsewhere()).worker(agent, llm=ScriptedModel(["done"])):
        assert (await result(new))["status"] == "complete"
        assert "answer: call c1 already has its answer" in await refusals(new)
        await check_healthy(new)
    messages = await temporal.messages()
    assert [result_of(messages, name) for name in ("c1", "c2")] == ["Ada", "Eve"]


async def test_of_two_who_answer_at_once_one_is_told_that_it_counts(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask])
    async with temporal.worker(agent, llm=Deaf(ASKS)):
        run = await temporal.start(agent)
        await pending(run)
        came = await asyncio.gather(
            *(temporal.people.answer(run.id, who, tool_call_id="c1") for who in ("Ada", "Eve")), return_exceptions=True
        )
        counted = [who for who, refused in zip(("Ada", "Eve"), came, strict=True) if refused is None]
        assert [str(refused) for refused in came if refused is not None] == ["answer: call c1 already has its answer"]
        assert result_of(await temporal.messages(), "c1") == counted[0]
        await cut_off(run)


class Stops(SQLiteStore):
    """A store that is slow to write what has been answered."""

    def __init__(self, path: Any) -> None:
        super().__init__(path)
        self.writing, self.over = asyncio.Event(), asyncio.Event()

    async def append_messages_atomic(self, session_id: str, messages: Sequence[Message], *args: Any, **kw: Any) -> int:
        if any(message.content == "Ada" for message in messages):
            self.writing.set()
            await self.over.wait()
        return await super().append_messages_atomic(session_id, messages, *args, **kw)


async def test_a_person_who_answers_while_the_run_is_terminated_is_told_that_nobody_knows(
    temporal: Temporal, tmp_path: Any
) -> None:
    agent = Agent("clerk", tools=[ask])
    async with Stops(tmp_path / "stops.db") as store, temporal.worker(agent, llm=Deaf(ASKS), store=store):
        run = await temporal.start(agent)
        await pending(run)
        answering = asyncio.ensure_future(temporal.people.answer(run.id, "Ada"))
        await store.writing.wait()
        await cut_off(run)
        with pytest.raises(NotConfirmedError, match="ended before it reported the outcome of `answer`"):
            await answering
        store.over.set()  # else its worker waits for it when it stops


@pytest.mark.parametrize("how", ["client", "update"])
async def test_a_message_that_the_store_cannot_have_is_refused_and_not_heard(
    temporal: Temporal, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, over = asyncio.Event(), asyncio.Event()

    async def keep(*given: Any) -> None:
        inside.set()
        await over.wait()

    monkeypatch.setattr(Unheard, "keep", keep)
    async with question(temporal) as run:
        sends = (
            temporal.people.message(run.id, "cancel that") if how == "client"
            else run.execute_update("message", {"text": "cancel that"})
        )  # fmt: skip
        sending = asyncio.ensure_future(sends)
        await inside.wait()
        await complete(temporal, run, "standfast.keep", ApplicationError("the disk is full", non_retryable=True))
        with pytest.raises((InputError, WorkflowUpdateFailedError)) as refused:
            await asyncio.wait_for(sending, 8)
        reason = str(refused.value.__cause__ if how == "update" else refused.value)
        assert "message: it could not be kept: the disk is full" in reason
        over.set()
    assert [message.content for message in await temporal.messages() if message.role == "user"] == ["go"]
