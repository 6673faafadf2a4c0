"""Accesses the runs of one user; an application creates a client for each signed-in person."""

from typing import Any, Literal, overload

from temporalio.client import Client

from standfast.agents import Agent
from standfast.checkpoints import Checkpoint, PipelineResult, RunResult, T
from standfast.durations import Duration
from standfast.errors import InputError, SessionAccessDeniedError
from standfast.messages import JSONObject
from standfast.pipelines import Pipeline
from standfast.runtime.inputs import Images, check_user
from standfast.stores.protocol import AgentStore, check_tenant_id
from standfast.temporal.client.clients import StandfastClient
from standfast.temporal.client.runs.descriptions import described, looks_ours
from standfast.temporal.client.runs.owners import last_admitted, owner_of
from standfast.temporal.wire.inputs import Owner


class UserClient:
    """Accesses the runs of one user, for an application that lets its users do so; `StandfastClient` accesses all runs.

    Another user's run raises `SessionAccessDeniedError`, and so does a run that does not exist. Everything else is as
    in `StandfastClient`, and the user is the person who decides, answers and sends messages.

    Args:
        user_id, tenant_id: the person who has signed in to the application.
        store: the workers' store, for its audit trail; see `StandfastClient`.
        timeout: how long a worker may take to answer; see `StandfastClient`.
    """

    def __init__(
        self,
        client: Client,
        *,
        user_id: str | None,
        tenant_id: str | None = None,
        store: AgentStore | None = None,
        timeout: Duration = "10s",
    ) -> None:
        if user_id is None and tenant_id is None:
            raise InputError("UserClient needs a user_id or a tenant_id: StandfastClient accesses all runs")
        if user_id is not None:
            check_user(user_id)
        self._client, self._people = client, StandfastClient(client, store=store, timeout=timeout)
        self._who: Owner = (user_id, check_tenant_id(tenant_id))

    @overload
    async def result(self, workflow_id: str) -> JSONObject: ...
    @overload
    async def result(self, workflow_id: str, of: Agent[T]) -> RunResult[T]: ...
    @overload
    async def result(self, workflow_id: str, of: Pipeline) -> PipelineResult: ...
    async def result(self, workflow_id: str, of: Any = None) -> Any:
        """Wait for a run's end and return its result."""
        return await self._people.result(workflow_id, of, run_id=await self._check(workflow_id))

    async def status(self, workflow_id: str) -> JSONObject:
        """Return the progress of a run, its waiting items, and the messages that it could not use."""
        return await self._people.status(workflow_id, run_id=await self._check(workflow_id))

    async def pending(self, workflow_id: str) -> list[JSONObject]:
        """Return the items of a run that wait for a person."""
        return await self._people.pending(workflow_id, run_id=await self._check(workflow_id))

    async def message(self, workflow_id: str, text: str, *, images: Images = (), message_id: str | None = None) -> None:
        """Send a message to a run."""
        await self._check(workflow_id)
        await self._people.message(workflow_id, text, images=images, message_id=message_id, by=self._who[0])

    async def answer(self, workflow_id: str, text: str, *, tool_call_id: str | None = None) -> None:
        """Answer a question."""
        await self._check(workflow_id)
        await self._people.answer(workflow_id, text, tool_call_id=tool_call_id, by=self._who[0])

    async def export(self, workflow_id: str) -> Checkpoint:
        """Return a run as a checkpoint."""
        await self._check(workflow_id)
        return await self._people.export(workflow_id)

    async def cancel(self, workflow_id: str) -> None:
        """Cancel a run."""
        await self._check(workflow_id)
        await self._people.cancel(workflow_id, by=self._who[0])

    async def decide(
        self,
        workflow_id: str,
        gate: str,
        decision: Literal["approve", "reject"],
        *,
        comment: str | None = None,
        digest: str | None = None,
        edit: Any = None,
    ) -> None:
        """Approve or reject at a gate of any run of the user's tenant, not only of the user's own runs."""
        await self._check(workflow_id, any_user=True)
        await self._people.decide(
            workflow_id, gate, decision, by=self._who[0], comment=comment, digest=digest, edit=edit
        )

    async def _check(self, workflow_id: str, *, any_user: bool = False) -> str:
        """Return the run that the user accesses; refuse another user's run, and one that is not standfast's."""
        try:
            run = await described(self._client, workflow_id)
            run_id = await last_admitted(self._client, run)
            user, tenant = (None, None) if run_id is None else await owner_of(self._client, workflow_id, run_id)
        except InputError:
            raise SessionAccessDeniedError(workflow_id, "Run") from None
        is_own = tenant == self._who[1] and (any_user or user == self._who[0])
        if run_id is None or not looks_ours(run) or not is_own:
            raise SessionAccessDeniedError(workflow_id, "Run")
        return run_id
