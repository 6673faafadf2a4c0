"""Holds what the parts of an agent's run share."""

from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from temporalio import workflow

from standfast.agents import Loop
from standfast.temporal.wire.activity_types import RunReference
from standfast.temporal.wire.inputs import AgentInput
from standfast.temporal.wire.run_state import Progress
from standfast.temporal.wire.snapshots import Facts
from standfast.temporal.wire.states import FRESH, RunLoop

ReferenceT = TypeVar("ReferenceT", bound=RunReference)


@dataclass(slots=True)
class RunState:
    """What the parts of an agent's run share.

    Args:
        given: its input.
        facts: those of the agent, once the run is open.
        loop: the state of the loop, once the run is open.
        has_asked: the model was asked.
    """

    given: AgentInput = field(default_factory=AgentInput)
    progress: Progress = field(default_factory=Progress)
    facts: Facts = field(default_factory=lambda: Facts(loop=Loop(), tools={}))
    loop: RunLoop = FRESH
    is_open: bool = False
    has_asked: bool = False

    def questions(self) -> list[dict[str, Any]]:
        return [question.model_dump() for question in self.loop.questions]

    def reference(self, kind: type[ReferenceT]) -> ReferenceT:
        """Return what an activity needs to find the run's data, to which the rest of its kind is added."""
        return cast(ReferenceT, self.progress.reference(self.given, workflow.info()))
