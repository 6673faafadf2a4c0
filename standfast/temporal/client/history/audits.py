"""Puts people's acts, with their edits part by part, on the audit trail before they are done, and then the outcome.

Acts are answers, messages, resumes, settlements, cancellations and starts. The run itself records a decision before it
counts. A row without an outcome belongs to an act that is in progress, or whose process was cut off.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar
from uuid import uuid4

from temporalio.client import Client
from temporalio.service import RPCError

from standfast.agent_loop import Gate, edited_call_digest, edited_digest, value_digest
from standfast.errors import InputError, SessionAccessDeniedError, SessionConflictError, StandfastError, StoreError
from standfast.messages import How, JSONObject, Record, changed_lines, changed_parts, cut, difference_in_words, visible
from standfast.stores.protocol import Act, ActOutcome, AgentStore, DecisionRecord, Ledger, has_ledger
from standfast.temporal.client.runs.descriptions import described, our_run, quoted
from standfast.temporal.client.runs.owners import Run
from standfast.temporal.wire import names
from standfast.temporal.wire.inbox import check_sent_id
from standfast.temporal.wire.inputs import check_names
from standfast.temporal.wire.shown_gates import read_asked
from standfast.temporal.wire.turn_records import read_record

T = TypeVar("T")
_LOG = logging.getLogger("standfast")
_MOST = 4_000  # bytes of the message
_EARLIER = 3  # runs of a session that are searched for an act
_CUT_OFF = "unknown whether it counted: it is in progress, or was cut off"

_LONG = 80  # characters of a text; a longer one is compared by lines
_TURNS = 16  # read at once


class Change(Record):
    """A part of a value that an edit has changed.

    Args:
        path: the keys to the part, joined by dots, with zero-based indexes for arrays; "" for the whole.
        how: "added" if it did not exist before, "removed" if it no longer exists.
    """

    path: str
    how: How = "changed"
    before: Any = None
    after: Any = None

    @property
    def in_words(self) -> str:
        """The change in one line, as `amount: 120 → 80`; a text of several lines only as changed."""
        if self.lines is not None:
            return f"{self.path or 'value'}:"
        return difference_in_words(self.path, self.how, self.before, self.after)

    @property
    def lines(self) -> list[str] | None:
        """The changed lines of a long text, after "- " and "+ ", and some context lines; None for all other values."""
        texts = (self.before, self.after)
        if not all(isinstance(text, str) for text in texts) or not any(
            "\n" in text or len(text) > _LONG for text in texts
        ):
            return None
        return changed_lines(self.before, self.after)


def changes_between(before: Any, after: Any, path: str = "") -> Iterator[Change]:
    """Yield the parts in which two values differ; see `changed_parts`."""
    for at, how, had, has in changed_parts(before, after, path):
        yield Change(path=at, how=how, before=had, after=has)


async def load_changes(store: Ledger, rows: Sequence[DecisionRecord]) -> list[tuple[Change, ...] | None]:
    """Return each decision's changes; None if it is unedited, or the store lacks the value that was shown."""
    edited = [row for row in rows if row.edit is not None]
    calls = [await _calls(store, key, edited) for key in dict.fromkeys(row.journal_key for row in edited)]
    shown = {place: value for found in calls for place, value in found.items()}
    for row in edited:
        shown |= await _gate(store, row, edited)
    places = [(row.journal_key, row.gate, row.digest) for row in rows]
    return [
        tuple(changes_between(shown[place], row.edit)) if row.edit is not None and place in shown else None
        for row, place in zip(rows, places, strict=True)
    ]


_Shown = dict[tuple[str, str, str | None], Any]  # the shown values, by run, gate and digest


async def _gate(store: Ledger, row: DecisionRecord, edited: Iterable[DecisionRecord]) -> _Shown:
    """Return the value that people have been shown at a pipeline's gate: the original, or an earlier edit."""
    try:
        text = await store.load_reply(f"{row.journal_key}/steps/{row.gate}?gate", 0)
        asked: Mapping[str, Any] = {} if text is None else read_asked(row.gate, row.journal_key, text)
    except StandfastError:
        return {}
    if "value" not in asked:
        return {}
    found: _Shown = {}
    here = [one.edit for one in edited if (one.journal_key, one.gate) == (row.journal_key, row.gate)]
    for digest in [one["digest"] for one in (asked, *asked.get("later", ()))]:
        found |= {(row.journal_key, row.gate, edited_digest(digest, edit)): edit for edit in here}
        found[row.journal_key, row.gate, digest] = asked["value"]
    return found


async def _calls(store: Ledger, run: str, edited: Iterable[DecisionRecord]) -> _Shown:
    """Return the arguments of a run's calls that people have edited, by their turns' records.

    An edit may be of an earlier editor's version.
    """
    edits = [(row.gate, row.edit) for row in edited if row.journal_key == run]
    wanted = {(run, row.gate, row.digest) for row in edited if row.journal_key == run}
    found: _Shown = {}
    first = 0
    while wanted - found.keys():
        turns = range(first, first := first + _TURNS)
        texts = await asyncio.gather(*(store.load_reply(run, turn) for turn in turns))
        for turn, text in zip(turns, texts, strict=True):
            if text is None:
                continue
            try:
                gates = read_record(run, turn, text).gates
            except StandfastError:
                return found
            for gate in [Gate.read(question.gate) for question in gates if question.gate is not None]:
                for digest in gate.stages if gate.arguments is not None else ():
                    found[run, gate.name, digest] = gate.arguments
                    for edit in (edit for name, edit in edits if name == gate.name):
                        found[run, gate.name, edited_call_digest(digest, value_digest(edit))] = edit
        if texts[-1] is None:
            break
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class OnRecord:
    """The audit trail that an act is recorded on, and the person who does it.

    Args:
        store: the workers' store, which has the audit trail; None, or a store in memory, for no audit trail.
        by: the person who does it.
        id: identifies the act: with the same id it is done once.
    """

    store: AgentStore | None
    by: str | None = None
    id: str = field(default_factory=lambda: uuid4().hex)

    def __post_init__(self) -> None:
        check_names({"by": self.by}, "audit trail")
        check_sent_id(self.id)


@dataclass(frozen=True, slots=True)
class Doing:
    """An act that a person is about to do.

    Args:
        of: the id of the call, or the name of the waiting item.
        comment: the message, or the reason.
    """

    act: Act
    of: str = ""
    comment: str | None = None


class Entry(DecisionRecord):
    """An entry of the audit trail: a decision, or an act with its outcome.

    Args:
        at: for an act, the time at which it was intended.
        ended: the time at which its outcome was recorded.
        changes: of an edit, the parts that differ from the value shown to its sender; None if the store no longer has
            that value.
    """

    ended: datetime | None = None
    changes: tuple[Change, ...] | None = None

    @property
    def in_words(self) -> str:
        """The act or decision as text, and whether it counted."""
        done = self.decision + (", edited" if self.edit is not None else "")
        if self.standing is not None:
            done += f" in advance, by the standing approval {self.standing}"
        if self.remembered is not None:
            done += f", and later calls like it by the standing approval {self.remembered}"
        match self.outcome:
            case "intended":
                return f"{done} ({_CUT_OFF})"
            case "unknown":
                return f"{done} (not confirmed: {self.refused})"
        return done if self.refused is None else f"{done} (did not count: {self.refused})"


def doing_of(signal: str, data: Mapping[str, Any]) -> Doing | None:
    """Return the act of a signal, for the audit trail; None if the run records it itself."""
    match signal:
        case names.MESSAGE:
            return Doing("message", comment=data["text"])
        case names.ANSWER:
            return Doing("answer", data.get("tool_call_id", ""), data["text"])
        case names.RESUME:
            model = f"with the model {data['model']}" if "model" in data else None
            skips = "skip" if data["action"] == "skip" else None
            why = ": ".join(filter(None, [skips, model, data.get("reason")])) or None
            return Doing("abort" if data["action"] == "abort" else "resume", data.get("name", ""), why)
        case names.RESOLVE:
            result = json.dumps(data["result"], ensure_ascii=False) if data.get("result") is not None else None
            why = ": ".join(filter(None, [data["decision"], result, data.get("reason")]))
            return Doing("resolve", data["tool_call_id"], why)
    return None


# --- doing ---


async def do_on_record(
    client: Client, workflow_id: str, doing: Doing, on: OnRecord, do: Callable[[bool], Awaitable[T]], *, is_new: bool
) -> T | None:
    """Do something to a run, once it is on the audit trail; return None if it is recorded there as done.

    Args:
        do: does it; its argument tells whether it may have been done before.
        is_new: whether its id was never used before.

    Raises:
        InputError: the run is not a standfast run.
        StoreError: the act could not be put on the audit trail, and so it was not done.
    """
    if not has_ledger(on.store):
        return await do(not is_new)
    keys = [(await our_run(client, workflow_id)).raw_info.first_run_id]
    if not is_new:
        keys += await _earlier(client, workflow_id, keys[0])
    row = await _begun(on.store, keys, doing, on)
    if row.is_done:
        return None
    try:
        done = await do(row.is_repeated)
    except (StandfastError, RPCError) as error:
        await row.end(outcome_of(error), str(error))
        raise
    await row.end("done")
    return done


async def start_on_record(
    client: Client,
    workflow_id: str,
    message: str | None,
    on: OnRecord | None,
    start: Callable[[], Awaitable[Run]],
    *,
    once: bool,
) -> Run:
    """Start a run, once the start is on the audit trail, under the run's workflow id: the run has no other key yet.

    If this act has already started a run, that run is returned, and not started again: the run itself names the act.

    Args:
        message: the run's first message or input.
        start: starts the run, or sends the message to the run in flight.
        once: whether a workflow id has at most one run.

    Raises:
        StoreError: the act could not be put on the audit trail, and so the run was not started.
    """
    if on is None:
        return await start()
    if not has_ledger(on.store):
        return await _start_once(client, workflow_id, on.id, start)
    row = await _begun(on.store, [workflow_id], Doing("start", comment=message), on)
    if row.is_done:
        return client.get_workflow_handle(workflow_id, result_type=JSONObject)
    try:
        run = await _start_once(client, workflow_id, on.id, start, is_repeated=row.is_repeated)
    except SessionConflictError as error:
        if row.is_repeated and once:  # it has started that run, and was cut off before it recorded the start
            await _end_start(client, row, "start", client.get_workflow_handle(workflow_id))
        else:
            await row.end("unknown" if row.is_repeated else "refused", str(error))
        raise
    except (StandfastError, RPCError) as error:
        await row.end(outcome_of(error), str(error))
        raise
    await _end_start(client, row, "start" if run.first_execution_run_id or run.run_id else "message", run)
    return run


def started_by(on: OnRecord | None) -> dict[str, str]:
    """Return the entries of a run's memo that name the act that starts it."""
    return {} if on is None else {names.START_MEMO: on.id}


async def _start_once(
    client: Client, workflow_id: str, act_id: str, start: Callable[[], Awaitable[Run]], *, is_repeated: bool = False
) -> Run:
    if is_repeated and (begun := await _started(client, workflow_id, act_id)) is not None:
        return begun
    try:
        return await start()
    except SessionConflictError:
        if (begun := await _started(client, workflow_id, act_id)) is None:
            raise
        return begun


async def _started(client: Client, workflow_id: str, act_id: str) -> Run | None:
    """Return the run that an act has started, among the last runs of a workflow id, or None."""
    with suppress(InputError):  # there is none
        last = await described(client, workflow_id)
        earlier = client.list_workflows(f"WorkflowId = {quoted(workflow_id)}", limit=_EARLIER + 1)
        for run in [last, *[one async for one in earlier]]:
            if await run.memo_value(names.START_MEMO, default=None) == act_id:
                first = run.raw_info.first_run_id or run.run_id
                return client.get_workflow_handle(workflow_id, run_id=first, result_type=JSONObject)
    return None


async def _end_start(client: Client, row: "_Row", act: Act, run: Run) -> None:
    """Record that a run was started, or received the message: among the rows of the run, and beside the intent."""
    try:
        key = run.first_execution_run_id or run.run_id or (await our_run(client, run.id)).raw_info.first_run_id
    except (StandfastError, RPCError) as error:
        row.log("done", error)
        return
    await row.end("done", act=act, journal_key=key)
    await row.end("done", act=act)


@dataclass(frozen=True, slots=True)
class _Row:
    """The row of an act that is about to be done, or was done before.

    Args:
        is_repeated: whether the row already existed.
        is_done: whether the act is known to be done.
    """

    store: Ledger
    row: DecisionRecord
    is_repeated: bool
    is_done: bool

    async def end(
        self, outcome: ActOutcome, why: str | None = None, *, act: Act | None = None, journal_key: str | None = None
    ) -> None:
        """Record the outcome of the act. If recording fails, the act is not undone."""
        came = {"outcome": outcome, "refused": None if why is None else cut(why, _MOST), "comment": None, "key": None}
        where = {
            "decision": act or self.row.decision,
            "journal_key": journal_key or self.row.journal_key,
            "at": datetime.now(UTC),
        }
        try:
            await self.store.record_decision(self.row.model_copy(update=came | where))
        except StandfastError as error:
            self.log(outcome, error)

    def log(self, outcome: ActOutcome, error: Exception) -> None:
        told = (self.row.by or "somebody", self.row.decision, self.row.journal_key, outcome, str(error))
        _LOG.error("%s: '%s' to %s has the outcome '%s', which is not on the audit trail: %s", *map(visible, told))


async def _begun(store: Ledger, keys: Sequence[str], doing: Doing, on: OnRecord) -> _Row:
    """Record an act before it is done: under the run of these keys that already has it, otherwise under the first."""
    try:
        key = keys[0]
        for earlier in keys[1:]:
            key = earlier if await _rows(store, earlier, on.id) else key
        said = None if doing.comment is None else cut(doing.comment, _MOST)
        row = DecisionRecord(
            journal_key=key,
            gate=doing.of,
            at=datetime.now(UTC),
            decision=doing.act,
            by=on.by,
            comment=said,
            key=on.id,
            act_id=on.id,
            outcome="intended",
        )
        await store.record_decision(row)
        rows = await _rows(store, key, on.id)
    except StandfastError as error:
        raise StoreError(f"Nothing was sent, because it could not first be put on the audit trail: {error}") from error
    # The run refuses an id that belongs to another act.
    is_same = (rows[0].decision, rows[0].gate, rows[0].comment) == (row.decision, row.gate, row.comment)
    return _Row(store, row, rows[0].at != row.at, is_same and any(one.outcome == "done" for one in rows))


async def _rows(store: Ledger, journal_key: str, act_id: str) -> list[DecisionRecord]:
    return [row for row in await store.load_decisions(journal_key) if row.act_id == act_id]


async def _earlier(client: Client, workflow_id: str, journal_key: str) -> list[str]:
    """Return the keys of a session's runs before this one."""
    runs = client.list_workflows(f"WorkflowId = {quoted(workflow_id)}", limit=_EARLIER + 1)
    keys = [run.raw_info.first_run_id or run.run_id async for run in runs]
    return [key for key in dict.fromkeys(keys) if key != journal_key]


def outcome_of(error: Exception) -> Literal["refused", "unknown"]:
    """Return the outcome of an act that has raised: whether it is known not to count."""
    return "refused" if isinstance(error, InputError | SessionAccessDeniedError | SessionConflictError) else "unknown"


# --- reading ---


async def load_acts(store: AgentStore | None, journal_keys: Sequence[str], workflow_id: str) -> list[Entry]:
    """Return the audit trail of a run, by the time at which each act was intended.

    Args:
        journal_keys: its own, and that of the first of the runs that it continues; empty if that run does not exist.
        workflow_id: the key of the acts that were meant to start it. Acts that started another of its runs are omitted.
    """
    if not has_ledger(store):
        return []
    rows = [row for key in dict.fromkeys(journal_keys) for row in await store.load_decisions(key)]
    own = {row.act_id for row in rows}
    acts: dict[str, list[DecisionRecord]] = {}
    for row in [*await store.load_decisions(workflow_id), *rows]:
        if row.act_id is not None:
            acts.setdefault(row.act_id, []).append(row)
    found = [Entry.model_validate(dict(row)) for row in rows if row.act_id is None]
    for act_id, of_act in acts.items():
        entry = _entry(of_act)
        if act_id in own or entry.outcome != "done" or not journal_keys:
            found.append(entry)
    changed = zip(found, await load_changes(store, found), strict=True)
    found = [row.model_copy(update={"changes": changes}) for row, changes in changed]
    return sorted(found, key=lambda row: row.at)


Pending = Callable[[str], Awaitable[Sequence[Mapping[str, Any]]]]


@asynccontextmanager
async def saying_who_was_first(
    client: Client, store: AgentStore | None, workflow_id: str, gate: str, pending: Pending
) -> AsyncIterator[None]:
    """Add the person who has decided at the gate to the error of a decision that is too late.

    Args:
        pending: returns the waiting items of a run.
    """
    try:
        yield
    except InputError as error:
        if (first := await _who_was_first(client, store, workflow_id, gate, pending)) is None:
            raise
        raise InputError(f"{error}; {first}") from error


async def _who_was_first(
    client: Client, store: AgentStore | None, workflow_id: str, gate: str, pending: Pending
) -> str | None:
    """Return as text who has decided at a gate; None if it is open, or the person is unknown."""
    if not has_ledger(store):
        return None
    with suppress(StandfastError, RPCError):  # the reason why a decision does not count is known without this
        if gate in [item["name"] for item in await pending(workflow_id)]:
            return None
        run = await our_run(client, workflow_id)
        rows = await store.load_decisions(run.raw_info.first_run_id or run.run_id)
        counted = [row for row in rows if row.gate == gate and row.refused is None and row.act_id is None]
        if counted:
            done = "approved" if counted[-1].decision == "approve" else "rejected"
            return f"{counted[-1].by or 'someone'} has {done} it"
    return None


def _entry(rows: Sequence[DecisionRecord]) -> Entry:
    """Return one act from its rows, in their order: as done if it ever was, otherwise with its last outcome."""
    last = next((row for row in rows if row.outcome == "done"), rows[-1])
    came = {name: getattr(last, name) for name in ("decision", "outcome", "refused")}
    return Entry.model_validate({**dict(rows[0]), **came, "ended": None if last.outcome == "intended" else last.at})
