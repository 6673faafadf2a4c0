"""Stores the results of a pipeline's steps, in memory and optionally in a durable store, so that no step runs again."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import uuid4

from pydantic_core import to_json

from standfast.agent_loop import Decision, Gate, StandingApproval
from standfast.errors import InputError, SessionAccessDeniedError, SessionConflictError
from standfast.messages import read_json
from standfast.pipeline_loop import Done
from standfast.pipelines import Step
from standfast.stores.kept_values import append, length, read_kept
from standfast.stores.protocol import DecisionRecord, DurableStore, StandingApprovals

_OUTSIDE = "outside/"  # prefix of the key of a decision that was recorded without knowing the agent or pipeline
_OVERRULED = "/overruled"  # suffix of the key of the row that voids such a decision


class Kept:
    """Values by key. The first value under a key stays.

    Args:
        name: the run's name in the store, its journal key.
        store: None keeps the values only for one call.
    """

    def __init__(self, name: str, store: DurableStore | None) -> None:
        self.name, self._store = name, store
        self._place = f"{name}/steps"  # separate from a store's other records of a run
        self._values: dict[str, Any] = {}
        self._decisions: list[DecisionRecord] = []

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __contains__(self, key: str) -> bool:
        return key in self._values

    async def find(self, key: str) -> bool:
        """Whether a value is stored under a key; it is then cached."""
        if key not in self._values and self._store is not None:
            text = await self._store.load_reply(f"{self._place}/{key}", 0)
            if text is not None:
                self._values[key] = self._read(key, text)
        return key in self._values

    async def keep(self, key: str, value: Any) -> Any:
        """Store a value of plain JSON data, and return the stored one."""
        if self._store is not None:
            text = to_json(value).decode()
            value = self._read(key, await self._store.save_reply(f"{self._place}/{key}", 0, text))
        return self._values.setdefault(key, value)

    def _read(self, key: str, text: str) -> Any:
        return read_kept(f"{key} of run {self.name}", text, read_json)

    async def keep_type(self, key: str, step: Step[Any]) -> None:
        """Store the type of a step's output when the step begins."""
        if step.type_digest:
            await self.keep(key, step.type_digest)

    async def check_type(self, key: str, step: Step[Any], done: Done) -> None:
        """Refuse an output that does not fit because of a deploy: the step began with another type.

        Raises:
            InputError: it is stored, so that the next version's type can read it.
        """
        if done.reason in ("invalid-json", "schema-mismatch"):
            began = self[key] if await self.find(key) else ""
            if began != step.type_digest:
                shape = getattr(step.shape, "__name__", str(step.shape))
                raise InputError(
                    f"{done.error}. Its answer is stored. It began with another type, and today's is {shape}"
                )

    async def count(self, key: str) -> int:
        """Return the length of a list, which is only in the store."""
        return 0 if self._store is None else await length(self._store, f"{self._place}/{key}")

    async def add(self, key: str, value: Any) -> None:
        """Add to that list."""
        if self._store is not None:
            place = f"{self._place}/{key}"
            await append(self._store, place, to_json(value).decode(), await length(self._store, place))

    async def begin(self, given: Any, who: Mapping[str, str | None]) -> None:
        """Store the input of a run, and its user; a later call gives the same input or none.

        Raises:
            InputError: it was started with another input.
            SessionAccessDeniedError: another user has begun it.
        """
        is_new = not await self.find("?input")
        await self.keep("?who", dict(who))
        await self.check(who)
        if is_new or given is None:
            await self.keep("?input", given)
        elif self["?input"] != given:
            raise InputError(f"Run {self.name} was started with another input; give it another run_key, or no input")

    async def check(self, who: Mapping[str, str | None]) -> None:
        """Refuse everyone except the user who began the run, if it has begun.

        Raises:
            SessionAccessDeniedError: another user has begun it.
        """
        if await self.find("?who") and self["?who"] != dict(who):
            raise SessionAccessDeniedError(self.name, "Run")

    # --- decisions ---

    async def decisions(self, gate: str) -> list[DecisionRecord]:
        """Return the decisions on a gate that counted, in order."""
        found = self._decisions if self._store is None else await self._store.load_decisions(self.name)
        overruled = {str(record.key).removesuffix(_OVERRULED) for record in found if record.refused is not None}
        verdicts = [record for record in found if record.decision in ("approve", "reject") and record.gate == gate]
        return [one for one in verdicts if one.refused is None and (one.key is None or one.key not in overruled)]

    async def has_counted(self, decision: Decision) -> bool | None:
        """Whether this exact decision has counted at its gate; None if no decision has."""
        counted = await self.decisions(decision.gate)
        given = decision.model_copy(update={"remember": None})
        same = (decision_of(row) == given.model_copy(update={"digest": row.digest}) for row in counted)
        return any(same) if counted else None

    async def gate_after(
        self,
        gate: Gate,
        judge: Callable[[Gate, Decision], Awaitable[str | None]],
        tell: Callable[[Gate, Decision, datetime, str | None], None] = lambda *_: None,
    ) -> Gate:
        """Return a gate after its recorded decisions.

        Decisions from outside are judged first, each until the stored gate has it. A decision that does not count is
        voided for good, and the audit trail has the reason.

        Args:
            judge: returns why a decision does not count by today's declaration, or None if it does, for the gate at the
                time of the decision: it may have asked other people earlier.
            tell: called for each decision that the given gate does not have, with the gate before it, its time, and the
                reason why it does not count.
        """
        counted: list[tuple[Decision, datetime]] = []
        for row in await self.decisions(gate.name):
            decision, then = decision_of(row), gate.after(counted).at(row.at)
            is_new = then.status == "open" and decision.digest == then.shown_digest and not then.has(decision)
            why = None
            if is_new and str(row.key).startswith(_OUTSIDE):
                why = then.problem(decision) or await judge(then, decision)
            if is_new:
                tell(then, decision, row.at, why)
            if why is None:
                counted.append((decision, row.at))
            else:
                await self.record(decision, row.at, why, f"{row.key}{_OVERRULED}")
        return gate.after(counted)

    async def editors(self) -> list[str | None]:
        """Return the people whose edits counted."""
        found = self._decisions if self._store is None else await self._store.load_decisions(self.name)
        return [record.by for record in found if record.edit is not None and record.refused is None]

    async def verdict(self, key: str) -> DecisionRecord | None:
        """Return the record under a key, or None."""
        found = [] if self._store is None else await self._store.load_decisions(self.name)
        return next((record for record in found if record.key == key), None)

    async def record_outside(self, decision: Decision, at: datetime, digest: str) -> None:
        """Record a decision that counts as far as is known without the agent or pipeline; see `gate_after`."""
        await self.record(decision, at, None, f"{_OUTSIDE}{uuid4().hex}", digest)

    async def record(
        self,
        decision: Decision,
        at: datetime,
        refused: str | None,
        key: str | None = None,
        digest: str | None = None,
        gives: tuple[StandingApprovals, StandingApproval] | None = None,
    ) -> None:
        """Record a decision, and the reason why it did not count; once, if there is a key.

        Args:
            digest: the digest of the gate's contents, unless the decision has a digest itself.
            gives: the standing approval that it gives, and the store for it, both or neither.
        """
        given = {"digest": digest, **decision.model_dump(exclude={"remember"})}
        if gives is not None:
            given["remembered"] = gives[1].id
        record = DecisionRecord(journal_key=self.name, at=at, refused=refused, key=key, **given)
        if self._store is None:
            self._decisions.append(record)
        if gives is not None:
            await gives[0].give_standing_approval(gives[1], record)
        elif self._store is not None:
            await self._store.record_decision(record)


@contextlib.asynccontextmanager
async def held(names: Sequence[str], store: DurableStore, who: Mapping[str, str | None]) -> AsyncIterator[Kept]:
    """Hold a run under all its possible names, and yield the values under the name that it was begun with.

    Args:
        names: with a slash, unlike session names; the current one first.

    Raises:
        SessionAccessDeniedError: it belongs to another user, and is in flight.
        SessionConflictError: it is in flight.
    """
    async with contextlib.AsyncExitStack() as holds:
        for name in sorted(names):  # in a fixed order, so that of two concurrent versions one continues
            if not await store.hold(name):
                await Kept(name, store).check(who)  # a stranger learns nothing, not even that the run exists
                raise SessionConflictError(f"Run {name} is in flight; wait for it to end, then run it again")
            holds.push_async_callback(store.let_go, name)
        found = [Kept(name, store) for name in names]
        begun = [kept for kept in found if await kept.find("?input")]
        yield (begun or found)[0]


def decision_of(row: DecisionRecord) -> Decision:
    """Return a person's decision from a row of the audit trail."""
    return Decision(**{name: getattr(row, name) for name in Decision.model_fields if name != "remember"})
