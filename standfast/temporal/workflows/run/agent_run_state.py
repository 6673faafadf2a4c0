"""Holds the state that the parts of an agent's run share."""

from dataclasses import dataclass, field
from typing import TypeVar, cast

from temporalio import workflow

from standfast.messages import JSONObject
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import Located, RunReference, TurnTaken
from standfast.temporal.wire.boards import Whose
from standfast.temporal.wire.inputs import AgentInput
from standfast.temporal.wire.run_state import FRESH, Progress, RunLoop
from standfast.temporal.wire.snapshots import Facts
from standfast.temporal.workflows.board.waiting_items import whose

ReferenceT = TypeVar("ReferenceT", bound=RunReference)


@dataclass(slots=True)
class RunState:
    """The shared state of an agent's run.

    Args:
        given: its input.
        facts: the agent's facts, once the run is open.
        loop: the state of the loop, once the run is open.
        has_asked: the model was called.
        ahead: turns that a stretch has taken, and that the loop has not.
        taken: the turn of these whose calls come next.
    """

    given: AgentInput = field(default_factory=AgentInput)
    progress: Progress = field(default_factory=Progress)
    facts: Facts = field(default_factory=lambda: Facts(loop=FRESH.loop, tools={}))
    loop: RunLoop = FRESH
    is_open: bool = False
    has_asked: bool = False
    ahead: list[TurnTaken] = field(default_factory=list)
    taken: TurnTaken | None = None

    def questions(self) -> list[JSONObject]:
        return [question.model_dump() for question in self.loop.questions]

    def whose(self) -> Whose:
        """Return the run's owner, for its board."""
        run = self.progress.run or workflow.info().original_execution_run_id
        return whose(run, self.progress.session, self.given.tenant_id, self.given.user_id)

    def run_reference(self) -> Located:
        """Return the journal key, unless activities find it by the workflow's run id.

        The run id is that key itself, or the store has the key under it. After a reset, neither is true.
        """
        progress = self.progress
        return {} if workflow.info().run_id in (progress.run, progress.kept_by) else {"run": progress.run}

    def reference(self, kind: type[ReferenceT]) -> ReferenceT:
        """Return the arguments with which an activity finds the run's data; further arguments of its kind are added.

        Default values are omitted: histories are long.
        """
        progress, given, info = self.progress, self.given, workflow.info()
        turn = progress.turn
        reference: JSONObject = {"turn": turn.number, "seq": progress.seq, **self.run_reference()}
        is_named = names.session_of(info.workflow_type, info.workflow_id) == progress.session
        optional = {
            "session": None if is_named else progress.session,
            "user_id": given.user_id,
            "tenant_id": given.tenant_id,
            "agent_id": given.instance_id,
            "model": progress.model,
            "part": turn.part or None,
            "sources": sorted(turn.sources.items()) or None,
            "created": progress.opened.get("created") if progress.seq == 0 else None,
            "agent_state": progress.opened.get("agent_state"),
        }
        present = {name: value for name, value in optional.items() if value is not None}
        return cast(ReferenceT, reference | present)
