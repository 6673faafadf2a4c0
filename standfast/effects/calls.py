"""One call of an effect: claimed before it runs, recorded behind it, and settled if its process died between.

Every method runs on the keeper's event loop; what users have written runs elsewhere, between two of them.
"""

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import cast

from standfast.effects.keeper import keeper, may_live
from standfast.effects.keys import EffectKey
from standfast.runtime.retried_writes import retry_write
from standfast.runtime.row_sizes import within_row
from standfast.stores.protocol import DurableStore, LedgerEntry
from standfast.tools import Failed, Happened, NotHappened, Returned, Unknown
from standfast.tools.attempts import Verdict, call_key

_LOOK_EVERY = 0.2  # seconds, at a call that somebody else runs


class Found(Enum):
    """The state of a call that has no outcome: it is this attempt's to run, or was begun by a process that is gone."""

    OURS = "ours"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Raised(Failed):
    """The function raised; `kind` is the name of the error's class."""

    kind: str = ""


Kept = Returned | Failed | Unknown


@dataclass(slots=True)
class EffectCall:
    """A call, and this attempt at it.

    Args:
        patience: seconds after which a call that another attempt has begun is lost, if nobody can tell whether its
            process lives.
    """

    store: DurableStore
    key: EffectKey
    arguments_hash: str
    safe_to_retry: bool
    patience: float
    _owner: str = ""
    _dispatch: int = 1

    async def claim(self) -> Kept | Found:
        """Claim the call, or return its outcome; wait for it while another attempt runs."""
        self._owner = self._owner or await keeper().owner(self.store)
        while True:
            running = self.key.running(self._owner)
            entry = await self.store.claim(
                self.key.scope, self._key, owner=self._owner, arguments_hash=self.arguments_hash, running=running
            )
            if running is not None and entry.owner != self._owner:
                await self.store.end_call(self._owner)
            if entry.state == "abandoned":  # it was found not to have happened
                self._dispatch += 1
                continue
            if entry.owner != self._owner and entry.result is None and self.safe_to_retry:
                entry = await self.store.take_over(self.key.scope, self._key, owner=self._owner)
            if entry.owner != self._owner and entry.result is None:
                entry = await self._ended(entry)
            if entry.result is not None:
                return read_kept(entry.result)
            if entry.owner == self._owner:
                return Found.OURS
            if entry.state == "claimed":
                return Found.LOST

    async def settle(self, verdict: Verdict | Unknown) -> Kept | Found:
        """Enter what `verify` has found out about a lost call."""
        scope, key = self.key.scope, self._key
        match verdict:
            case Happened(result):
                entry = await self.store.take_over(scope, key, owner=self._owner)
                if entry.owner == self._owner:
                    return await self.finish(Returned(json.dumps(result, ensure_ascii=False)))
                return await self.claim()
            case NotHappened():
                entry = await self.store.settle(scope, key)
                if entry.state == "claimed":
                    await self.store.abandon(scope, key, owner=str(entry.owner))
                return await self.claim()
            case Unknown():
                return verdict
        return Unknown()

    async def finish(self, outcome: Kept) -> Kept:
        """Record the outcome of this attempt, for as long as the store needs to take it, and return what is kept."""
        if isinstance(outcome, Returned):
            outcome = cast(Kept, within_row(outcome, self.key.name, self.store))
        finish = partial(
            self.store.finish,
            self.key.scope,
            self._key,
            owner=self._owner,
            state="done" if isinstance(outcome, Returned) else "failed",
            result=write_kept(outcome),
        )
        if not await retry_write(finish):
            return Unknown("it was settled by another attempt while it ran")
        return outcome

    async def release(self) -> None:
        """Give the claim back: this attempt has not run the call, and the next one may."""
        await retry_write(partial(self.store.abandon, self.key.scope, self._key, owner=self._owner))

    async def give_up(self) -> None:
        """Let the next attempt run the call again, as one that is safe to retry."""
        if self.key.activity is not None:
            await retry_write(partial(self.store.end_call, self._owner))

    async def _ended(self, entry: LedgerEntry) -> LedgerEntry:
        """Return the entry once it has a result, or nobody runs the call any more."""
        begun = datetime.now(UTC)
        while entry.state == "claimed" and entry.result is None:
            owner, age = entry.owner, (datetime.now(UTC) - (entry.claimed_at or begun)).total_seconds()
            lives = await may_live(self.store, owner)
            # Once more: it may have ended, and its process too, since it was read.
            entry = (await self.store.load_entries(self.key.scope, [self._key])).get(self._key, entry)
            if entry.owner == owner and entry.result is None and (not lives or age > self.patience):
                return entry
            await asyncio.sleep(_LOOK_EVERY if entry.result is None else 0)
        return entry

    @property
    def _key(self) -> str:
        return call_key(self.key.place, self.key.name, self._dispatch)


def write_kept(outcome: Kept) -> str:
    match outcome:
        case Returned(content):
            return json.dumps({"returned": content})
        case Raised(error):
            return json.dumps({"failed": error, "kind": outcome.kind})
        case Failed(error):
            return json.dumps({"failed": error})
        case Unknown(reason):
            return json.dumps({"unknown": reason})


def read_kept(text: str) -> Kept:
    kept = json.loads(text)
    if "returned" in kept:
        return Returned(kept["returned"])
    if "kind" in kept:
        return Raised(kept["failed"], kind=kept["kind"])
    return Failed(kept["failed"]) if "failed" in kept else Unknown(kept["unknown"])
