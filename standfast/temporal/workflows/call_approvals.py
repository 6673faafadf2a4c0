"""Waits for people's decisions on the calls of a turn that need approval, each at a separate gate."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from temporalio import workflow

from standfast.agent_loop import Decision, Gate
from standfast.checkpoints import Question
from standfast.temporal.wire.activity_types import AtGate
from standfast.temporal.wire.turn_records import edit_reference, let_through
from standfast.temporal.workflows.gates import GateKeeper
from standfast.temporal.workflows.run_parts import RunParts
from standfast.temporal.workflows.running import is_long
from standfast.temporal.workflows.shared_state import RunState


class CallApprovals:
    """The gates of an agent's run. They are gates of calls, so nobody can decide on a call without having seen it.

    Args:
        is_interrupted: whether the run has other work than waiting for decisions.
    """

    def __init__(self, run: RunState, parts: RunParts, journal_key: str, is_interrupted: Callable[[], bool]) -> None:
        self.gates = GateKeeper(
            parts,
            journal_key,
            leave_if_long=self.leave_if_long,
            may_open=lambda gate: False,
            as_kept=_as_kept,
            recorded_with=self._recorded_with,
            recalled_with=self._call_at,
            progressed=self._take_progress,
        )
        self._run, self._running, self._is_interrupted = run, parts.running, is_interrupted
        self._deciding: dict[str, asyncio.Task[Gate]] = {}  # gates of the turn, by call

    def leave_if_long(self) -> None:
        self.gates.is_leaving = self.gates.is_leaving or is_long()

    async def wait(self, questions: Sequence[Question]) -> None:
        """Wait until one gate of the turn is decided; all of them are open at once."""
        for question in questions:
            gate = Gate.read(question.gate or {})
            if gate.name not in self._deciding:
                deciding = self.gates.wait_at(gate, question.question, **self._shown(gate))
                self._deciding[gate.name] = asyncio.create_task(deciding)
        tasks = self._deciding
        await workflow.wait_condition(lambda: any(task.done() for task in tasks.values()) or self._is_interrupted())
        if self._running.cancelled or self.gates.is_leaving:
            await self.leave()
        self._take_passed()

    def _shown(self, gate: Gate) -> dict[str, Any]:
        """Return what people see besides the message of a gate."""
        turn = self._run.progress.turn
        if gate.holds:
            return dict(turn.arguments.get(gate.name, {}))
        call = turn.calls[gate.name]
        shown: dict[str, Any] = {"tool": call.name, "arguments": turn.arguments.get(call.id, call.shown)}
        shown |= {} if gate.schema is None else {"edit": dict(gate.schema)}
        if call.id in turn.sizes:
            shown["size"] = turn.sizes[call.id]
        place = {"journal_key": self._run.progress.run, "turn": turn.number, "position": call.position}
        return {**shown, "reference": place}

    async def leave(self) -> None:
        """Wait until no task waits at a gate.

        Each wait ends automatically when the run is cancelled or continues as new.
        """
        if self._deciding:
            await asyncio.gather(*self._deciding.values())
        self._take_passed()

    def _take_passed(self) -> None:
        """Take in the outcomes of gates."""
        turn = self._run.progress.turn
        for name in [name for name, task in self._deciding.items() if task.done()]:
            gate = self._deciding.pop(name).result()
            self._run.loop = self._run.loop.decided(gate)
            if gate.status == "approved" and not gate.holds:
                turn.approved[turn.calls[gate.name].position] = let_through(gate)

    # --- what the gates ask of the run ---

    def _take_progress(self, gate: Gate) -> None:
        """Take in who has approved so far; an export also includes it."""
        if gate.status == "open":
            self._run.loop = self._run.loop.decided(gate)

    def _call_at(self, gate: str) -> AtGate:
        """Return the arguments with which activities find the call that waits at a gate."""
        turn = self._run.progress.turn
        return {"call": [turn.number, turn.calls[gate].position]} if gate in turn.calls else {}

    def _recorded_with(self, gate: Gate) -> AtGate:
        asks: AtGate = {"access": True} if "approve" in self._run.facts.hooks else {}
        if gate.holds:
            return {"stopped": [self._run.loop.agent, gate.rule.guardrail, gate.holds], **asks}
        edited: AtGate = {} if gate.changed is None else {"stage": gate.digest, "proposed": gate.changed["digest"]}
        return {**self._call_at(gate.name), **edited, **asks}


def _as_kept(decision: Decision) -> Decision:
    """Return a decision with a reference instead of its edit, which is in the store."""
    if decision.edit is None:
        return decision
    return decision.model_copy(update={"edit": edit_reference(decision.edit)})
