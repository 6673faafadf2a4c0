"""The workflow types of a worker: one for each of its agents and pipelines, and one for all unknown types.

A worker that refused a run for lack of its agent would fail the workflow task again and again, and queries for the
reason would fail. standfast's workflows contain no user code, so any worker can run them. Only their activities wait.
"""

import functools
import types
from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

from standfast.agents import NAME
from standfast.messages import JSONObject
from standfast.temporal.wire import names
from standfast.temporal.workflows.run.agent_workflows import AgentRun
from standfast.temporal.workflows.run.pipeline_workflows import PipelineRun


@functools.lru_cache(maxsize=256)
def workflow_type(base: "type[AgentRun] | type[PipelineRun]", name: str) -> type:
    """Return the workflow type of an agent or pipeline: a separate class, since a type has one name."""

    def body(namespace: dict[str, Any]) -> None:
        def __init__(self: Any, data: Any = None, *extra: Any) -> None:  # noqa: N807
            base.__init__(self, data, extra)

        async def run(self: Any, data: Any = None, *extra: Any) -> JSONObject:
            found: JSONObject = await self.drive()
            return found

        run.__qualname__ = f"{name}.run"
        namespace |= {"__module__": __name__, "__init__": workflow.init(__init__), "run": workflow.run(run)}

    # Without the sandbox: it contains no user code, and a sandbox would cost 0.1 to 9 ms a workflow.
    return workflow.defn(name=name, sandboxed=False)(types.new_class(name, (base,), {}, body))


@workflow.defn(dynamic=True, sandboxed=False)
class Unknown:
    """Represents every type that a worker does not know; the runner replaces it with the right type."""

    @workflow.run
    async def run(self, values: Sequence[RawValue]) -> None:
        raise NotImplementedError


class AgentAtFirstSight(AgentRun):
    """A run of an unknown type, without a standfast mark, that looks like an agent's."""

    async def drive(self) -> JSONObject:
        """Run to the end, but leave the run to other workers if its input is a pipeline's."""
        if isinstance(self._data, dict) and "input" in self._data:
            raise RuntimeError(f"This worker has no pipeline '{workflow.info().workflow_type}'")
        return await super().drive()


def base_of(info: workflow.Info, has_agents_alone: bool) -> "type[AgentRun] | type[PipelineRun] | None":
    """Return the kind of a workflow of an unknown type: an agent's, a pipeline's, or None for a user's workflow.

    A run that standfast started names its kind. Any other run is an agent's if its name and id look like an agent's,
    and the worker has only agents.
    """
    if names.PIPELINE_MEMO in info.raw_memo:
        return PipelineRun
    looks_like = NAME.fullmatch(info.workflow_type) and info.workflow_id.startswith(f"{info.workflow_type}/")
    if names.AGENT_MEMO in info.raw_memo:
        return AgentRun
    return AgentAtFirstSight if has_agents_alone and looks_like else None
