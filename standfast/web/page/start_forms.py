"""The forms by which people start agents (a message, and a context) and pipelines (their input) from the page."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from temporalio.client import Client
from temporalio.common import WorkflowIDReusePolicy

from standfast.agents import Agent
from standfast.errors import DefinitionError, InputError, SessionConflictError, StoreError
from standfast.pipelines import Pipeline
from standfast.stores.protocol import check_session_id, session_key_of
from standfast.temporal import OnRecord, StandfastClient, start_agent, start_pipeline
from standfast.temporal.wire.names import workflow_id
from standfast.web.identity.contexts import Contexts
from standfast.web.identity.people import Person
from standfast.web.identity.visible_runs import admit_start, tenant_for
from standfast.web.page.actions import act_id
from standfast.web.page.desk import Desk, new_key, redirect
from standfast.web.page.edits import faults_of
from standfast.web.page.forms import Field, form_of
from standfast.web.page.rendering import run_path

_MESSAGE = Field("message", "message", "Message", "text")
_SESSION = Field(
    "session",
    "session",
    "Session",
    "input",
    "The conversation to continue; empty for a new one.",
    kind="text",
    required=False,
)


@dataclass(frozen=True, slots=True)
class Start:
    """An agent or a pipeline, and the form that starts it.

    Args:
        context: the part of the form for the context of an agent's run. If this part is unchanged, no context is given:
            a new session then has the defaults of the type, and an earlier one continues with its context.
    """

    item: Agent | Pipeline
    fields: tuple[Field, ...]
    context: Field | None = None

    @property
    def name(self) -> str:
        return self.item.name

    @property
    def description(self) -> str:
        return (self.item.description if isinstance(self.item, Agent) else self.fields[0].help) or ""

    async def run(
        self,
        client: Client,
        form: Mapping[str, str],
        person: Person,
        contexts: Contexts,
        *,
        key: str,
        on_record: OnRecord,
        **options: Any,
    ) -> tuple[str, bool]:
        """Start it with the form's entries, and return the workflow id, and whether this call has started it.

        Args:
            person: the person who starts it.
            key: the key of the shown form; sending it twice starts one run.
            on_record: the audit trail, with the person; its id is the message id.
            options: `tenant_id` and `task_queue`, and others of `start_agent` and `start_pipeline`.

        Raises:
            InputError: an entry is invalid.
            SessionConflictError: the chosen session has a run in flight.
            SessionAccessDeniedError: it belongs to another user.
            StoreError: the start could not be put on the audit trail, and so the run was not started.
        """
        session, tenant = None, options.get("tenant_id")
        people = StandfastClient(client, store=on_record.store)
        options |= {"user_id": on_record.by, "on_record": on_record}
        try:
            if isinstance(self.item, Pipeline):
                given = self.fields[0].read(form)
                await admit_start(people, on_record.store, person, self.name, key, tenant)
                run = await start_pipeline(client, self.item, input=given, run_key=key, **options)
            else:
                message, session = (field.read(form) for field in self.fields)
                if message is None or not message.strip():
                    raise InputError("Message is missing")
                if session is not None:
                    check_session_id(session, "Session")
                # A session named by a person may have had runs; the form's own session has only this one.
                if not session:
                    options["id_reuse_policy"] = WorkflowIDReusePolicy.REJECT_DUPLICATE
                given = None if self.context is None or self.context.is_as_shown(form) else self.context.read(form)
                await admit_start(people, on_record.store, person, self.name, session or key, tenant)
                of = {"session_id": session or None, "tenant_id": tenant}
                options["context"] = await contexts.of(person, self.item, given, **of)
                options |= {"message": message, "message_id": on_record.id}
                run = await start_agent(client, self.item, session_id=session or key, **options)
        except SessionConflictError:
            if session is not None:
                raise
            return workflow_id(self.name, session_key_of(tenant, key)), False
        return run.id, run.first_execution_run_id is not None

    def faults(self, error: Exception) -> dict[str, str]:
        """Return the errors of fields from an error, by name."""
        return faults_of(error, self.fields[0] if self.context is None else self.context)


def starts_of(agents: Iterable[Agent], pipelines: Iterable[Pipeline]) -> dict[str, Start]:
    """Return the agents and pipelines that can be started, by name."""
    found = {agent.name: Start(agent, (_MESSAGE, _SESSION), _context_of(agent)) for agent in agents}
    return found | {pipeline.name: Start(pipeline, (_input_of(pipeline),)) for pipeline in pipelines}


def _context_of(agent: Agent) -> Field | None:
    if agent.context is None:
        return None
    try:
        return form_of(agent.context_schema, "context")
    except DefinitionError:  # only code reads its type
        return form_of(None, "context")


def _input_of(pipeline: Pipeline) -> Field:
    try:
        schema = pipeline.input_schema
    except DefinitionError:  # only code reads its type
        schema = None
    return form_of(schema)


class StartPages:
    """The handlers of the pages that start agents and pipelines."""

    def __init__(self, desk: Desk, starts: Mapping[str, Start], task_queue: str, contexts: Contexts) -> None:
        self._desk, self._starts, self._task_queue, self._contexts = desk, starts, task_queue, contexts

    def routes(self) -> list[Route]:
        return [Route("/start", self.starts), Route("/start/{name}", self.start, methods=["GET", "POST"])]

    async def starts(self, request: Request) -> Response:
        """The agents and pipelines that can be started."""
        self._desk.person(request, "operator", "start")
        return self._desk.page(request, "starts", starts=self._starts.values(), changes=None)

    async def start(self, request: Request) -> Response:
        """Start an agent or a pipeline by a form; invalid entries stay in the form."""
        person = self._desk.person(request, "operator", "start")
        start = self._starts.get(request.path_params["name"])
        if start is None:
            raise HTTPException(404, "There is no agent or pipeline of this name here.")
        shown: dict[str, Any] = {"start": start, "changes": None}
        if request.method == "GET":
            return self._desk.page(request, "start", typed=None, why=None, wrong={}, key=new_key(), **shown)
        form = await self._desk.access.form(request)
        key = form.get("key") or new_key()
        try:
            named = act_id({**form, "key": key}, request.url.path, person.name)
            on = OnRecord(store=self._desk.store, by=person.name, id=str(named))
            tenant = tenant_for(person, form.get("tenant") or None)
            options: dict[str, Any] = {"task_queue": self._task_queue, "tenant_id": tenant}
            run, is_new = await start.run(
                self._desk.client, form, person, self._contexts, key=key, on_record=on, **options
            )
        except (InputError, SessionConflictError, StoreError) as error:
            status = 503 if isinstance(error, StoreError) else 422
            shown |= {"typed": form, "why": str(error), "wrong": start.faults(error), "key": key}
            return self._desk.page(request, "start", status=status, **shown)
        return redirect(request, f"/runs/{run_path(run)}?said={'start' if is_new else 'started'}")
