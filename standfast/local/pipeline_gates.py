"""Finds the gate that a decision names (a pipeline step, or a call of a step's agent) and its recorded decisions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from standfast.agent_loop import Decision, Gate
from standfast.checkpoints import InterruptedResponse, PendingApproval
from standfast.errors import InputError
from standfast.local.gates import step_refusal
from standfast.pipelines import Pipeline, Step
from standfast.pipelines.paths import find
from standfast.runtime.pipeline_results import Kept
from standfast.runtime.stored_gates import AskedGate
from standfast.tools import shown_with_edit


def agent_at(pipeline: Pipeline, gate: str) -> tuple[str, Step[Any]] | None:
    """Return the path and the step of the agent whose call waits at a gate; None if the gate is itself a step."""
    path, _, call = gate.rpartition("/")
    try:
        step = find(pipeline, path) if path and call else None
    except InputError:
        return None
    return (path, step) if isinstance(step, Step) and step.agent is not None else None


def check_gate(pipeline: Pipeline, gate: str) -> None:
    """Refuse a name that is not a gate: it names neither an approval nor a call of an agent.

    Raises:
        InputError: naming what it is instead.
    """
    if agent_at(pipeline, gate) is not None:
        return
    try:
        step = find(pipeline, gate)
    except InputError as error:
        raise InputError(f"{error} A gate is named by the path of its step, or by <step>/<id of a call>") from error
    if not isinstance(step, Step) or step.approval is None:
        text = f"Step '{gate}' of pipeline '{pipeline.name}' is not a gate: it has no approval"
        if isinstance(step, Step) and step.agent is not None:
            text = f"{text}; the gate of a call of its agent is {gate}/<id of the call>"
        raise InputError(text)


async def recorded(
    kept: Kept, place: str, gate: Gate, step: Step[Any], may: Callable[[str | None], object] | None
) -> Gate:
    """Return a gate after its recorded decisions.

    Its question is stored as it was when the gate opened, so people can decide even where the pipeline is not known.
    """
    if not await kept.find(f"{place}?asks"):
        await kept.keep(f"{place}?asks", gate.plain())

    async def judge(_: Gate, decision: Decision) -> str | None:
        return await step_refusal(step, may, decision)

    return await kept.gate_after(gate, judge)


@dataclass(frozen=True, slots=True)
class WaitingGates:
    """The gates at which a pipeline waits, by path: its own, and the agents whose calls wait at gates.

    Args:
        places: the places of the verdicts of the pipeline's own gates, by path.
    """

    kept: Kept
    waiting: Mapping[str, Gate | InterruptedResponse]
    places: Mapping[str, str]

    def named(self) -> list[tuple[str, str, Gate | PendingApproval]]:
        """Return the name, the message and the gate of each one."""
        found: list[tuple[str, str, Gate | PendingApproval]] = []
        for path, waits in self.waiting.items():
            if isinstance(waits, Gate):
                found.append((path, waits.rule.message or self._asked(path)["message"], waits))
            else:
                found += [(f"{path}/{item.gate}", item.message, item) for item in waits.approvals]
        return found

    def asked(self) -> list[AskedGate]:
        """Return the pipeline's own gates for the board. The calls of agents appear there under their own sessions."""
        return [
            AskedGate(gate, kept["message"], shown=kept.get("shown", ()), place=self.places[path])
            for path, gate in self.waiting.items()
            if isinstance(gate, Gate) and (kept := self._asked(path))
        ]

    def shown(self, path: str, gate: Gate) -> Sequence[Mapping[str, Any]]:
        """Return the values that people now see with the message."""
        shown: Sequence[Mapping[str, Any]] = self._asked(path).get("shown", ())
        return shown if gate.changed is None else shown_with_edit(shown, gate.changed)

    def _asked(self, path: str) -> Mapping[str, Any]:
        kept: Mapping[str, Any] = self.kept[f"{self.places[path]}?gate"]
        return kept
