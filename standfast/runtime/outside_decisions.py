"""Records people's decisions on gates that wait in a store without a workflow; see `stored_gates`.

A decision takes effect when a process runs the agent or pipeline again. Nothing runs here, and no declaration is known:
the rule with which the gate was opened defines who may decide, and today's rule is checked when the run continues.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

from standfast.agent_loop import Decision, Gate
from standfast.errors import InputError, SessionConflictError, StoreError
from standfast.messages import JSONObject
from standfast.runtime.pipeline_results import Kept, decision_of
from standfast.runtime.session_states import check_not_at_work, hold
from standfast.runtime.stored_gates import IN_PROCESS, AskedGate, Whose, show_gates
from standfast.runtime.tasks import uninterrupted
from standfast.stores.protocol import DurableStore, has_waits
from standfast.stores.waits import Board, WaitFilter, Waits


async def load_waiting(store: Waits, address: str) -> Board:
    """Return the board of an in-process run.

    Raises:
        InputError: it has none.
    """
    board = await store.load_board(IN_PROCESS, address)
    if board is None:
        raise InputError(f"There is no run {address!r} in this store that waits or has waited; see `standfast pending`")
    return board


async def decide(store: object, address: str, decision: Decision) -> None:
    """Record a decision on a gate of an in-process run. Repeating the same decision changes nothing.

    Raises:
        InputError: it does not count; the audit trail records it anyway.
        SessionConflictError: the run is active.
    """
    if not has_waits(store):
        raise InputError(f"Run {address} is in a store: name it with --store, or give store=")
    board = await load_waiting(store, address)
    async with _held(cast(DurableStore, store), board) as held:
        waiting = await held.gates()
        after, refused = await held.decide(waiting, decision)
        await show_gates(store, held.whose, after)
        if refused is not None:
            raise InputError(refused)


async def show_again(store: Waits, address: str) -> None:
    """Show the current gates of an inactive run: a deadline may have passed."""
    board = await store.load_board(IN_PROCESS, address)
    if board is None:
        return
    try:
        async with _held(cast(DurableStore, store), board) as held:
            await show_gates(store, held.whose, await held.gates())
    except SessionConflictError:
        return


async def load_arguments(store: object, item: Mapping[str, Any]) -> Any:
    """Return all arguments of the call of an item, which its digest covers.

    Raises:
        StoreError: it no longer waits.
    """
    address = str(item["reference"]["in_process"])
    if has_waits(store) and (board := await store.load_board(IN_PROCESS, address)) is not None:
        for asked in await _Held(cast(DurableStore, store), board).gates():
            if (asked.gate.name, asked.gate.shown_digest) == (item["name"], item["digest"]):
                return asked.gate.asked_arguments
    raise StoreError(f"The arguments of call {item['name']} are no longer in this store")


@asynccontextmanager
async def _held(store: DurableStore, board: Board) -> AsyncIterator["_Held"]:
    """Take the holds that a run of these gates would take, so that decisions come one after the other."""
    name = board.session or board.journal_key
    if not await hold(store, name):
        raise SessionConflictError(f"Run {board.workflow_id} is active; try again when it waits")
    try:
        if board.session is not None:
            await check_not_at_work(store, board.session)
        yield _Held(store, board)
    finally:
        await uninterrupted(partial(store.let_go, name))


class _Held:
    """An in-process run that no one else is working on."""

    def __init__(self, store: DurableStore, board: Board) -> None:
        self._store, self._board = store, board
        self.kept = Kept(board.journal_key, store)
        self.whose = Whose(board.journal_key, board.session, board.user_id, board.tenant_id)

    async def gates(self) -> list[AskedGate]:
        """Return the open gates, after all decisions and deadlines."""
        found = await (self._of_pipeline() if self._board.session is None else self._of_session())
        now, gates = datetime.now(UTC), []
        for one in found:
            gate = (await self.kept.gate_after(one.gate, _nobody)).at(now)
            if gate.status == "open":
                gates.append(replace(one, gate=gate))
        return gates

    async def _of_session(self) -> list[AskedGate]:
        session = await self._store.load_session(str(self._board.session))
        if session is None or session.workflow_id is not None:  # deleted, or now Temporal's
            return []
        tools = {name: item.get("tool") for name, item in (await self._items()).items()}
        return [
            AskedGate.of(one, tools.get(str(one.tool_call_id)))
            for one in session.questions or ()
            if one.gate is not None and one.is_open
        ]

    async def _of_pipeline(self) -> list[AskedGate]:
        found = []
        for path in await self._items():
            count = await self.kept.count(f"{path}?again")
            place = f"{path}?{count}" if count else path
            if await self.kept.find(f"{place}?asks") and await self.kept.find(f"{place}?gate"):
                asked = self.kept[f"{place}?gate"]
                gate = Gate.read(self.kept[f"{place}?asks"])
                found.append(AskedGate(gate, asked["message"], shown=asked.get("shown", ()), place=place))
        return found

    async def _items(self) -> dict[str, JSONObject]:
        """Return the board's items, by gate."""
        wanted = WaitFilter(namespace=IN_PROCESS, workflow_id=self._board.workflow_id)
        shown = await cast(Waits, self._store).waits(wanted)
        return {one.wait.name: json.loads(one.wait.item) for one in shown}

    async def decide(self, waiting: Sequence[AskedGate], decision: Decision) -> tuple[Sequence[AskedGate], str | None]:
        """Record a decision; return the gates that are then open, and the reason why it does not count, or None."""
        now, found = datetime.now(UTC), next((one for one in waiting if one.gate.name == decision.gate), None)
        digest = None if found is None else found.gate.shown_digest
        known = [decision_of(row) for row in await self.kept.decisions(decision.gate)]
        if decision.model_copy(update={"digest": decision.digest or digest}) in known:
            return waiting, None
        if found is None:
            refused: str | None = self._not_open(waiting, decision, known)
        else:
            refused = _problem(found.gate, decision)
        if found is None or digest is None or refused is not None:
            await self.kept.record(decision, now, refused, digest=digest)
            return waiting, refused
        await self.kept.record_outside(decision, now, digest)
        decided = replace(found, gate=found.gate.decided(decision, now))
        after = [decided if one is found else one for one in waiting]
        return [one for one in after if one.gate.status == "open"], None

    def _not_open(self, waiting: Sequence[AskedGate], decision: Decision, known: Sequence[Decision]) -> str:
        for one in reversed(known):
            if decision.digest in (None, one.digest):
                done = "approved" if one.decision == "approve" else "rejected"
                return f"gate {decision.gate} was decided already; {one.by or 'somebody'} has {done} it"
        names = ", ".join(one.gate.name for one in waiting) or "none"
        return f"gate {decision.gate} is no longer open: its deadline has passed, or the run continued; open: {names}"


async def _nobody(gate: Gate, decision: Decision) -> None:
    """Judge nothing: no declaration is known here."""


def _problem(gate: Gate, decision: Decision) -> str | None:
    """Return why a decision does not count, as far as the gate itself tells; its declaration has the last word."""
    if decision.remember is not None:
        return f"gate {gate.name}: remember: later calls are approved where the run is; approve only this one"
    if (problem := gate.problem(decision)) is not None or decision.edit is None or decision.decision == "reject":
        return problem
    if not gate.is_call:
        return None if gate.edits else f"gate {gate.name}: edit: nothing can be edited here"
    if not isinstance(decision.edit, dict):
        return f"gate {gate.name}: edit must be an object, all arguments of the call"
    try:
        from standfast.mcp.schemas import checked_by

        checked_by(dict(gate.schema or {}))(decision.edit)
    except ImportError:  # jsonschema is not installed
        return None
    except ValueError as error:
        return f"gate {gate.name}: edit: {error}"
    return None
