"""The Protocols of stores: sessions and their messages, and, if durable, a ledger of tool calls and model replies.

Anyone may write a store; `standfast.testing.store_suite` has the checks that it has to pass.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, runtime_checkable

from standfast.checkpoints import Question
from standfast.errors import InputError
from standfast.messages import Message, Record, Usage, usage_of
from standfast.stores.workers import Workers

SESSION_ID = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.:@+=~-]{0,199}")


def check_session_id(session_id: object, what: str = "session_id") -> str:
    """Return a session id that is safe in paths, SQL, URLs and workflow ids.

    Raises:
        InputError: it is not 1 to 200 letters, digits and `_ . : @ + = ~ -`, the first a letter, digit or `_`.
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
    """Return a tenant's id that is safe wherever a session's is; None means no tenant.

    Raises:
        InputError: it is not 1 to 100 of the characters of session ids.
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
    """Return the id under which a store has a session, and the end of its workflow id: tenants share no sessions.

    No session id has these characters, so that nobody names the session of a tenant by accident or design.
    """
    return session_id if tenant_id is None else f"@{tenant_id}/{session_id}"


def session_id_of(key: str) -> str:
    """Return the session id in what `session_key_of` returned."""
    return key.rpartition("/")[2]


class Session(Record):
    """One conversation with one agent.

    Args:
        id: as `session_key_of` returns it.
        state: the agent's state as JSON.
        user_id, tenant_id: the owner, checked when the session is resumed; None is nobody's.
        questions: open questions; None if none.
        workflow_id, journal_key: those of the Temporal run that wrote last, by which its calls are found in the
            ledger; None if that was a run in process.
        usage: the usage of its messages, pruned ones included; None if none reported any.
        last_seq: the number of the last message ever written. Set by the store.
        version: how often the session was written, with or without messages. Set by the store.
        created_at: UTC; that of the first save is kept, and set by the store if it is None there. With the id it tells
            a session from a later one with the same id.
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
        """The key that tells it from a later session with the same id; the same for every run of either driver."""
        return f"{self.id}@{self.created_at:%Y%m%dT%H%M%S%f}"

    def used_by(self, messages: Sequence[Message]) -> Usage | None:
        """Return its usage after these messages are added."""
        used = usage_of(messages)
        return self.usage if used is None else used + self.usage


@dataclass(frozen=True, slots=True)
class Append:
    """Messages for a session, and the session as it is after them.

    Args:
        write_key: names this write; the same key again changes nothing.
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
        state: "claimed" when its handler may be running, "done" or "failed" with a result, "abandoned" when it
            was given up before it started: nobody may run it later.
        owner: the attempt of a process that claimed it.
        arguments_hash: the hash of the arguments that it was claimed with.
        result: the text that the model is to read, once there is one.
        claimed_at: when its owner claimed it, UTC. Set by the store.
    """

    state: LedgerState
    owner: str | None = None
    arguments_hash: str | None = None
    result: str | None = None
    claimed_at: datetime | None = None


class RunningCall(Record):
    """The record of an activity that runs now, or whose worker has died.

    Args:
        owner: the attempt of a process, as in the ledger.
        worker: the process; a store `hold`s its name as long as it lives.
        task_token: identifies the attempt when Temporal is told its outcome; base64.
    """

    owner: str
    worker: str
    task_token: str
    workflow_id: str
    run_id: str


Act = Literal["answer", "message", "resume", "abort", "resolve", "cancel", "start", "delete"]
ActOutcome = Literal["intended", "done", "refused", "unknown"]


class DecisionRecord(Record):
    """A row of the audit trail, never changed: a decision at a gate, counted or not, or another act of a person. An
    act has a row that is written before it is done, and one with its outcome.

    Args:
        journal_key: that of the pipeline's or agent's run; for the start of a run, also its workflow id.
        gate: the path of the step, the id of the tool call or the name of the item that waits; empty if the row is
            about the run.
        at: when it arrived, UTC.
        decision: at a gate "approve" or "reject"; for another act, a word for it.
        digest: the digest of what the person's page showed, if it said so; else of what the gate showed.
        edit: the replacement that they gave, as JSON data.
        refused: the reason why it did not count, or is not known to count.
        key: makes it one row, however often it is recorded; a new row each time if None.
        act_id: the same in all rows of one act; None at a gate, and in rows of older versions, which wrote only one
            row, when the act was done.
        outcome: for an act, "intended" before it is done, then its outcome.
        standing: the id of the standing approval by which the decision was made in advance; None if it was made live.
        remembered: the id of the standing approval that it gives for later calls.
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

    The rules of all methods, with what may be repeated, are in docs/durability.md, "A store of your own". In short: of
    many who write what contradicts the others, one wins and all hear the same, since what a write expects is compared
    by the statement that writes. No clock decides anything. An object may be used from several event loops and threads
    at once; its first operation opens it, also after `close`, which a store has if there is something to close.
    """

    durable: bool
    """Whether writes, once acknowledged, outlive the process."""

    @property
    def shares_holds(self) -> bool:
        """Whether other processes see a hold, and it ends with its process: only then does a free one prove a death."""
        ...

    async def identity(self) -> str:
        """Return the store's id, made with it at random: the same for all objects over its data, now and later."""
        ...

    async def hold(self, session_id: str) -> bool:
        """Hold a session for one run until `let_go`, or the death of the process; False if another run holds it.

        Whoever loses a hold while it lives, with its connection say, may come back before anybody else gets it. Once
        another has it, what the former holder writes to the session, or begins with the worker's name, is refused.
        """
        ...

    async def let_go(self, session_id: str) -> None:
        """End a hold of this object; that of another stays."""
        ...

    async def load_session(self, session_id: str) -> Session | None:
        """Return a session, or None."""
        ...

    async def save_session(self, session: Session) -> None:
        """Create or update a session. The agent's name and the time of creation stay those of the first save."""
        ...

    async def load_messages(self, session_id: str, *, after: int = 0) -> list[Message]:
        """Return the messages in order, those after a number; none for an unknown session."""
        ...

    async def append_messages(self, session_id: str, messages: Sequence[Message], session: Session) -> None:
        """Append to a saved session. System messages are left out. Numbers go on from the highest ever given."""
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
            write_key: names this write; the same key again changes nothing, as long as its messages are kept, or, for
                a write without any, until the next write.
            expected_seq: the last number that the writer knows of.
            expected_version: the session's version that the writer knows of, 0 for a new one; it also reveals writes
                without messages.

        Raises:
            SessionConflictError: someone else has written since, or made the session anew.
            MemoryStoreNotDurableError: the store is not durable.
        """
        ...

    async def prune_messages(self, session_id: str, keep: int) -> None:
        """Keep at most the last `keep` messages, cut before a user message; the last turn always stays whole."""
        ...

    async def delete_session(self, session_id: str) -> None:
        """Delete a session and its messages, if it is there; see `Deletion` for what else belongs to it."""
        ...

    async def list_sessions(
        self, *, agent_name: str | None = None, user_id: str | None = None, limit: int | None = None
    ) -> list[Session]:
        """Return sessions that match all given arguments, the last updated first."""
        ...


@runtime_checkable
class Ledger(Protocol):
    """A durable store's record of tool calls and model calls, so that none happens twice.

    The scope of a call names the message that asks for it, so that every run of its session finds the same entry, or
    the run of a pipeline by its journal key. The call key names its place there, and the number of its dispatch.
    """

    async def claim(
        self, scope: str, call_key: str, *, owner: str, arguments_hash: str, running: RunningCall | None = None
    ) -> LedgerEntry:
        """Claim a call if nobody has, and return its entry: the call is yours if `owner` is the one that you gave.

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
        """Record the result of a call that `owner` has claimed, once or again; return False if `owner` has lost it."""
        ...

    async def abandon(self, scope: str, call_key: str, *, owner: str) -> LedgerEntry:
        """Give up a call that `owner` has claimed and that has not happened, and return its entry: "abandoned" then.

        Whoever claims it later must not run it, and its owner records nothing any more. An entry that is another
        owner's, or has a result, stays as it is.
        """
        ...

    async def begin_call(self, running: RunningCall) -> None:
        """Record that an activity without a claim runs, until its owner calls `end_call`."""
        ...

    async def end_call(self, owner: str) -> None:
        """Forget an activity that has ended, if it is there."""
        ...

    async def running_calls(self) -> list[RunningCall]:
        """Return the activities that run, or whose worker has died."""
        ...

    async def settle(self, scope: str, call_key: str) -> LedgerEntry:
        """Return a call's entry; if there is none, abandon it first, so that a late starter does not run it."""
        ...

    async def load_entries(self, scope: str, call_keys: Sequence[str]) -> dict[str, LedgerEntry]:
        """Return the entries that exist, by call key."""
        ...

    async def append_reply(self, appends: Sequence[Append], *, journal_key: str, turn: int, reply: str) -> str:
        """Keep a model's reply and make the appends in their order, all or nothing.

        Returns the reply that is kept. If it is another one, nothing was appended: append that reply's messages.

        Raises:
            SessionConflictError: someone else has written to the session since.
        """
        ...

    async def save_reply(self, journal_key: str, turn: int, reply: str) -> str:
        """Keep a model's reply unless the turn has one, and return the one that is kept."""
        ...

    async def load_reply(self, journal_key: str, turn: int) -> str | None:
        """Return the reply kept for a turn, or None."""
        ...

    async def record_decision(self, record: DecisionRecord) -> None:
        """Add a decision to the audit trail, unless it has one with the same run and key."""
        ...

    async def load_decisions(self, journal_key: str) -> list[DecisionRecord]:
        """Return the decisions of a run in the order in which they were recorded."""
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
