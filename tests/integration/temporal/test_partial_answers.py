"""A model's words are streamed beside the run: from any position, by attempt, and never in a history."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest
from support.pages import LOCAL, browser, served
from support.temporal_runs import Run, Temporal, ask_once, clerk, pending, result, until

from standfast import (
    Agent,
    DefinitionError,
    Loop,
    Message,
    ModelError,
    Reasoning,
    ReasoningDelta,
    RetryPolicy,
    TextDelta,
)
from standfast.llm import ToolDescription
from standfast.runtime.streamed_answers import Heard, load_more
from standfast.stores import PartialAnswer, SQLiteStore
from standfast.stores.partial_answers import reasoning_key
from standfast.temporal import StandfastPlugin
from standfast.temporal.activities.models import answers
from standfast.testing import ScriptedModel
from standfast.web import create_app
from standfast.web.page.live_updates import position, read_position
from standfast.web.page.runs import is_said_now


class Speaker:
    """A model that says a piece whenever it is let; an exception among them is raised."""

    def __init__(self, *pieces: str | ReasoningDelta | Exception) -> None:
        self._pieces = list(pieces)
        self._let = asyncio.Queue[None]()  # used on the handlers' loop alone
        self._loop: asyncio.AbstractEventLoop | None = None
        self.waits = False

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any) -> Any:
        raise AssertionError("It is asked to stream")

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any
    ) -> AsyncIterator[Any]:
        self._loop, said, thought = asyncio.get_running_loop(), "", ""
        while self._pieces:
            piece = self._pieces.pop(0)
            if isinstance(piece, Exception):
                raise piece
            said, thought = (said + piece, thought) if isinstance(piece, str) else (said, thought + piece.text)
            yield piece
            await self._let.get()
        # An answer with nothing in it would be asked for again.
        yield {"text": said or "Hello", "reasoning": thinking(thought) if thought else None}

    def go_on(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._let.put_nowait, None)


def thinking(text: str) -> Reasoning:
    return Reasoning(provider="speaker", blocks=({"type": "thinking", "thinking": text, "signature": "SIGNED"},))


def talker(**options: Any) -> Agent:
    return Agent("talker", **options)


async def said(temporal: Temporal, run: Run, text: str, key: str | None = None) -> PartialAnswer:
    """Return what is said of a run, or is there under a key, once it is this."""
    found: list[PartialAnswer] = []

    async def is_said() -> bool:
        part = await temporal.store.load_partial(key or run.first_execution_run_id or "")
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


async def test_words_of_a_hostile_length_are_streamed_up_to_a_limit(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MOST_WORDS", 5)
    model = Speaker(ReasoningDelta("Hm, "), ReasoningDelta("hm, hm"), "Hello", " Ada")
    async with temporal.worker(agent := talker(), llm=model, stream=True):
        run = await temporal.start(agent)
        thoughts = reasoning_key(run.first_execution_run_id or "")
        for key, text in ((thoughts, "Hm, "), (thoughts, "Hm, h"), (None, "Hello")):
            await said(temporal, run, text, key)
            model.go_on()
        model.go_on()
        assert (await result(run))["response"] == "Hello Ada"


async def test_a_model_is_not_asked_to_stream_if_nobody_may_look_on(temporal: Temporal) -> None:
    async with temporal.worker(agent := talker(), llm=ScriptedModel(["hello"])):
        assert (await temporal.run(agent))["response"] == "hello"


async def test_a_model_that_cannot_stream_is_asked_as_ever(temporal: Temporal) -> None:
    class Plain:
        async def chat(self, messages: Any, tools: Any, **settings: Any) -> dict[str, str]:
            return {"text": "hello"}

    async with temporal.worker(agent := talker(), llm=Plain(), stream=True):
        assert (await temporal.run(agent))["response"] == "hello"


async def test_a_page_that_is_open_is_told_the_words_and_continues_where_it_was(temporal: Temporal) -> None:
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


async def test_a_page_that_is_open_is_told_thoughts_and_begins_again_with_another_attempt(temporal: Temporal) -> None:
    model = Speaker(ReasoningDelta("<Hm"), ModelError("the line broke", transient=True), ReasoningDelta("So"), "Yes")
    app = create_app(temporal.client, access=LOCAL, store=temporal.store)
    agent = talker(loop=Loop(model_retry=RetryPolicy(initial_interval=0.01)))
    async with temporal.worker(agent, llm=model, stream=True), served(app) as address:
        run = await temporal.start(agent)
        key = reasoning_key(run.first_execution_run_id or "")
        await said(temporal, run, "<Hm", key)
        async with httpx.AsyncClient(base_url=address) as client:
            page = (await client.get(f"/runs/{run.id}")).text
            assert "data-thoughts>&lt;Hm</p>" in page
            words = f"/changes?of=/runs/{run.id}&words={run.first_execution_run_id}"
            heard = await first_words(client, words, kind="thoughts")
            assert heard["data"] == {"offset": 0, "text": "<Hm"}
            model.go_on()
            await said(temporal, run, "So", key)
            again = await first_words(client, words, {"Last-Event-ID": heard["id"]}, "thoughts")
            assert again["data"] == {"offset": 0, "text": "So"}
            model.go_on()
            await said(temporal, run, "Yes")
            more = await first_words(client, words, {"Last-Event-ID": again["id"]})
            assert more["data"] == {"offset": 0, "text": "Yes"}
        model.go_on()
        assert (await result(run))["response"] == "Yes"
        assert await temporal.store.load_partial(key) is None


async def first_words(
    client: httpx.AsyncClient, at: str, headers: dict[str, str] | None = None, kind: str = "words"
) -> dict[str, Any]:
    """Return the first event that tells words, or thoughts."""
    async with asyncio.timeout(60), client.stream("GET", at, headers=headers) as events:
        event: dict[str, Any] = {}
        async for line in events.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                event = {}
            event[name] = json.loads(value) if name == "data" and value else value
            if not line and event.get("event") == kind:
                return event
    raise AssertionError("no words")


@pytest.mark.parametrize("has", [{"text"}, {"thoughts"}, {"text", "thoughts"}, set[str]()])
def test_where_a_page_is_is_written_and_read(has: set[str]) -> None:
    part = PartialAnswer(turn=3, attempt="2026-01-01T00:00:00.000001.001", offset=4, text="abc")
    then = part.model_copy(update={"offset": 7, "text": ""})
    assert read_position(position(Heard(**dict.fromkeys(has, part)))) == Heard(**dict.fromkeys(has, then))


def test_any_other_place_is_the_beginning() -> None:
    texts = ("", "1", "x/a/1", "1/a/x", "-1/a/1", ";", ";;", ";1/a/x", "1/a/" + "9" * 16)
    assert [read_position(text) for text in texts] == [Heard()] * len(texts)


def test_a_store_that_cannot_tell_words_is_refused(temporal: Temporal) -> None:
    class Older(SQLiteStore):
        add_partial = None  # type: ignore[assignment]

    with pytest.raises(DefinitionError, match="cannot keep partial answers"):
        StandfastPlugin(agents=[talker()], store=Older(":memory:"), llm=ScriptedModel([]), stream=True)


def told(text: str, turn: int, attempt: str, offset: int = 0) -> PartialAnswer:
    return PartialAnswer(turn=turn, attempt=attempt, offset=offset, text=text)


# What an answer's thoughts and text get, one after the other, and what a viewer hears who looks after each.
HEARD: dict[str, list[tuple[str, PartialAnswer, list[tuple[type, str, int]]]]] = {
    "thoughts, then text": [
        ("thoughts", told("Hm", 1, "a"), [(ReasoningDelta, "Hm", 0)]),
        ("thoughts", told("m.", 1, "a", 2), [(ReasoningDelta, "m.", 2)]),
        ("text", told("Yes", 1, "a"), [(TextDelta, "Yes", 0)]),
    ],
    "another attempt thinks something else": [
        ("thoughts", told("Hm", 1, "a"), [(ReasoningDelta, "Hm", 0)]),
        ("text", told("Yes", 1, "a"), [(TextDelta, "Yes", 0)]),
        ("thoughts", told("No", 1, "b"), [(ReasoningDelta, "No", 0), (TextDelta, "", 0)]),
        ("text", told("Never", 1, "b"), [(TextDelta, "Never", 0)]),
    ],
    "another attempt does not think": [
        ("thoughts", told("Hm", 1, "a"), [(ReasoningDelta, "Hm", 0)]),
        ("text", told("No", 1, "b"), [(ReasoningDelta, "", 0), (TextDelta, "No", 0)]),
        ("text", told("pe", 1, "b", 2), [(TextDelta, "pe", 2)]),
        ("thoughts", told("So", 1, "b"), [(ReasoningDelta, "So", 0)]),
    ],
    "a late word of a lost attempt": [
        ("text", told("Yes", 1, "b"), [(TextDelta, "Yes", 0)]),
        ("thoughts", told("Hm", 1, "a"), []),
        ("thoughts", told("Hm", 1, "b"), [(ReasoningDelta, "Hm", 0)]),
    ],
    "another turn": [
        ("thoughts", told("Hm", 1, "b"), [(ReasoningDelta, "Hm", 0)]),
        ("text", told("Yes", 2, "a"), [(ReasoningDelta, "", 0), (TextDelta, "Yes", 0)]),
    ],
}


@pytest.mark.parametrize("case", HEARD)
@pytest.mark.parametrize("looks_on", [True, False], ids=["always", "at the end"])
async def test_a_viewer_hears_the_last_attempt_alone(case: str, looks_on: bool) -> None:
    store, heard = SQLiteStore(":memory:"), Heard()
    shown = {ReasoningDelta: "", TextDelta: ""}
    for kind, part, wanted in HEARD[case]:
        await store.add_partial(reasoning_key("run") if kind == "thoughts" else "run", part)
        if not looks_on and part is not HEARD[case][-1][1]:
            continue
        found = await load_more(store, "run", heard)
        if looks_on:
            assert [(type(piece), piece.text, piece.offset) for piece, _ in found] == wanted
        for piece, then in found:
            heard = then
            shown[type(piece)] = shown[type(piece)][: piece.offset] + piece.text
    assert await load_more(store, "run", heard) == []
    whole = {ReasoningDelta: "", TextDelta: ""}
    last = max((part.turn, part.attempt) for _, part, _ in HEARD[case])
    for kind, part, _ in HEARD[case]:
        if (part.turn, part.attempt) == last:
            whole[ReasoningDelta if kind == "thoughts" else TextDelta] += part.text
    assert shown == whole
    await store.close()


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
    assert is_said_now(Heard(text=WORDS), seen) is is_said_now(Heard(thoughts=WORDS), seen) is are_said


@pytest.mark.slow
async def test_a_page_does_not_show_the_words_of_a_worker_that_has_died(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        run = await temporal.start(clerk)
        await pending(run)
    await temporal.store.add_partial(run.first_execution_run_id or "", WORDS)
    async with browser(temporal) as page:
        assert '<section id="says" aria-labelledby="now" hidden>' in (await page.get(f"/runs/{run.id}")).text
