"""What a model says is told while it says it, beside the run: from where one is, by attempt, and never in a history."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest
from support.pages import LOCAL, browser, served
from support.temporal_runs import Run, Temporal, ask_once, clerk, pending, result, until

from standfast import Agent, DefinitionError, Loop, Message, ModelError, RetryPolicy
from standfast.llm import ToolDescription
from standfast.stores import PartialAnswer, SQLiteStore
from standfast.temporal import StandfastPlugin
from standfast.testing import ScriptedModel
from standfast.web import create_app
from standfast.web.live_updates import position, read_position
from standfast.web.runs import is_said_now


class Speaker:
    """A model that says a piece whenever it is let; an exception among them is raised."""

    def __init__(self, *pieces: str | Exception) -> None:
        self._pieces = list(pieces)
        self._let = asyncio.Queue[None]()  # used on the handlers' loop alone
        self._loop: asyncio.AbstractEventLoop | None = None
        self.waits = False

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any) -> Any:
        raise AssertionError("It is asked to stream")

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any
    ) -> AsyncIterator[Any]:
        self._loop, said = asyncio.get_running_loop(), ""
        while self._pieces:
            piece = self._pieces.pop(0)
            if isinstance(piece, Exception):
                raise piece
            said += piece
            yield piece
            await self._let.get()
        yield {"text": said or "Hello"}  # an answer with nothing in it would be asked for again

    def go_on(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._let.put_nowait, None)


def talker(**options: Any) -> Agent:
    return Agent("talker", **options)


async def said(temporal: Temporal, run: Run, text: str) -> PartialAnswer:
    """Return what is said of a run once it is this."""
    found: list[PartialAnswer] = []

    async def is_said() -> bool:
        part = await temporal.store.load_partial(run.first_execution_run_id or "")
        found[:] = [] if part is None else [part]
        return bool(found) and found[0].text == text

    await until(is_said)
    return found[0]


async def test_words_are_told_as_they_come_and_forgotten_when_the_answer_is_kept(temporal: Temporal) -> None:
    model = Speaker("Hel", "lo")
    async with temporal.worker(agent := talker(), llm=model, stream=True):
        run = await temporal.start(agent)
        first = await said(temporal, run, "Hel")
        model.go_on()
        await said(temporal, run, "Hello")
        since = await temporal.store.load_partial(run.first_execution_run_id or "", after=first)
        assert since is not None
        assert (since.offset, since.text, since.turn) == (3, "lo", 1)
        model.go_on()
        assert (await result(run))["response"] == "Hello"
        assert await temporal.store.load_partial(run.first_execution_run_id or "") is None
        quick = await temporal.start(agent, session="quick")
        await result(quick)
        events = [[event.event_type for event in (await one.fetch_history()).events] for one in (run, quick)]
        assert events[0] == events[1]


@pytest.mark.slow
async def test_another_attempt_says_it_from_the_beginning(temporal: Temporal) -> None:
    model = Speaker("Hel", ModelError("the line broke", transient=True), "Good", " day")
    patient = Loop(model_retry=RetryPolicy(initial_interval=0.01))
    async with temporal.worker(agent := talker(loop=patient), llm=model, stream=True):
        run = await temporal.start(agent)
        first = await said(temporal, run, "Hel")
        model.go_on()
        await said(temporal, run, "Good")
        again = await temporal.store.load_partial(run.first_execution_run_id or "", after=first)
        assert again is not None
        assert (again.offset, again.text) == (0, "Good")
        assert again.attempt > first.attempt
        model.go_on()
        await said(temporal, run, "Good day")
        model.go_on()
        assert (await result(run))["response"] == "Good day"


async def test_a_model_is_not_asked_to_stream_if_nobody_may_look_on(temporal: Temporal) -> None:
    async with temporal.worker(agent := talker(), llm=ScriptedModel(["hello"])):
        assert (await temporal.run(agent))["response"] == "hello"


async def test_a_model_that_cannot_stream_is_asked_as_ever(temporal: Temporal) -> None:
    class Plain:
        async def chat(self, messages: Any, tools: Any, **settings: Any) -> dict[str, str]:
            return {"text": "hello"}

    async with temporal.worker(agent := talker(), llm=Plain(), stream=True):
        assert (await temporal.run(agent))["response"] == "hello"


async def test_a_page_that_is_open_is_told_the_words_and_goes_on_where_it_was(temporal: Temporal) -> None:
    model = Speaker("<Hel", "lo\u202e>")
    app = create_app(temporal.client, access=LOCAL, store=temporal.store)
    async with temporal.worker(agent := talker(), llm=model, stream=True), served(app) as address:
        run = await temporal.start(agent)
        await said(temporal, run, "<Hel")
        async with httpx.AsyncClient(base_url=address) as client:
            page = (await client.get(f"/runs/{run.id}")).text
            assert ">&lt;Hel</p>" in page
            words = f"/changes?of=/runs/{run.id}&words={run.first_execution_run_id}"
            heard = await first_words(client, words)
            assert heard["data"] == {"offset": 0, "text": "<Hel"}
            model.go_on()
            await said(temporal, run, "<Hello\u202e>")
            more = await first_words(client, words, {"Last-Event-ID": heard["id"]})
            assert more["data"] == {"offset": 4, "text": "lo‹U+202E›>"}
            assert (await first_words(client, words, {"Last-Event-ID": "no/such/place"}))["data"]["offset"] == 0
        model.go_on()
        await result(run)


async def first_words(client: httpx.AsyncClient, at: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the first event that tells words."""
    async with asyncio.timeout(60), client.stream("GET", at, headers=headers) as events:
        event: dict[str, Any] = {}
        async for line in events.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                event = {}
            event[name] = json.loads(value) if name == "data" and value else value
            if not line and event.get("event") == "words":
                return event
    raise AssertionError("no words")


def test_where_a_page_is_is_written_and_read() -> None:
    part = PartialAnswer(turn=3, attempt="2026-01-01T00:00:00.000001.001", offset=4, text="abc")
    read = read_position(position(part))
    assert read is not None
    assert (read.turn, read.attempt, read.end) == (3, part.attempt, 7)
    assert [read_position(text) for text in ("", "1", "x/a/1", "1/a/x", "-1/a/1")] == [None] * 5


def test_a_store_that_cannot_tell_words_is_refused(temporal: Temporal) -> None:
    class Older(SQLiteStore):
        add_partial = None  # type: ignore[assignment]

    with pytest.raises(DefinitionError, match="cannot keep partial answers"):
        StandfastPlugin(agents=[talker()], store=Older(":memory:"), llm=ScriptedModel([]), stream=True)


WORDS = PartialAnswer(turn=3, attempt="2026-01-01T00:00:00.000001.002", offset=0, text="abc")
CALLS = {"status": "running", "turn": 2, "running": []}


@pytest.mark.parametrize(
    ("seen", "are_said"),
    [
        ({"state": CALLS}, True),
        ({"state": CALLS, "retries": [{"activity": "call_model", "attempt": 2}]}, True),
        ({"state": CALLS, "retries": [{"activity": "call_model", "attempt": 3}]}, False),
        ({"state": {**CALLS, "turn": 3}}, False),
        ({"state": {**CALLS, "status": "paused"}}, False),
        ({"state": {**CALLS, "running": [{"tool": "look"}]}}, False),
        ({"unreachable": "no worker answers"}, False),
    ],
)
def test_words_are_said_now_if_the_model_is_asked_and_by_its_last_attempt(seen: Any, are_said: bool) -> None:
    assert is_said_now(WORDS, seen) is are_said


@pytest.mark.slow
async def test_a_page_does_not_show_the_words_of_a_worker_that_has_died(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        run = await temporal.start(clerk)
        await pending(run)
    await temporal.store.add_partial(run.first_execution_run_id or "", WORDS)
    async with browser(temporal) as page:
        assert '<section id="says" aria-labelledby="now" hidden>' in (await page.get(f"/runs/{run.id}")).text
