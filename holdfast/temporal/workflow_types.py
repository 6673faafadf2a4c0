"""The workflow types of a worker: one for each of its agents, and one for the runs of all agents that it has not.

A worker without an agent that refused its runs would fail their workflow tasks again and again, and they could not be
asked why. Nothing of the user's is in an agent's workflow, so any worker can carry it, and only its activities wait.
"""

import types
from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

from holdfast.errors import InputError
from holdfast.temporal import names
from holdfast.temporal.agent_workflows import AgentRun
from holdfast.temporal.wire import AgentInput


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
        if not (started_as_agent(workflow.info()) or _is_given(self._data, self._extra)):
            raise not_ours(workflow.info())
        return await self.drive()


def _is_given(data: object, extra: tuple[object, ...]) -> bool:
    """Whether an input is an agent's: one object of its keys, and not an empty one."""
    try:
        return not extra and bool(AgentInput.read(data).plain())
    except InputError:
        return False


def started_as_agent(info: workflow.Info) -> bool:
    return names.AGENT_MEMO in info.raw_memo


def not_ours(info: workflow.Info) -> RuntimeError:
    """Return what fails the task of somebody else's workflow, so that Temporal goes on to offer it to workers."""
    return RuntimeError(f"This worker has no agent and no workflow type '{info.workflow_type}'")
