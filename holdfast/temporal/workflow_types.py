"""The workflow types of a worker: one for each of its agents, and one for the runs of all agents that it has not.

A worker without an agent that refused its runs would fail their workflow tasks again and again, and they could not be
asked why. Nothing of the user's is in an agent's workflow, so any worker can carry it, and only its activities wait.
"""

import types
from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

from holdfast.agents import NAME
from holdfast.temporal import names
from holdfast.temporal.agent_workflows import AgentRun


def agent_workflow(name: str) -> type:
    """Return the workflow type of an agent: a class of its own, since a type has one name."""

    def body(namespace: dict[str, Any]) -> None:
        def __init__(self: AgentRun, data: Any = None, *extra: Any) -> None:  # noqa: N807
            AgentRun.__init__(self, data, extra)

        async def run(self: AgentRun, data: Any = None, *extra: Any) -> dict[str, Any]:
            return await self.drive()

        run.__qualname__ = f"{name}.run"
        namespace |= {"__module__": __name__, "__init__": workflow.init(__init__), "run": workflow.run(run)}

    # Without the sandbox: nothing of the user's is in it, and it would cost 0.1 to 9 ms a workflow.
    return workflow.defn(name=name, sandboxed=False)(types.new_class(name, (AgentRun,), {}, body))


@workflow.defn(dynamic=True, sandboxed=False)
class ForeignAgentRun(AgentRun):
    """A run of an agent that this worker has not. What needs the agent is done by workers that have it."""

    @workflow.init
    def __init__(self, values: Sequence[RawValue]) -> None:
        read = workflow.payload_converter().from_payload
        data, *extra = [read(value.payload) for value in values] or [None]
        super().__init__(data, tuple(extra))

    @workflow.run
    async def run(self, values: Sequence[RawValue]) -> dict[str, Any]:
        return await self.drive()


def is_an_agents(info: workflow.Info, has_agents_alone: bool) -> bool:
    """Whether a workflow of a type that a worker does not know is an agent's, and not one of the user's.

    It is if holdfast started it. Started by others, it looks like one: a name and an id as agents have them, on a
    worker that has nothing but agents.
    """
    looks_like = NAME.fullmatch(info.workflow_type) and info.workflow_id.startswith(f"{info.workflow_type}/")
    return names.AGENT_MEMO in info.raw_memo or bool(has_agents_alone and looks_like)
