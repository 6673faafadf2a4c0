"""The activity of a tool: claim, run the handler, record, report. And the one that settles a lost call."""

import asyncio
import contextvars
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from holdfast.agent_loop import cancelled, with_edit
from holdfast.agents import Agent
from holdfast.local.threads import bounded
from holdfast.messages import ToolCall, read_json
from holdfast.stores.protocol import LedgerEntry
from holdfast.temporal import names
from holdfast.temporal.calls import REDISPATCHES
from holdfast.temporal.facts import GRACE, TIMEOUT, handler_seconds
from holdfast.temporal.gate_activities import arguments_of, edit_place
from holdfast.temporal.hosts import AgentHost, Heartbeats, TypedErrors, surely
from holdfast.temporal.invocations import Invocations
from holdfast.temporal.lost_calls import is_alive
from holdfast.temporal.transcripts import call_key, read_entry
from holdfast.temporal.turn_records import TurnRecord
from holdfast.temporal.wire import previewed, write_outcome
from holdfast.tools import Cancelled, Failed, Outcome, Tool, ToolContext, Unknown


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call stands in the ledger, and what its turn's record says of it."""

    reference: Mapping[str, Any]
    record: TurnRecord
    call: ToolCall
    run: str
    key: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a call.

    Args:
        approved: who has let it through, as `Turn.approved` says; None if nobody was asked.
    """

    agent: Agent
    tool: Tool[..., Any]
    call: ToolCall
    context: ToolContext
    run: str
    key: str
    invocations: Invocations
    approved: Mapping[str, Any] | None

    def bounded(self, ask: Callable[..., Awaitable[Outcome | None]]) -> Coroutine[Any, Any, Outcome | None]:
        """Return what runs the tool's `attempt`, or asks its `verify`, for as long as that may take."""
        return bounded(
            ask,
            self.tool,
            self.call.arguments,
            self.context,
            limit=self.agent.loop.max_message_bytes,
            seconds=handler_seconds(self.tool),
        )

    def told(self, outcome: Outcome) -> Outcome:
        """Return an outcome with a word to the model if people have changed what it asked for."""
        if self.approved is None or "edit" not in self.approved or isinstance(self.call.arguments, str):
            return outcome
        return with_edit(outcome, self.approved["by"], self.call.arguments, self.agent.loop.max_message_bytes)


class ToolActivities:
    """Runs the tools of a worker's agents."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    def all(self) -> list[Any]:
        return [self.settle, *(self._activity(name) for name in self._host.tools)]

    def _activity(self, name: str) -> Any:
        async def run_tool(reference: dict[str, Any]) -> dict[str, Any]:
            with TypedErrors(), Heartbeats():
                return await self._run(reference)

        return activity.defn(name=name)(run_tool)

    async def _place(self, reference: Mapping[str, Any]) -> Place:
        reference = await self._host.located(reference)
        run, turn, position = reference["run"], reference["turn"], reference.get("position", 0)
        record = await self._host.load_record(run, turn)
        call = record.calls[position]
        approved = reference.get("approved")
        if approved is not None:
            arguments = arguments_of(record, call.id)
            if "edit" in approved:
                arguments = read_json(await self._host.load_kept(edit_place(run, approved["edit"]), 0))
            if arguments is not None:
                call = ToolCall(id=call.id, name=call.name, arguments=arguments)
        return Place(reference, record, call, run, call_key(turn, position, call.id, reference.get("dispatch", 1)))

    def _attempt(self, place: Place) -> Attempt:
        """Return what runs a call, or asks whether it has happened: where the agent and the tool are."""
        agent, tool = self._host.caller(), self._host.tool(place.call.name)
        record, call, reference = place.record, place.call, place.reference
        loop, info = asyncio.get_running_loop(), activity.info()
        invocations = Invocations(loop, activity.client(), call.id, record, reference.get("depth", 0))
        context = ToolContext(
            agent_name=agent.name,
            agent_id=record.agent_id,
            session_id=record.session,
            tool_call_id=call.id,
            idempotency_key=f"{record.key}.{reference.get('position', 0)}/{call.id}",
            user_id=record.user_id,
            tenant_id=record.tenant_id,
            attempt=info.attempt,
            agents=invocations,
            heartbeat=_heartbeat(loop),
        )
        approved = reference.get("approved")
        return Attempt(agent, tool, call, context, place.run, place.key, invocations, approved)

    # --- running ---

    async def _run(self, reference: Mapping[str, Any]) -> dict[str, Any]:
        attempt, store, owner = self._attempt(await self._place(reference)), self._host.store, self._host.owner()
        tool = attempt.tool
        claim = partial(
            store.claim,
            attempt.run,
            attempt.key,
            owner=owner,
            arguments_hash=_hash(attempt.call),
            running=self._host.running(owner),
        )
        entry = await surely(claim, tries=1)
        if entry.owner != owner:
            known = await self._known(attempt, entry, owner)
            if known is not None:
                return previewed(known)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            outcome: Outcome = Cancelled("Not run: the run was cancelled before this call started")
        else:
            outcome = await self._handle(attempt)
        if isinstance(outcome, Failed):
            delay = tool.next_delay(outcome, activity.info().attempt)
            if delay is not None:
                await store.end_call(owner)
                raise ApplicationError(outcome.error, type="RetryableError", next_retry_delay=timedelta(seconds=delay))
        return previewed(await self._record(attempt, owner, outcome))

    async def _known(self, attempt: Attempt, entry: LedgerEntry, owner: str) -> dict[str, Any] | None:
        """Return what another attempt came to; None if this one may run, which then is its owner."""
        if entry.result is not None:
            await self._host.store.end_call(owner)
            return read_entry(entry)
        if entry.state == "claimed" and attempt.tool.safe_to_retry:
            entry = await self._host.store.take_over(attempt.run, attempt.key, owner=owner)
            if entry.owner == owner:
                return None
        await self._host.store.end_call(owner)
        if entry.result is not None:
            return read_entry(entry)
        raise ApplicationError(
            f"Call {attempt.key} of run {attempt.run} is {entry.state} by another attempt; it is not run",
            type=names.CALL_NOT_OURS,
            non_retryable=True,
        )

    async def _handle(self, attempt: Attempt) -> Outcome:
        tool = attempt.tool
        try:
            outcome = await self._host.thread.run(
                attempt.bounded(partial(tool.attempt, approved=attempt.approved is not None))
            )
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                return Failed("The tool was cancelled from within")
            if tool.safe_to_retry and not _is_given_up():
                raise
            return cancelled(tool)
        assert outcome is not None
        return attempt.told(outcome)

    async def _record(self, attempt: Attempt, owner: str, outcome: Outcome) -> dict[str, Any]:
        """Record what a call came to. The effect is done: a store that refuses is asked again while there is time."""
        written = write_outcome(outcome)
        if (spent := attempt.invocations.spent) is not None:
            written["spent"] = spent.plain()
        text = to_json(written).decode()
        state: Any = "failed" if isinstance(outcome, Failed | Unknown) else "done"
        finish = partial(self._host.store.finish, attempt.run, attempt.key, owner=owner, state=state, result=text)
        ours = await surely(finish)
        if not ours:
            raise ApplicationError(
                f"Call {attempt.key} of run {attempt.run} was settled while it ran",
                type=names.CALL_NOT_OURS,
                non_retryable=True,
            )
        self._host.cache.keep_result(attempt.run, attempt.key, written, len(text))
        return written

    # --- settling ---

    @activity.defn(name=names.SETTLE)
    async def settle(self, reference: dict[str, Any]) -> dict[str, Any] | None:
        """Return what became of a call: its outcome, `{"claimed": true}`, or None if it is to be run.

        The ledger tells on any worker; only a `verify` needs one that has the tool.
        """
        with TypedErrors(), Heartbeats():
            place = await self._place(reference)
            if reference.get("recovering"):
                return await self._recover(place)
            entry = await self._host.store.settle(place.run, place.key)
            if reference.get("wait") and entry.state == "claimed":
                entry = await self._wait(place, entry)
            return await self._verdict(place, entry, {})

    async def _wait(self, place: Place, entry: LedgerEntry) -> LedgerEntry:
        """Wait for another attempt that still runs: for as long as its worker is alive, and it may take."""
        store, tool = self._host.store, self._host.tools.get(place.call.name)
        longest = TIMEOUT if tool is None else handler_seconds(tool) + GRACE
        until = asyncio.get_running_loop().time() + longest
        while entry.state == "claimed" and asyncio.get_running_loop().time() < until:
            calls = [call for call in await store.running_calls() if call.owner == entry.owner]
            if not calls or not await is_alive(store, calls[0].worker, self._host.worker):
                break
            await asyncio.sleep(0.2)
            entry = await store.settle(place.run, place.key)
        return entry

    async def _recover(self, place: Place) -> dict[str, Any] | None:
        """Settle a call that an earlier run left: by that run's ledger, if it was one that keeps a ledger."""
        run, _, turn = (place.record.previous or "").rpartition("/")
        if not run:
            return await self._verified(place)
        for dispatch in range(1, 2 * REDISPATCHES):
            key = call_key(int(turn), place.reference.get("position", 0), place.call.id, dispatch)
            entry = await self._host.store.settle(run, key)
            if entry.state != "abandoned":
                return await self._verdict(place, entry, {"run": run, "key": key})
        return None

    async def _verdict(self, place: Place, entry: LedgerEntry, source: dict[str, str]) -> dict[str, Any] | None:
        if entry.state == "abandoned":
            return None
        if entry.result is not None:
            outcome = previewed(read_entry(entry))
            return outcome | {"source": source} if source else outcome
        return await self._verified(place)

    async def _verified(self, place: Place) -> dict[str, Any] | None:
        if not place.reference.get("verify"):
            return {"claimed": True}
        attempt = self._attempt(place)
        tool = attempt.tool
        if tool.verify is None or tool.safe_to_retry:
            return {"claimed": True}
        outcome = await self._host.thread.run(attempt.bounded(tool.ask_whether_it_happened))
        if outcome is None:
            return None
        if isinstance(outcome, Unknown):
            return {"claimed": True, "reason": outcome.reason}
        return previewed(await self._enter(attempt, attempt.told(outcome)))

    async def _enter(self, attempt: Attempt, outcome: Outcome) -> dict[str, Any]:
        """Enter into the ledger what `verify` has found out."""
        store, owner = self._host.store, self._host.owner()
        await store.claim(attempt.run, attempt.key, owner=owner, arguments_hash=_hash(attempt.call))
        await store.take_over(attempt.run, attempt.key, owner=owner)
        return await self._record(attempt, owner, outcome)


def _hash(call: ToolCall) -> str:
    return hashlib.blake2b(to_json(call.arguments), digest_size=16).hexdigest()


def _is_given_up() -> bool:
    """Whether the run itself cancelled the call; otherwise a worker is shut down, or the server has lost patience."""
    details = activity.cancellation_details()
    return details is None or details.cancel_requested


def _heartbeat(loop: asyncio.AbstractEventLoop) -> Any:
    context = contextvars.copy_context()

    def heartbeat(*details: Any) -> None:
        loop.call_soon_threadsafe(lambda: context.run(activity.heartbeat, *details))

    return heartbeat
