"""One call of an effect: claimed before it runs, recorded behind it, and settled if its process died between.

Every method runs on the keeper's event loop; what users have written runs elsewhere, between two of them.
"""

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Literal, cast

from pydantic import TypeAdapter

from standfast.effects.kept_outcomes import Kept, read_kept, write_kept, written
from standfast.effects.keys import EffectKey, time_of
from standfast.effects.store_thread import keeper
from standfast.errors import InputError, StoreError
from standfast.runtime.call_ledger import CONTRADICTED, within_row
from standfast.runtime.tasks import retry_write
from standfast.stores.protocol import DurableStore, LedgerEntry
from standfast.tools import Happened, Returned, Unknown
from standfast.tools.calls import Verdict, call_key

_LOOK_EVERY = 0.2  # seconds, at a call that somebody else runs
_PATIENCE = 60.0  # seconds, where nothing cuts a call off
_LATER = 30  # tries, about as many seconds, to give back what was perhaps claimed

_LOG = logging.getLogger("standfast")

DIED = "its process ended while it ran"
_ANYTHING: TypeAdapter[object] = TypeAdapter(object)
_OTHER_KEY = "an earlier attempt at this local activity may have run it, under another id"


class Found(Enum):
    """The state of a call without an outcome: this attempt may run it, or it is unknown whether it has happened."""

    OURS = "ours"
    LOST = "lost"


class Ending(Enum):
    """How an attempt without an outcome ended: it has not run, or the call may safely run again."""

    NOT_RUN = "not run"
    AGAIN = "again"


@dataclass(slots=True, eq=False)
class EffectCall:
    """A call, and this attempt at it.

    Args:
        name: of the effect.
        given: the key; None stands for the next one of the activity that makes the call.
        can_verify: whether a call of unknown outcome can be looked up.
        time: seconds after which an attempt has been cut off; None if nothing cuts it off.
    """

    store: DurableStore
    name: str
    given: EffectKey | None
    arguments_hash: str
    safe_to_retry: bool
    can_verify: bool
    time: float | None
    reason: str = field(default=DIED, init=False)  # why the outcome is unknown, if it is lost
    is_ours: bool = field(default=False, init=False)  # from the claim to its end
    _key: EffectKey | None = field(default=None, init=False)
    _owner: str = field(default="", init=False)
    _lost: str = field(default="", init=False)  # who has claimed it, and no longer runs it
    _dispatch: int = field(default=1, init=False)
    _is_closed: bool = field(default=False, init=False)  # this dispatch has ended with an unknown outcome
    _is_cleared: bool = field(default=False, init=False)  # of the doubt that its key may be another one than before
    _happened: Kept | None = field(default=None, init=False)  # what `verify` has found
    _is_left: bool = field(default=False, init=False)
    _claiming: "asyncio.Task[object] | None" = field(default=None, init=False)

    @property
    def key(self) -> EffectKey:
        assert self._key is not None
        return self._key

    async def claim(self) -> Kept | Found:
        """Claim the call, or return its outcome; wait for it while another attempt runs."""
        self._claiming = asyncio.current_task()
        self._key = self.given or await keeper().keys.next(self.name)
        self._owner = await keeper().owner(self.store, self.time)
        return await self._claim()

    async def leave(self) -> None:
        """Give the claim back, though it may be under way: this attempt is not going to run the call."""
        self._is_left = True
        if self._claiming is not None:
            await asyncio.wait({self._claiming})
        if self.is_ours:
            await self._release()

    async def settle(self, verdict: Verdict | Unknown) -> Kept | Found:
        """Enter what `verify` has found out about a lost call."""
        self._claiming = asyncio.current_task()
        if verdict is None or isinstance(verdict, Unknown):
            return verdict or Unknown(self.reason)
        if isinstance(verdict, Happened):
            self._happened = self._within_row(written(verdict.result, _ANYTHING))
        elif self._happened is not None:
            return Unknown(CONTRADICTED)
        if self._is_closed:
            self._go_on()
        elif self._happened is not None:
            # One write, so that the call cannot be given up between a claim and its result.
            if await self._record(self._happened, self._lost):
                return self._happened
        elif (await self.store.abandon(self.key.scope, self._entry_key, owner=self._lost)).state == "claimed":
            return Unknown(CONTRADICTED)  # another check has claimed it to record that it had happened
        found = await self._claim()
        if found is not Found.OURS or self._happened is None:
            return found
        kept = await self._finish(self._happened)
        return await self._claim() if isinstance(kept, Unknown) else kept

    async def end(self, outcome: Kept | Ending) -> Kept:
        """Record how this attempt has ended, for as long as the store needs to take it, and return what is kept."""
        match outcome:
            case Ending.NOT_RUN:
                await self._release()
            case Ending.AGAIN:
                await self._give_up()
            case _:
                return await self._finish(outcome)
        return Unknown()

    # --- claims ---

    async def _claim(self) -> Kept | Found:
        at_work = keeper().at_work
        at_work.add(self._owner)
        try:
            found = await self._claim_or_wait()
            self.is_ours = found is Found.OURS
            return found
        except StoreError:
            # It may have been written, and its acknowledgement was lost: nothing must wait for a call that never runs.
            keeper().begin(self._give_back())
            raise
        finally:
            if not self.is_ours:
                at_work.discard(self._owner)

    async def _claim_or_wait(self) -> Kept | Found:
        while not self._is_left:
            entry = await self._claimed()
            if entry.result is None and self.safe_to_retry and not self._is_mine(entry):
                entry = await self.store.take_over(self.key.scope, self._entry_key, owner=self._owner)
            if self._is_anothers(entry):
                found = await self._wait(entry)
                if not isinstance(found, LedgerEntry):
                    return found
                entry = found
            if entry.state == "abandoned":  # it was found not to have happened
                self._go_on()
            elif entry.result is not None:
                kept = read_kept(entry.result)
                if not (isinstance(kept, Unknown) and self.can_verify):
                    return kept
                if not await self._has_next():
                    self._is_closed, self.reason = True, kept.reason
                    return Found.LOST
                self._go_on()
            elif self.key.is_doubtful and not self._is_cleared and self._dispatch == 1 and not self.safe_to_retry:
                self._lost, self.reason, self._is_cleared = self._owner, _OTHER_KEY, True
                return Found.LOST
            else:
                return Found.OURS
        return Found.LOST

    async def _claimed(self) -> LedgerEntry:
        running = self.key.running(self._owner)
        try:
            entry = await self.store.claim(
                self.key.scope,
                self._entry_key,
                owner=self._owner,
                arguments_hash=self.arguments_hash,
                running=running,
            )
        except InputError:
            raise InputError(
                f"Effect '{self.name}': its key {self.key.id!r} was used with other arguments; nothing is run"
            ) from None
        if running is not None and not self._is_mine(entry):
            await self.store.end_call(self._owner)
        return entry

    async def _wait(self, entry: LedgerEntry) -> LedgerEntry | Found | Unknown:
        """Return the entry once its call has ended, or the call's state once no attempt runs it any more."""
        owner, begun, looked = entry.owner, entry.claimed_at or datetime.now(UTC), time.monotonic()
        while not self._is_left:
            lives = await keeper().lives(self.store, owner)
            # Once more: it may have ended, and its process too, since it was read.
            entry = (await self.store.load_entries(self.key.scope, [self._entry_key])).get(self._entry_key, entry)
            if not self._is_anothers(entry):
                return entry
            if entry.owner != owner:  # one that was told that the call has happened has taken it over in the meantime
                return await self._wait(entry)
            # A clock may have been set back since, or run behind another machine's.
            age = max((datetime.now(UTC) - begun).total_seconds(), time.monotonic() - looked)
            # Its own time: an operator, or a deploy, may have changed what it is for this attempt.
            if lives is False or (lives is None and age > (time_of(str(owner)) or self.time or _PATIENCE)):
                self._lost = str(owner)
                return Found.LOST
            if lives and self.time is not None and age > self.time:
                # `verify` cannot know either
                return Unknown("its timeout has passed, and it may still be running")
            await asyncio.sleep(_LOOK_EVERY)
        return Found.LOST

    async def _has_next(self) -> bool:
        """Whether the call continued after this dispatch, whose outcome is unknown."""
        following = call_key(self.key.place, self.key.name, self._dispatch + 1)
        return bool(await self.store.load_entries(self.key.scope, [following]))

    def _go_on(self) -> None:
        self._dispatch, self._is_closed, self.reason = self._dispatch + 1, False, DIED

    def _is_mine(self, entry: LedgerEntry) -> bool:
        return entry.owner == self._owner

    def _is_anothers(self, entry: LedgerEntry) -> bool:
        return entry.state == "claimed" and entry.result is None and not self._is_mine(entry)

    # --- ends ---

    async def _finish(self, outcome: Kept) -> Kept:
        outcome, is_told = self._within_row(outcome), False

        async def finish() -> bool:
            nonlocal is_told
            try:
                return await self._record(outcome, self._owner)
            except StoreError as error:
                if not is_told:
                    is_told = True
                    _LOG.warning(
                        "Effect '%s' (%s) has run, and the store refuses its result; retrying: %s",
                        self.key.name,
                        self.key.id,
                        error,
                    )
                raise

        try:
            is_kept = await retry_write(finish)
        finally:
            self._stop()
        # An attempt at a safe call has done no harm if another one has overtaken it.
        return outcome if is_kept or self.safe_to_retry else Unknown("it was settled by another attempt while it ran")

    def _within_row(self, outcome: Kept) -> Kept:
        return cast(Kept, within_row(outcome, self.key.name, self.store)) if isinstance(outcome, Returned) else outcome

    async def _record(self, outcome: Kept, owner: str) -> bool:
        """Record the outcome of a call that `owner` has claimed; return False if it has lost the claim."""
        state: Literal["done", "failed"] = "done" if isinstance(outcome, Returned) else "failed"
        return await self.store.finish(
            self.key.scope, self._entry_key, owner=owner, state=state, result=write_kept(outcome)
        )

    async def _release(self) -> None:
        """Give the claim back: this attempt has not run the call, and the next one may."""
        try:
            await retry_write(partial(self.store.abandon, self.key.scope, self._entry_key, owner=self._owner))
        finally:
            self._stop()

    async def _give_up(self) -> None:
        """Let the next attempt run the call again, as one that is safe to retry."""
        try:
            if self.key.activity is not None:
                await retry_write(partial(self.store.end_call, self._owner))
        finally:
            self._stop()

    async def _give_back(self) -> None:
        async def give_back() -> None:
            if self._entry_key in await self.store.load_entries(self.key.scope, [self._entry_key]):
                await self.store.abandon(self.key.scope, self._entry_key, owner=self._owner)

        with suppress(StoreError):
            await retry_write(give_back, tries=_LATER)

    def _stop(self) -> None:
        self.is_ours = False
        keeper().at_work.discard(self._owner)

    @property
    def _entry_key(self) -> str:
        return call_key(self.key.place, self.key.name, self._dispatch)
