"""Makes the ledger keys of tool calls from the transcript, so that all runs of both drivers find the same entries.

A call's entries are stored under the message that requests it. Each dispatch has a separate entry, made only after the
previous one was abandoned, so later runs find the last. A call that is answered without being run first gets an entry
with the answer, so that no run of the session starts it later.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal, cast
from uuid import uuid4

from pydantic_core import to_json

from standfast.agent_loop import ToolFacts, left_open, left_unanswered
from standfast.errors import InputError, SessionConflictError
from standfast.messages import ToolCall
from standfast.stores.kept_values import read_kept_object
from standfast.stores.protocol import AgentStore, Ledger, LedgerEntry, RunningCall, has_ledger, largest_row
from standfast.tools import Failed, KeptState, Outcome, Returned, Unknown
from standfast.tools.calls import WrittenOutcome, call_key, read_outcome, write_outcome

NOT_RUN = "answered without being run"  # owner of the entries of such calls
CONTRADICTED = "one check found that it had happened, and another that it had not"
_BATCH = 8  # nearly all calls are dispatched once
_UNSAID = '{"cancelled": "Not run: its run ended before it could say why"}'

_ROOM = 20_000  # bytes for the rest of the row, such as keys and the names of people


def within_row(outcome: Outcome, tool: str, store: object) -> Outcome:
    """Return an outcome of a tool in a form that a store can keep, as JSON in its ledger, and as a message."""
    largest = largest_row(store)
    if largest is None or not isinstance(outcome, Returned):
        return outcome
    largest -= 0 if outcome.state is None else len(to_json(outcome.state.text))
    if 6 * len(outcome.content) + _ROOM <= largest or (size := len(to_json(outcome.content)) + _ROOM) <= largest:
        return outcome
    return Failed(
        f'Tool "{tool}" ran, but its result was lost: {size - _ROOM:,} bytes as JSON, more than the '
        f"{largest - _ROOM:,} that the store keeps of a result"
    )


async def last_dispatch(store: Ledger, scope: str, position: int, call_id: str) -> int:
    """Return the number of the last dispatch of a call that has an entry; 0 if none has."""
    return (await _dispatched(store, scope, position, call_id))[0]


async def has_started(store: Ledger, scope: str, position: int, call_id: str) -> bool:
    """Return whether a call was ever started; a started call can no longer be rejected."""
    entry = await last_entry(store, scope, position, call_id)
    return entry is not None and entry.state != "abandoned" and entry.owner != NOT_RUN


async def last_entry(store: Ledger, scope: str, position: int, call_id: str) -> LedgerEntry | None:
    """Return the entry of a call's last dispatch; None if it has none."""
    return (await _dispatched(store, scope, position, call_id))[1]


async def answer_without_run(store: Ledger, scope: str, position: int, call: ToolCall, answer: str) -> LedgerEntry:
    """Enter the answer to a call that will not run, before the model reads it; return the entry that counts.

    The entry of a call that has run, or may be running, is unchanged.

    Args:
        answer: the written outcome.
    """
    while True:
        last, entry = await _dispatched(store, scope, position, call.id)
        if entry is not None and entry.state != "abandoned":
            return await with_answer(store, scope, call_key(position, call.id, last), entry, answer)
        key = call_key(position, call.id, last + 1)
        try:
            await store.claim(scope, key, owner=NOT_RUN, arguments_hash=hash_of(call))
        except InputError:  # another run has just claimed it, with edited arguments
            continue


async def answer_all(
    store: Ledger,
    scope: str,
    positions: Mapping[str, int],
    answers: Sequence[tuple[ToolCall, Outcome]],
    tools: Mapping[str, ToolFacts],
) -> dict[str, Outcome]:
    """Enter the answers to calls that do not run; return, by call id, the outcomes that count."""
    counts = {}
    for call, outcome in answers:
        answer = write_outcome(outcome)
        entry = await answer_without_run(store, scope, positions[call.id], call, to_json(answer).decode())
        if entry.result is None:  # a Temporal run has started it, and was lost
            counts[call.id] = left_open(tools.get(call.name))
        else:
            counts[call.id] = read_outcome(told(read_result(entry), answer))
    return counts


def told(known: WrittenOutcome, answer: WrittenOutcome) -> WrittenOutcome:
    """Return what the model reads of a call that is answered without being run: its known outcome.

    A question, or an unknown outcome, may end with the answer. A cancel only means that no answer came: the call
    itself has run up to its question.
    """
    if "asked" in known and "cancelled" in answer:
        return write_outcome(left_unanswered(read_outcome(known)))
    ends_question = "asked" in known or ("unknown" in known and "unknown" in answer)
    return answer if ends_question else known


async def record_found(
    store: Ledger,
    scope: str,
    position: int,
    call: ToolCall,
    found: tuple[int, LedgerEntry],
    result: WrittenOutcome,
    *,
    owner: str,
    running: RunningCall | None = None,
) -> tuple[int, LedgerEntry]:
    """Record an outcome that is not from the call's handler; return the dispatch and the entry that count.

    One write replaces the claim with the outcome, so the call cannot be given up in between. If it has already been
    given up, the outcome takes the next dispatch. The returned entry has no result if that dispatch is claimed: a
    handler may be running, although the effect exists.

    Args:
        found: the last dispatch of the call and its entry, before the outcome was looked up.
        owner: claims the next dispatch, if necessary.
    """
    text, state, (dispatch, entry) = to_json(result).decode(), state_of(result), found
    while entry.result is None:
        key = call_key(position, call.id, dispatch)
        if entry.state == "abandoned":
            dispatch += 1
            key = call_key(position, call.id, dispatch)
            with suppress(InputError):  # another run has claimed it, with edited arguments
                await store.claim(scope, key, owner=owner, arguments_hash=hash_of(call), running=running)
            entry = (await store.load_entries(scope, [key]))[key]
            if entry.owner != owner:
                if entry.state == "abandoned":
                    continue
                break
        if await store.finish(scope, key, owner=str(entry.owner), state=state, result=text):
            return dispatch, entry.model_copy(update={"state": state, "result": text})
        entry = (await store.load_entries(scope, [key]))[key]
    return dispatch, entry


def state_of(result: WrittenOutcome) -> Literal["done", "failed"]:
    """Return the state of a ledger entry with this result."""
    return "failed" if result.keys() & {"failed", "unknown"} else "done"


async def results_of(
    store: Ledger, scope: str, positions: Mapping[str, int], calls: Iterable[ToolCall]
) -> dict[str, WrittenOutcome]:
    """Return, by id, the calls' results in the ledger; a question, or an unknown outcome, does not count as one."""
    keys = {call_key(positions[call.id], call.id): call.id for call in calls}
    entries = {keys[key]: entry for key, entry in (await store.load_entries(scope, list(keys))).items()}
    found = {}
    for call_id, first in entries.items():
        last = first if first.state != "abandoned" else await last_entry(store, scope, positions[call_id], call_id)
        if last is not None and last.result is not None:
            result = read_result(last)
            if not result.keys() & {"asked", "unknown"}:
                found[call_id] = result
    return found


def read_result(entry: LedgerEntry) -> WrittenOutcome:
    """Return the written outcome of a call that has one."""
    return cast(WrittenOutcome, read_kept_object("the result of a call in its ledger", entry.result or "{}"))


async def with_answer(
    store: Ledger, scope: str, key: str, entry: LedgerEntry, answer: str = _UNSAID, *, owner: str = NOT_RUN
) -> LedgerEntry:
    """Return an entry after the answer was entered, if it has none and belongs to `owner`.

    A worker may die after it has claimed a call in order to answer it.
    """
    if entry.state != "claimed" or entry.owner != owner:
        return entry
    if await store.finish(scope, key, owner=owner, state="failed", result=answer):
        return entry.model_copy(update={"state": "failed", "result": answer})
    return (await store.load_entries(scope, [key]))[key]


def hash_of(call: ToolCall) -> str:
    """Return the hash of a call's arguments, in the form of its entry."""
    return hashlib.blake2b(to_json(call.arguments), digest_size=16).hexdigest()


async def _dispatched(store: Ledger, scope: str, position: int, call_id: str) -> tuple[int, LedgerEntry | None]:
    """Return the number of a call's last dispatch that has an entry, and the entry; 0 if none has."""
    last, entry = 0, None
    while True:
        keys = [call_key(position, call_id, number) for number in range(last + 1, last + 1 + _BATCH)]
        found = await store.load_entries(scope, keys)
        last += len(found)
        entry = found.get(call_key(position, call_id, last), entry)
        if len(found) < _BATCH:
            return last, entry


async def claim_next(store: Ledger, scope: str, position: int, call_id: str, *, owner: str) -> bool:
    """Claim an unclaimed call, and fence off later claims; return whether the owner has the claim."""
    dispatch = max(1, await last_dispatch(store, scope, position, call_id))
    entry = await store.settle(scope, call_key(position, call_id, dispatch))
    if entry.state == "abandoned":
        key = call_key(position, call_id, dispatch + 1)
        entry = await store.claim(scope, key, owner=owner, arguments_hash="")
    return entry.owner == owner


class Fence:
    """Lets only one run, of either driver, run a call that an earlier run may have run but did not.

    Args:
        write: makes a write that only one run of the session can make.
        store: the store with the ledger in which workers would claim the call, if it has a ledger.
        scope: the scope of the calls in it.
        positions: the positions of the calls, by id.
    """

    def __init__(
        self, write: Callable[[], Awaitable[None]], store: AgentStore | None, scope: str, positions: Mapping[str, int]
    ) -> None:
        self._write, self._scope, self._positions = write, scope, positions
        self._ledger = store if has_ledger(store) else None
        self._writing = asyncio.Lock()
        self._is_written = False

    async def last(self, call_id: str) -> tuple[int, LedgerEntry | None]:
        """Return the number of a call's last dispatch and its entry. Call it before `verify`."""
        if self._ledger is None:
            return 0, None
        return await _dispatched(self._ledger, self._scope, self._positions[call_id], call_id)

    async def record(self, call: ToolCall, last: tuple[int, LedgerEntry | None], outcome: Outcome) -> Outcome:
        """Record the outcome that `verify` found, so that the call does not run; return the outcome that counts.

        Args:
            last: the value of `last` before `verify` ran.
        """
        if self._ledger is None:
            return outcome
        position, (dispatch, entry) = self._positions[call.id], last
        if entry is None:
            dispatch, entry = 1, await self._ledger.settle(self._scope, call_key(position, call.id))
        known, written = (dispatch, entry), write_outcome(outcome)
        _, entry = await record_found(
            self._ledger, self._scope, position, call, known, written, owner=f"a run in process {uuid4().hex}"
        )
        if entry.result is None:
            return Unknown(CONTRADICTED)
        counts = read_outcome(found := read_result(entry))
        # Only the ledger has a change of the agent's state, which `read_outcome` leaves out.
        if isinstance(counts, Returned) and "state" in found:
            return replace(counts, state=KeptState(*found["state"]))
        return counts

    async def cross(self, call_id: str, last: tuple[int, LedgerEntry | None]) -> None:
        """Keep every other run from running a call from now on: it has not happened.

        Args:
            last: the value of `last` before the outcome was looked up; later claims are not in it.

        Raises:
            SessionConflictError: another run is running it, or has recorded its outcome.
        """
        async with self._writing:
            if not self._is_written:
                await self._write()
            self._is_written = True
        if self._ledger is None:
            return
        position, (dispatch, entry) = self._positions[call_id], last
        key = call_key(position, call_id, max(1, dispatch))
        if entry is None:
            entry = await self._ledger.settle(self._scope, key)
        elif entry.state == "claimed":
            entry = await self._ledger.abandon(self._scope, key, owner=str(entry.owner))
        is_free = entry.state == "abandoned" or (entry.result is not None and "unknown" in read_result(entry))
        following, owner = call_key(position, call_id, max(1, dispatch) + 1), f"a run in process {uuid4().hex}"
        if is_free:
            with suppress(InputError):  # another run has claimed it, with the hash of its arguments
                entry = await self._ledger.claim(self._scope, following, owner=owner, arguments_hash="")
        if entry.owner != owner:
            raise SessionConflictError(f"Call {call_id} of {self._scope} was run by another run in the meantime")
