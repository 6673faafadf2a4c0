"""Follows a run: its events, in order from its histories, and its model's words as they arrive.

This works without a worker: the histories have the events, and the store has values that are too long for them.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace

from temporalio.client import Client

from standfast.errors import InputError, StandfastError
from standfast.events import Event, RunEnded, ToolEnded, ToolLost, ToolStarted, TurnEnded
from standfast.messages import ToolCall, read_json
from standfast.runtime.streamed_answers import Heard, load_more, news_of, until_more
from standfast.stores.protocol import AgentStore, has_ledger, has_partial_answers
from standfast.temporal.client.history.histories import entries, executions
from standfast.temporal.client.history.history_events import History
from standfast.temporal.client.runs.ended_runs import next_run
from standfast.temporal.wire.inputs import PREVIEW
from standfast.temporal.wire.turn_records import edit_place, read_record

_ID = re.compile(r"(?P<run>[0-9a-fA-F-]{1,64})/(?P<number>[1-9][0-9]{0,8})\.(?P<place>[0-9]{1,6})")
_MOST = 65_536  # bytes of a result that an event has in full
_EVERY = 0.1  # seconds between two checks for words without notification, and for an execution that continues


@dataclass(frozen=True, slots=True, order=True)
class _Position:
    number: int
    place: int


def read_event_id(text: str) -> tuple[str, _Position]:
    """Return the execution and the position from an event's id.

    Raises:
        InputError: it is not an event's id.
    """
    if (found := _ID.fullmatch(text)) is None:
        raise InputError(f"after must be the id of an event, got {text!r:.80}")
    return found["run"], _Position(int(found["number"]), int(found["place"]))


def _is_after(event: Event, position: _Position | None) -> bool:
    return position is None or event.id is None or read_event_id(event.id)[1] > position


class RunEvents:
    """The events of a run.

    Args:
        store: the workers' store; if None, long answers are cut, and a model's words arrive only when its answer is
            complete.
        after: the id of an event; reads the events after it. With `after`, the run is the one that the event belongs
            to.

    Raises:
        InputError: `after` is not the id of an event.
    """

    def __init__(self, client: Client, store: AgentStore | None, workflow_id: str, after: str | None = None) -> None:
        self._client, self._store, self._workflow_id = client, store, workflow_id
        self._after = None if after is None else read_event_id(after)
        self._history: History | None = None
        self._begun = asyncio.Event()

    async def so_far(self) -> list[Event]:
        """Return the past events."""
        return [event async for event in self._read(follow=False)]

    async def follow(self) -> AsyncGenerator[Event, None]:
        """Yield past and further events until the run has ended."""
        told: asyncio.Queue[Event | None] = asyncio.Queue()

        async def read() -> None:
            try:
                async for event in self._read(follow=True):
                    told.put_nowait(event)
            finally:
                told.put_nowait(None)

        reading = asyncio.create_task(read())
        listening = asyncio.create_task(self._listen(told))
        try:
            while (event := await told.get()) is not None:
                yield event
            await reading
        finally:
            reading.cancel()
            listening.cancel()
            await asyncio.gather(reading, listening, return_exceptions=True)

    # --- histories ---

    async def _read(self, *, follow: bool) -> AsyncIterator[Event]:
        run_id, position = (None, None) if self._after is None else self._after
        runs = [one.run_id for one in await executions(self._client, self._workflow_id, run_id)]
        at = 0 if run_id is None else runs.index(run_id)
        while at < len(runs):
            is_over = False
            async for event in self._of(runs[at], position, follow=follow):
                is_over = isinstance(event, RunEnded)
                if _is_after(event, position):
                    yield event
            position, at = None, at + 1
            following = None if self._history is None else self._history.next
            if following is not None and following not in runs:  # a server takes a moment to list new executions
                runs.insert(at, following)
            elif at == len(runs) and follow and not is_over:
                runs.append(await self._next(runs[-1]))

    async def _next(self, run_id: str) -> str:
        """Return the execution that continues one that continued as new, or was reset."""
        while True:
            runs = [one.run_id for one in await executions(self._client, self._workflow_id, run_id)]
            if run_id in runs and runs[-1] != run_id:
                return runs[runs.index(run_id) + 1]
            if (found := await next_run(self._client, self._workflow_id, run_id)) not in (None, run_id):
                return str(found)
            await asyncio.sleep(_EVERY)

    async def _of(self, run_id: str, position: _Position | None, *, follow: bool) -> AsyncIterator[Event]:
        self._history = history = History(run_id)
        async for entry in entries(self._client, self._workflow_id, run_id, follow=follow):
            events, whole = history.read(entry), dict[str, ToolCall]()
            if any(history.lacking):
                await self._know(history)
            self._begun.set()
            for event in events:
                if isinstance(event, ToolStarted | ToolEnded | ToolLost) and event.call.id in whole:
                    event = replace(event, call=whole[event.call.id])
                match event:
                    case TurnEnded():
                        event = await self._whole(history, event, is_wanted=_is_after(event, position))
                        whole |= {call.id: call for call in event.calls}
                        yield event
                    case ToolEnded() if event.size is not None and event.size <= _MOST:
                        yield await self._whole_result(history, event)
                    case _:
                        yield event

    async def _know(self, history: History) -> None:
        """Give a history the full values that it took over from another: the calls of the turn, and people's edits."""
        (has_calls, edits), history.lacking = history.lacking, (False, ())
        if not has_ledger(self._store):
            return
        run = history.journal_key
        with suppress(StandfastError):  # as in `_whole`
            kept = await self._store.load_reply(run, history.turn) if has_calls else None
            if kept is not None:
                history.know(history.turn, read_record(run, history.turn, kept).calls)
            for digest in edits:
                if (edit := await self._store.load_reply(edit_place(run, digest), 0)) is not None:
                    history.know_edit(digest, read_json(edit))

    async def _whole(self, history: History, event: TurnEnded, *, is_wanted: bool) -> TurnEnded:
        """Return an answer with its full text, thoughts and arguments, of which a history has only the beginning."""
        # A history has the full final answer, but only the beginning of the text beside calls.
        is_cut = event.text.endswith("…") or (bool(event.calls) and len(event.text) >= PREVIEW)
        is_cut = is_cut or any(isinstance(call.arguments, str) for call in event.calls)
        is_cut = is_cut or (is_wanted and (event.thoughts or "").endswith("…"))
        if not is_cut or not has_ledger(self._store):
            return event
        with suppress(StandfastError):  # it is deleted, or the store is away: the beginning is better than nothing
            kept = await self._store.load_reply(history.journal_key, event.turn)
            if kept is not None:
                message = read_record(history.journal_key, event.turn, kept).message
                history.know(event.turn, message.tool_calls or ())
                thoughts = event.thoughts if message.reasoning is None else message.reasoning.text or None
                return replace(event, text=message.content, calls=message.tool_calls or (), thoughts=thoughts)
        return event

    async def _whole_result(self, history: History, event: ToolEnded) -> ToolEnded:
        """Return the end of a call with its full result, if the ledger has it."""
        turn, key = history.ended.get(event.call.id, (0, ""))
        if not turn or not has_ledger(self._store):
            return event
        with suppress(StandfastError):
            kept = await self._store.load_reply(history.journal_key, turn)
            scope = "" if kept is None else read_record(history.journal_key, turn, kept).key
            entry = (await self._store.load_entries(scope, [key])).get(key)
            written = None if entry is None or entry.result is None else read_json(entry.result)
            if isinstance(written, dict) and isinstance(text := written.get(event.outcome), str):
                return replace(event, text=text)
        return event

    # --- words ---

    async def _listen(self, told: "asyncio.Queue[Event | None]") -> None:
        """Merge the words of the model into the events of its turn."""
        if not has_partial_answers(self._store):
            return
        await self._begun.wait()
        assert self._history is not None
        heard = Heard()
        async with news_of(self._store, self._history.journal_key) as news:
            while True:
                now = self._history
                heard = heard if heard.latest[0] == now.turn else Heard()
                with suppress(StandfastError):  # the words are yielded as soon as the store is readable
                    for piece, then in await load_more(self._store, now.journal_key, heard):
                        now = self._history  # which may have continued in the meantime
                        if piece.turn == now.turn and not now.said and not now.is_copy:
                            told.put_nowait(piece)
                            heard = then
                await until_more(news, _EVERY)
