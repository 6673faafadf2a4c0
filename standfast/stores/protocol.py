"""The Protocols of stores: sessions, a ledger of calls and replies if durable, and what else a store may do.

Anyone may write a store; `standfast.testing.store_suite` has the checks that it must pass.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Literal, Protocol, runtime_checkable

from typing_extensions import TypeIs, get_protocol_members

from standfast.agent_loop import StandingApproval
from standfast.checkpoints import Question
from standfast.errors import DefinitionError, InputError, MemoryStoreNotDurableError
from standfast.messages import Message, Record, Usage, usage_of
from standfast.stores.deletion import Deletion
from standfast.stores.partial_answers import PartialAnswers, PartialNews
from standfast.stores.waits import Waits
from standfast.stores.workers import Workers

SESSION_ID = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.:@+=~-]{0,199}")


def check_session_id(session_id: object, what: str = "session_id") -> str:
    """Return a session id that is safe in paths, SQL, URLs and workflow ids.

    Raises:
        InputError: the id is not 1 to 200 letters, digits and `_ . : @ + = ~ -`, the first a letter, digit or `_`.
    """
    if isinstance(session_id, str) and SESSION_ID.fullmatch(session_id):
        return session_id
    shown = repr(session_id)
    raise InputError(
        f"{what} must be 1 to 200 characters of a-z A-Z 0-9 _ . : @ + = ~ - and begin with a letter, digit or _, "
        f"got {shown if len(shown) <= 80 else shown[:80] + '…'}"
    )


LONGEST_TENANT = 100


def check_tenant_id(tenant_id: object) -> str | None:
    """Return a tenant's id that is safe wherever a session's is. None means no tenant.

    Raises:
        InputError: the id is not 1 to 100 of the characters of session ids.
    """
    if tenant_id is None:
        return None
    if isinstance(tenant_id, str) and len(tenant_id) <= LONGEST_TENANT and SESSION_ID.fullmatch(tenant_id):
        return tenant_id
    raise InputError(
        f"tenant_id must be 1 to {LONGEST_TENANT} characters of a-z A-Z 0-9 _ . : @ + = ~ - and begin with a letter, "
        f"digit or _, got {repr(tenant_id)[:80]}"
    )


def session_key_of(tenant_id: str | None, session_id: str) -> str:
    """Return a session's key in a store, which also ends its workflow id. Tenants do not share sessions.

    Session ids cannot contain these characters, so an id never matches a tenant's session by accident or design.
    """
    return session_id if tenant_id is None else f"@{tenant_id}/{session_id}"


def session_id_of(key: str) -> str:
    """Return the session id of a `session_key_of` key."""
    return key.rpartition("/")[2]


class Session(Record):
    """One conversation with one agent.

    Args:
        id: as `session_key_of` returns it.
        state: the agent's state as JSON.
        user_id, tenant_id: the owner, checked when the session is resumed. None is not a user.
        questions: open questions; None if none.
        workflow_id, journal_key: of the Temporal run that wrote last; they locate its calls in the ledger. None after
            an in-process run.
        usage: the usage of its messages, including pruned ones; None if none reported any.
        last_seq: the number of the last message ever written. Set by the store.
        version: the number of writes to the session, with or without messages. Set by the store.
        created_at: UTC. The first save's time is kept; if it is None, the store sets it. Together with the id, it
            distinguishes a session from a later one with the same id.
        updated_at: UTC. Set by the store.
    """

    id: str
    agent_name: str
    state: str = "{}"
    user_id: str | None = None
    tenant_id: str | None = None
    questions: tuple[Question, ...] | None = None
    workflow_id: str | None = None
    journal_key: str | None = None
    usage: Usage | None = None
    last_seq: int = 0
    version: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None

    @property
    def key(self) -> str:
        """The key that distinguishes it from a later session with the same id. It is the same for every run of either
        driver.
        """
        return f"{self.id}@{self.created_at:%Y%m%dT%H%M%S%f}"

    def used_by(self, messages: Sequence[Message]) -> Usage | None:
        """Return its usage after adding these messages."""
        used = usage_of(messages)
        return self.usage if used is None else used + self.usage


@dataclass(frozen=True, slots=True)
class Append:
    """Messages for a session, and the session after they are added.

    Args:
        write_key: names this write. Repeating the key changes nothing.
        expected_seq: the number of the message that they follow.
    """

    session: Session
    messages: Sequence[Message]
    write_key: str
    expected_seq: int


LedgerState = Literal["claimed", "done", "failed", "abandoned"]


class LedgerEntry(Record):
    """The ledger's entry for one tool call.

    Args:
        state: "claimed" while its handler may be running; "done" or "failed" with a result; "abandoned" if it was given
            up before it started, so that it never runs.
        owner: the attempt that claimed it, in a process.
        arguments_hash: the hash of the arguments at the claim.
        result: the text for the model, once there is one.
        claimed_at: the time of its owner's claim, UTC. Set by the store.
    """

    state: LedgerState
    owner: str | None = None
    arguments_hash: str | None = None
    result: str | None = None
    claimed_at: datetime | None = None


class RunningCall(Record):
    """The record of an activity that is running now, or whose worker has died.

    Args:
        owner: the attempt of a process, as in the ledger.
        worker: the process. A store `hold`s its name as long as the process lives.
        task_token: identifies the attempt when its outcome is reported to Temporal; base64.
    """

    owner: str
    worker: str
    task_token: str
    workflow_id: str
    run_id: str


Act = Literal["answer", "message", "resume", "abort", "resolve", "cancel", "start", "delete"]
ActOutcome = Literal["intended", "done", "refused", "unknown"]


class DecisionRecord(Record):
    """A row of the audit trail, which never changes: a decision at a gate, even one that does not count, or another act
    of a person. An act has one row that is written before it, and one with its outcome.

    Args:
        journal_key: the key of the pipeline's or agent's run; for the start of a run, also its workflow id.
        gate: the path of the step, the id of the tool call or the name of the waiting item; empty if the row is about
            the run.
        at: when it arrived, UTC.
        decision: at a gate "approve" or "reject"; for another act, a word for it.
        digest: the digest of the page that the person saw, if the decision named it; else of the gate's content.
        edit: the person's replacement, as JSON data.
        refused: the reason why it did not count, or is not known to count.
        key: makes it one row, however often it is recorded. If None, each recording is a new row.
        act_id: the same in all rows of one act. None at a gate, and in rows of older versions, which wrote only one
            row, after the act.
        outcome: for an act, "intended" before it, then its outcome.
        standing: the id of the standing approval that made the decision in advance; None for a live decision.
        remembered: the id of the standing approval that the decision gives for later calls.
    """

    journal_key: str
    gate: str
    at: datetime
    decision: Literal["approve", "reject"] | Act
    by: str | None = None
    comment: str | None = None
    digest: str | None = None
    edit: Any = None
    refused: str | None = None
    key: str | None = None
    act_id: str | None = None
    outcome: ActOutcome | None = None
    standing: str | None = None
    remembered: str | None = None


class AgentStore(Protocol):
    """Sessions and their messages. Every method raises `StoreError` when the database refuses.

    The rules of all methods, including which may be repeated, are in docs/stores.md, "Rules for a custom store". In
    short: of several contradicting writers, one wins and all get the same answer, since the writing statement compares
    the writer's expectation. Clocks do not decide anything. An object may be used from several event loops and threads
    at once. Its first operation opens it, even after `close`. A store has `close` if there is something to close.
    """

    durable: bool
    """Whether writes, once acknowledged, outlive the process."""

    @property
    def shares_holds(self) -> bool:
        """Whether other processes see a hold, and the hold ends with its process. Only then does a free hold prove a
        death.
        """
        ...

    async def identity(self) -> str:
        """Return the store's random id, created with the store. It is the same for all objects over its data, now and
        later.
        """
        ...

    async def hold(self, session_id: str) -> bool:
        """Hold a session for one run until `let_go`, or the death of the process; False if another run holds it.

        A living holder that loses its hold, for example with its connection, may come back before another gets it. Once
        another has it, the former holder's writes to the session, and calls begun with the worker's name, are refused.
        """
        ...

    async def let_go(self, session_id: str) -> None:
        """End a hold of this object. Another store's hold stays."""
        ...

    async def load_session(self, session_id: str) -> Session | None:
        """Return a session, or None."""
        ...

    async def save_session(self, session: Session) -> None:
        """Create or update a session. The agent's name and the creation time of the first save stay."""
        ...

    async def load_messages(self, session_id: str, *, after: int = 0) -> list[Message]:
        """Return the messages in order, after a number; none for an unknown session."""
        ...

    async def append_messages(self, session_id: str, messages: Sequence[Message], session: Session) -> None:
        """Append to a saved session. System messages are left out. Numbering continues from the highest number ever
        used.
        """
        ...

    async def append_messages_atomic(
        self,
        session_id: str,
        messages: Sequence[Message],
        session: Session,
        *,
        write_key: str | None = None,
        expected_seq: int | None = None,
        expected_version: int | None = None,
    ) -> int:
        """Save the session and append, both or neither, and return the number of the session's last message.

        Args:
            write_key: names this write. Repeating the key changes nothing, as long as its messages are stored, or, for
                a write without messages, until the next write.
            expected_seq: the last number known to the writer.
            expected_version: the session's version known to the writer, 0 for a new one. It also reveals writes without
                messages.

        Raises:
            SessionConflictError: another writer has written since, or created the session again, or another Temporal
                run than the session's `journal_key` names is at work on it (see `Workers.begin_work`).
            MemoryStoreNotDurableError: the store is not durable.
        """
        ...

    async def prune_messages(self, session_id: str, keep: int) -> None:
        """Keep at most the last `keep` messages, cut before a user message; the last turn always stays whole."""
        ...

    async def delete_session(self, session_id: str) -> None:
        """Delete a session and its messages, if it exists; see `Deletion` for everything else that belongs to it."""
        ...

    async def list_sessions(
        self, *, agent_name: str | None = None, user_id: str | None = None, limit: int | None = None
    ) -> list[Session]:
        """Return sessions that match all given arguments, the last updated first."""
        ...


@runtime_checkable
class Ledger(Protocol):
    """A durable store's record of tool calls and model calls, so that none happens twice.

    The scope of a call names the message that requests it, so that every run of its session finds the same entry. In a
    pipeline, the scope names the run by its journal key. The call key names the call's place there, and the number of
    its dispatch.
    """

    async def claim(
        self, scope: str, call_key: str, *, owner: str, arguments_hash: str, running: RunningCall | None = None
    ) -> LedgerEntry:
        """Claim an unclaimed call, and return its entry. The call is yours if the entry has your `owner`.

        Args:
            running: kept with the claim, until its owner calls `finish` or `end_call`.

        Raises:
            InputError: the call was claimed with other arguments.
        """
        ...

    async def take_over(self, scope: str, call_key: str, *, owner: str) -> LedgerEntry:
        """Claim a claimed call for another owner, to run it again: only for a call that is safe to retry."""
        ...

    async def finish(
        self, scope: str, call_key: str, *, owner: str, state: Literal["done", "failed"], result: str
    ) -> bool:
        """Record the result of a call that `owner` has claimed, once or again. Return False if `owner` has lost it."""
        ...

    async def abandon(self, scope: str, call_key: str, *, owner: str) -> LedgerEntry:
        """Give up a call that `owner` has claimed and that has not happened. Return its entry, then "abandoned".

        A later claimer must not run it, and its owner can no longer record a result. An entry with another owner, or
        with a result, is unchanged.
        """
        ...

    async def begin_call(self, running: RunningCall) -> None:
        """Record that an activity without a claim is running, until its owner calls `end_call`."""
        ...

    async def end_call(self, owner: str) -> None:
        """Delete the record of an activity that has ended, if there is one."""
        ...

    async def running_calls(self) -> list[RunningCall]:
        """Return the activities that are running, or whose worker has died."""
        ...

    async def settle(self, scope: str, call_key: str) -> LedgerEntry:
        """Return a call's entry. If there is none, abandon the call first, so that a late starter does not run it."""
        ...

    async def load_entries(self, scope: str, call_keys: Sequence[str]) -> dict[str, LedgerEntry]:
        """Return the entries that exist, by call key."""
        ...

    async def append_reply(self, appends: Sequence[Append], *, journal_key: str, turn: int, reply: str) -> str:
        """Store a model's reply and make the appends in order, all or nothing.

        Returns the stored reply. If it is a different one, nothing was appended: append that reply's messages.

        Raises:
            SessionConflictError: another writer has written to the session since.
        """
        ...

    async def save_reply(self, journal_key: str, turn: int, reply: str) -> str:
        """Store a model's reply unless the turn has one, and return the stored one."""
        ...

    async def load_reply(self, journal_key: str, turn: int) -> str | None:
        """Return the stored reply of a turn, or None."""
        ...

    async def record_decision(self, record: DecisionRecord) -> None:
        """Add a decision to the audit trail, unless there is one with the same run and key."""
        ...

    async def load_decisions(self, journal_key: str) -> list[DecisionRecord]:
        """Return the decisions of a run in the order of their recording."""
        ...


class DurableStore(AgentStore, Ledger, Workers, Protocol):
    """All methods of a durable store."""


def first_kept_index(roles: Sequence[str], keep: int) -> int:
    """Return the index of the first message to keep: a user message, `keep` or fewer from the end.

    If the last turn alone is longer, it stays whole. A transcript without user messages is cut by count, but never
    between a call and its results.
    """
    if len(roles) <= keep:
        return 0
    turns = [index for index, role in enumerate(roles) if role == "user"]
    fitting = [index for index in turns if len(roles) - index <= keep]
    if fitting:
        return fitting[0]
    if turns:
        return turns[-1]
    first = len(roles) - keep
    while first < len(roles) and roles[first] == "tool":
        first += 1
    return first


class StandingFilter(Record):
    """A filter for standing approvals: all given conditions must hold.

    Args:
        ids: the approval has one of these ids; none match if empty.
        scope_keys: the approval has one of these keys; see `StandingApproval`.
        tenant_id: the approval's tenant; an empty text means no tenant.
        tenants: the approval belongs to one of these tenants; none match if empty.
        person: the session belongs to this person, or this person gave the approval, as `person` returns it.
        run: the run in which the approval was given, by its journal key.
        in_force_at: the approval has not ended by then and was not revoked.
    """

    ids: tuple[str, ...] | None = None
    agent: str | None = None
    tool: str | None = None
    scope_keys: tuple[str, ...] | None = None
    tenant_id: str | None = None
    tenants: tuple[str, ...] | None = None
    person: str | None = None
    run: str | None = None
    in_force_at: datetime | None = None


@runtime_checkable
class StandingApprovals(Protocol):
    """Stores standing approvals, and whether they were revoked."""

    async def give_standing_approval(self, approval: StandingApproval, record: DecisionRecord) -> None:
        """Record a decision and store the standing approval that it gives, both or neither.

        A stored approval is unchanged, even if it was revoked. A memory store does not have an audit trail.
        """
        ...

    async def standing_approvals(self, wanted: StandingFilter, *, limit: int | None = None) -> list[StandingApproval]:
        """Return the matching standing approvals, the last given first."""
        ...

    async def revoke_standing_approval(self, approval_id: str, *, at: datetime, by: str | None) -> None:
        """End a standing approval. An already revoked one is unchanged."""
        ...

    async def forget_standing_approvals(self, before: datetime, *, dry_run: bool = False) -> int:
        """Delete the approvals that ended before, and return their number. `dry_run` only counts them."""
        ...


def is_wanted(wanted: StandingFilter, one: StandingApproval, people: Sequence[str]) -> bool:
    """Whether a standing approval matches a filter.

    Args:
        people: the owner of its session and its giver, each as `person` returns it.
    """
    return (
        (wanted.ids is None or one.id in wanted.ids)
        and wanted.agent in (None, one.agent)
        and wanted.tool in (None, one.tool)
        and (wanted.scope_keys is None or one.scope_key in wanted.scope_keys)
        and wanted.tenant_id in (None, one.tenant_id or "")
        and (wanted.tenants is None or one.tenant_id in wanted.tenants)
        and (wanted.person is None or wanted.person in people)
        and wanted.run in (None, one.run)
        and (wanted.in_force_at is None or one.is_in_force(wanted.in_force_at))
    )


class Placed(Protocol):
    """A store that can detect when its data were restored or copied."""

    async def place(self) -> str:
        """Return an id of the place of its data. It is the same as long as the data stay there, and another once they
        were copied.
        """
        ...


class Journal(Protocol):
    """A store for values that never change; see `Ledger`."""

    async def save_reply(self, journal_key: str, turn: int, reply: str) -> str: ...
    async def load_reply(self, journal_key: str, turn: int) -> str | None: ...


def has_journal(store: object) -> TypeIs[Journal]:
    return _has_methods(store, Journal)


def has_ledger(store: object) -> TypeIs[Ledger]:
    return _has_methods(store, Ledger)


def has_workers(store: object) -> TypeIs[Workers]:
    return _has_methods(store, Workers)


def has_partial_answers(store: object) -> TypeIs[PartialAnswers]:
    return _has_methods(store, PartialAnswers)


def has_partial_news(store: object) -> TypeIs[PartialNews]:
    return _has_methods(store, PartialNews)


def has_deletion(store: object) -> TypeIs[Deletion]:
    return _has_methods(store, Deletion)


def has_waits(store: object) -> TypeIs[Waits]:
    return _has_methods(store, Waits)


def has_standing_approvals(store: object) -> TypeIs[StandingApprovals]:
    return _has_methods(store, StandingApprovals)


def has_place(store: object) -> TypeIs[Placed]:
    return _has_methods(store, Placed)


def largest_row(store: object) -> int | None:
    """Return the largest size of a row of a store in bytes; None if it is larger than any row."""
    return getattr(store, "largest_row", None)


def _has_methods(store: object, protocol: Any) -> bool:
    return all(map(callable, [getattr(store, name, None) for name in _members(protocol)]))


@cache  # a run asks several times a step, and finding the members of a protocol takes 20 µs
def _members(protocol: Any) -> frozenset[str]:
    return get_protocol_members(protocol)


def durable_store(store: Any) -> DurableStore:
    """Return a store that is durable and has a ledger.

    Raises:
        DefinitionError: the argument is not a store, or lacks methods.
        MemoryStoreNotDurableError: it is a memory store.
    """
    if not hasattr(store, "durable"):
        raise DefinitionError(f"store must be a store, such as sqlite_store('standfast.db'), got {store!r:.80}")
    if not store.durable:
        raise MemoryStoreNotDurableError(f"StandfastPlugin needs a durable store, got {store!r:.80}")
    for has, needed in ((has_ledger(store), "Ledger"), (has_workers(store), "Workers")):
        if not has:
            raise DefinitionError(f"store: {store!r:.80} has no ledger: see standfast.stores.{needed}")
    result: DurableStore = store
    return result
