"""A message with an id counts once, however often it is sent."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.any_store import KINDS, opener_of
from support.doubles import poster
from support.drivers import Driver
from support.stores import crash_on_write
from support.transcripts import calls, shape

from standfast import (
    Agent,
    Approval,
    DiminishingReturns,
    InputError,
    Loop,
    SessionAccessDeniedError,
    SessionConflictError,
    SessionNotFoundError,
    is_interrupted,
    memory_store,
    resume,
    run,
    run_streaming,
    tool,
)
from standfast.events import RunEnded
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel

GREETER = Agent("greeter")
PROGRAM = """
import asyncio, os, signal, sys
from standfast import Agent, run, sqlite_store, tool

FOLDER = sys.argv[1]

@tool
def charge(amount: int) -> str:
    "Charge a customer."
    with open(f"{FOLDER}/charged", "a") as charged:
        charged.write("5\\n")
    if sys.argv[2] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"

class Model:
    async def chat(self, messages, tools, **settings):
        with open(f"{FOLDER}/asked", "a") as asked:
            asked.write("x")
        if messages[-1].role == "user":
            return {"tool_calls": [{"id": f"c{len(messages)}", "name": "charge", "arguments": {"amount": 5}}]}
        return {"text": "Look whether it was charged."}

async def main():
    result = await run(
        Agent("cashier", tools=[charge]),
        message="Charge 5",
        message_id="order-1",
        session_id="s",
        store=sqlite_store(f"{FOLDER}/standfast.db"),
        llm=Model(),
    )
    print(result.response)

asyncio.run(main())
"""


def program(folder: Path, what: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PROGRAM, str(folder), what]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_program_that_was_killed_and_is_started_again_charges_once(tmp_path: Path) -> None:
    assert program(tmp_path, "die").returncode == -signal.SIGKILL
    for _ in range(2):
        assert program(tmp_path, "live").stdout == "Look whether it was charged.\n"
    assert (tmp_path / "charged").read_text() == "5\n"
    assert (tmp_path / "asked").read_text() == "xx"


@pytest.mark.parametrize("write", [1, 2, 3])
async def test_a_run_that_dies_at_a_write_continues_with_its_message(store: SQLiteStore, write: int) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects)])
    await crash_on_write(store, agent, [calls("c1"), "done"], write, message_id="m1")
    model = ScriptedModel(lambda messages, tools: calls("c1") if messages[-1].role == "user" else "done")
    ended = await run(agent, message="hi", message_id="m1", session_id="s", store=store, llm=model)
    assert (ended.response, effects) == ("done", ["c1"])
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done"]


async def test_without_an_id_the_same_words_are_two_messages(store: SQLiteStore) -> None:
    for number in (1, 2):
        await run(GREETER, message="hi", session_id="s", store=store, llm=ScriptedModel([f"{number}"]))
    assert shape(await store.load_messages("s")) == ["user hi", "assistant 1", "user hi", "assistant 2"]


@pytest.mark.parametrize("kind", [*KINDS, "memory"])
async def test_each_message_keeps_its_answer_also_when_it_was_pruned(
    kind: str, request: pytest.FixtureRequest, folder: Path
) -> None:
    store: Any = memory_store() if kind == "memory" else opener_of(kind, request, folder)()
    model = ScriptedModel(lambda messages, tools: f"answer to {messages[-1].content}")
    given: dict[str, Any] = {"store": store, "llm": model, "max_stored_messages": 2}
    if kind != "memory":
        given["session_id"] = "s"
    for text in ("a", "b", "c"):
        ended = await run(GREETER, message=text, message_id=f"m-{text}", **given)
        given["session_id"] = ended.session_id
    for text in ("a", "b", "c", "a"):
        again = await run(GREETER, message=text, message_id=f"m-{text}", **given)
        assert (again.status, again.response, again.iterations) == ("complete", f"answer to {text}", 0)
        with pytest.raises(InputError, match=f"'m-{text}' was already used for another message"):
            await run(GREETER, message="other", message_id=f"m-{text}", **given)
    assert shape(await store.load_messages(given["session_id"])) == ["user c", "assistant answer to c"]
    assert len(model.calls) == 3

    await store.delete_session(given["session_id"])
    if kind == "memory":
        return
    await run(GREETER, message="a", message_id="m-a", **given)
    assert len(model.calls) == 4  # it is another session
    await store.close()


async def test_another_image_or_another_speaker_makes_another_message(store: SQLiteStore) -> None:
    image = {"url": "https://example.com/a.png"}
    given: dict[str, Any] = {"message": "hi", "message_id": "m1", "session_id": "s", "store": store}
    await run(GREETER, images=[image], user_id="ada", llm=ScriptedModel(["hello"]), **given)
    again = await run(GREETER, images=[image], user_id="ada", llm=ScriptedModel([]), **given)
    assert again.response == "hello"
    with pytest.raises(InputError, match="another message"):
        await run(GREETER, user_id="ada", llm=ScriptedModel([]), **given)
    with pytest.raises(SessionAccessDeniedError):  # a stranger does not learn that there is such a message
        await run(GREETER, user_id="eve", llm=ScriptedModel([]), **given)

    open_to_all = {**given, "session_id": "open"}
    await run(GREETER, message="first", session_id="open", store=store, llm=ScriptedModel(["1"]))
    await run(GREETER, user_id="ada", llm=ScriptedModel(["2"]), **open_to_all)
    with pytest.raises(InputError, match="another message"):
        await run(GREETER, user_id="bob", llm=ScriptedModel([]), **open_to_all)


async def test_a_message_whose_call_waits_for_approval_returns_what_waits(store: SQLiteStore) -> None:
    effects: list[str] = []

    @tool(approval=Approval())
    def post(text: str) -> str:
        effects.append(text)
        return "posted"

    agent = Agent("poster", tools=[post])
    given: dict[str, Any] = {"session_id": "s", "store": store}
    model = ScriptedModel([calls("c1"), "done"])
    first = await run(agent, message="hi", message_id="m1", llm=model, **given)
    again = await run(agent, message="hi", message_id="m1", llm=model, **given)
    assert is_interrupted(first)
    assert is_interrupted(again)
    assert again.approvals == first.approvals
    ended = await resume(
        agent, again.checkpoint, decisions=[{"gate": "c1", "decision": "approve"}], llm=model, store=store
    )
    last = await run(agent, message="hi", message_id="m1", llm=model, **given)
    assert [ended.response, last.response, effects] == ["done", "done", ["c1"]]


async def test_an_earlier_message_is_answered_again_while_a_later_one_waits(store: SQLiteStore) -> None:
    @tool(approval=Approval())
    def post(text: str) -> str:
        return "posted"

    agent = Agent("poster", tools=[post])
    given: dict[str, Any] = {"session_id": "s", "store": store}
    await run(agent, message="one", message_id="m1", llm=ScriptedModel(["1"]), **given)
    assert is_interrupted(await run(agent, message="two", message_id="m2", llm=ScriptedModel([calls("c1")]), **given))
    again = await run(agent, message="one", message_id="m1", llm=ScriptedModel([]), **given)
    assert (again.status, again.response) == ("complete", "1")
    assert again.checkpoint.pending_tool_use_id == "c1"
    with pytest.raises(InputError, match="waits for approval"):
        await run(agent, message="three", message_id="m3", llm=ScriptedModel([]), **given)


async def test_hooks_are_not_called_again_for_a_message_that_was_answered(store: SQLiteStore) -> None:
    ended: list[str] = []
    agent = Agent("greeter", on_start=lambda ctx: ended.append("start"), on_complete=lambda ctx: ended.append("end"))
    for _ in range(2):
        await run(
            agent, message="hi", message_id="m1", session_id="s", store=store, llm=ScriptedModel(["hello", "again"])
        )
    assert ended == ["start", "end"]


async def test_the_answer_is_the_one_that_fits_the_output(store: SQLiteStore) -> None:
    agent = Agent("counter", output=int)
    given: dict[str, Any] = {"session_id": "s", "store": store}
    await run(agent, message="one", message_id="m1", llm=ScriptedModel(["first", "1"]), **given)
    await run(agent, message="two", message_id="m2", llm=ScriptedModel(["2"]), **given)
    again = await run(agent, message="one", message_id="m1", llm=ScriptedModel([]), **given)
    assert (again.response, again.output) == ("1", 1)


async def test_a_stream_ends_with_the_result_again(store: SQLiteStore) -> None:
    told = []
    for answers in (["hello"], []):
        events = run_streaming(
            GREETER, message="hi", message_id="m1", session_id="s", store=store, llm=ScriptedModel(answers)
        )
        told.append([event async for event in events][-1])
    assert [event.response for event in told if isinstance(event, RunEnded)] == ["hello", "hello"]


async def test_of_two_runs_with_the_same_message_one_conflicts_and_then_gets_the_result(store: SQLiteStore) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def answer(messages: Any, tools: Any) -> str:
        begun.set()
        await may_end.wait()
        return "hello"

    given: dict[str, Any] = {"message": "hi", "message_id": "m1", "session_id": "s", "store": store}
    model = ScriptedModel(answer)
    first = asyncio.create_task(run(GREETER, llm=model, **given))
    await begun.wait()
    with pytest.raises(SessionConflictError, match="has a run in flight"):
        await run(GREETER, llm=model, **given)
    may_end.set()
    assert (await first).response == (await run(GREETER, llm=model, **given)).response == "hello"
    assert len(model.calls) == 1


@pytest.mark.parametrize("wrong", ["", "x" * 201, "a\nb", "a\0b", "\ud800", 7, "\u200b"], ids=ascii)
async def test_an_id_is_a_line_of_1_to_200_characters(store: SQLiteStore, wrong: Any) -> None:
    with pytest.raises(InputError, match="message_id must be 1 to 200 printable characters"):
        await run(GREETER, message="hi", message_id=wrong, session_id="s", store=store, llm=ScriptedModel([]))
    assert await store.load_session("s") is None


@pytest.mark.parametrize("right", ["x" * 200, "größe 🎉 '; DROP TABLE", "None", "signal/1", "%_*"])
async def test_any_other_text_is_an_id(store: SQLiteStore, right: str) -> None:
    model = ScriptedModel(["hello"])
    for _ in range(2):
        ended = await run(GREETER, message="hi", message_id=right, session_id="s", store=store, llm=model)
        assert ended.response == "hello"


async def test_an_id_needs_a_message_a_session_and_a_store_that_keeps_it(store: SQLiteStore) -> None:
    with pytest.raises(InputError, match="message_id= goes with a message="):
        await run(GREETER, message_id="m1", session_id="s", store=store, llm=ScriptedModel([]))
    with pytest.raises(InputError, match="message_id= needs session_id="):
        await run(GREETER, message="hi", message_id="m1", store=store, llm=ScriptedModel([]))
    with pytest.raises(SessionNotFoundError):
        await run(
            GREETER,
            message="hi",
            message_id="m1",
            session_id="s",
            create_session=False,
            store=store,
            llm=ScriptedModel([]),
        )

    custom: Any = OnlySessions(store)
    await run(GREETER, message="hi", session_id="s", store=custom, llm=ScriptedModel(["hello"]))
    with pytest.raises(InputError, match="message_id= needs a store with load_reply and save_reply"):
        await run(GREETER, message="hi", message_id="m1", session_id="s", store=custom, llm=ScriptedModel([]))


class OnlySessions:
    """A store of someone's own, with the methods of `AgentStore` alone."""

    def __init__(self, store: SQLiteStore) -> None:
        for name in ("hold", "let_go", "load_session", "save_session", "load_messages", "append_messages"):
            setattr(self, name, getattr(store, name))
        for name in ("append_messages_atomic", "prune_messages", "delete_session", "list_sessions"):
            setattr(self, name, getattr(store, name))
        self.durable = True


async def test_ids_travel_with_a_checkpoint(store: SQLiteStore) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects)])
    first = await run(agent, message="hi", message_id="m1", llm=ScriptedModel([calls("c1"), "done"]))
    moved = first.checkpoint.model_dump_json()
    for given in ({"checkpoint": moved}, {}):  # the session keeps what the checkpoint has brought
        again = await run(
            agent, message="hi", message_id="m1", session_id="s", store=store, llm=ScriptedModel([]), **given
        )
        assert (again.response, effects) == ("done", ["c1"])
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done"]


async def test_a_message_costs_no_more_statements_than_one(store: SQLiteStore) -> None:
    counted = Counting(store)
    costs = []
    for given in ({}, {"message_id": "m1"}):
        for text in ("a", "b", "c"):
            before = len(counted.asked)
            ids: dict[str, Any] = {"message_id": f"m-{text}"} if given else {}
            await run(
                GREETER, message=text, session_id=f"s{len(given)}", store=counted, llm=ScriptedModel(["x"]),
                max_stored_messages=2, **ids,
            )  # fmt: skip
            costs.append(len(counted.asked) - before)
    without, with_ids = costs[:3], costs[3:]
    # One to look for it among those that were pruned, one to keep one that is pruned.
    assert [more - less for more, less in zip(with_ids, without, strict=True)] == [0, 1, 2]


class Counting:
    """A store that counts what it is asked."""

    def __init__(self, store: Any) -> None:
        self.asked: list[str] = []
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        async def ask(*args: Any, **options: Any) -> Any:
            self.asked.append(name)
            return await found(*args, **options)

        return ask


@tool
async def fails(text: str) -> str:
    raise ValueError("no")


LIMITS: dict[str, tuple[Loop, Any]] = {
    "max-iterations": (Loop(max_iterations=2), "post"),
    "stuck": (Loop(stuck_threshold=2), "fails"),
    "token-budget-exhausted": (Loop(token_budget=150), "post"),
    "cost-budget-exhausted": (Loop(cost_budget=0.015), "post"),
    "diminishing-returns": (Loop(diminishing_returns=DiminishingReturns(calls=2, min_tokens=1_000)), "post"),
}


@pytest.mark.parametrize("status", LIMITS)
async def test_a_message_whose_run_ended_at_a_limit_returns_that_ending_and_runs_no_further(
    driver: Driver, status: str
) -> None:
    effects: list[str] = []
    loop, asked = LIMITS[status]
    agent = Agent("poster", tools=[poster(effects), fails], loop=loop)

    def answer(messages: Any, tools: Any) -> Any:
        if messages[-1].content == "next":
            return "done"
        used = {"input_tokens": 100, "output_tokens": 1}
        return {**calls(f"c{len(messages)}", tool=asked), "text": "at it", "usage": used, "cost": 0.01}

    model = ScriptedModel(answer)
    ended = await driver.run(agent, model, message_id="m1")
    response = "" if status == "stuck" else "at it"
    assert (ended.status, ended.response, len(model.calls)) == (status, response, 2)
    for keeps in (200, 2):
        again = await driver.run(agent, model, message_id="m1", max_stored_messages=keeps)
        assert (again.status, again.response, again.iterations, again.messages) == (status, response, 0, ended.messages)
    assert len(model.calls) == 2
    roomy = Agent("poster", tools=[poster(effects), fails])
    assert (await driver.run(roomy, model, message="next", message_id="m2", max_stored_messages=2)).response == "done"
    again = await driver.run(agent, model, message_id="m1")
    assert (again.status, again.response, shape(again.messages)) == (status, response, ["user next", "assistant done"])
    assert len(model.calls) == 3


async def test_a_run_that_was_cut_off_after_its_ending_continues_without_its_message(driver: Driver) -> None:
    agent = Agent("poster", tools=[poster([])], loop=Loop(max_iterations=1))
    model = ScriptedModel([calls("c1"), "done"])
    assert (await driver.run(agent, model, message_id="m1")).status == "max-iterations"
    went = await driver.run(agent, model, message=None)
    assert (went.status, went.response) == ("complete", "done")
    assert (await driver.run(agent, model, message_id="m1")).status == "max-iterations"
