"""The tools for models of MCP clients: starting agents and pipelines, sending messages, reading, deciding.

They do the same as the JSON API, for the same people and by the same rules. The person who acts is the authenticated
person, and never a name that a model gives. This module is independent of the protocol.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, cast

from pydantic import AliasChoices, BaseModel, Field
from temporalio.common import WorkflowIDReusePolicy

from standfast.agents import Agent
from standfast.errors import DefinitionError, InputError, SessionConflictError
from standfast.messages import JSONObject
from standfast.pipelines import Pipeline
from standfast.stores.protocol import SESSION_ID, session_key_of
from standfast.temporal.client.runs.descriptions import listed, looked_at, our_run, run_of
from standfast.temporal.wire.names import workflow_id
from standfast.web.api.calls import Doors, said_id
from standfast.web.api.models import GATE, GATE_NAME, Body, StartRun, Tenant
from standfast.web.identity.people import Person, Role
from standfast.web.identity.visible_runs import admit, tenant_for, waiting_for
from standfast.web.page.gate_contents import load_whole

LONGEST_WAIT = 50.0  # seconds: clients limit a tool to a minute
_EVERY = 0.5  # seconds between two checks of a run
_MOST = 50  # items of a list
_LONGEST_NAME = 64  # characters of a tool's name; the limit of clients and providers
_SHOWN = 100_000  # bytes of an item for a decision that one answer shows

_Name = Annotated[str, Field(min_length=1, max_length=2_000)]
_Text = Annotated[str, Field(min_length=1, max_length=200_000)]
_Session = Annotated[str, Field(pattern=f"^{SESSION_ID.pattern}$")]
_RUN = "The run, as returned when it was started."
_MessageId = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=200,
        description="Identifies the message, which then counts once, however often it is sent.",
    ),
]


class StartAgent(Body):
    """The message to an agent."""

    message: _Text
    session_id: _Session | None = Field(
        default=None, description="A name for the conversation. A repeated call with the same name finds the same run."
    )
    message_id: _MessageId = None
    tenant_id: Tenant | None = Field(default=None, description="Required if you belong to several tenants.")


class StartInContext(StartAgent):
    """The message to an agent, and the context of its run."""

    context: Any = None


class StartPipeline(Body):
    """The input of a pipeline."""

    input: Any = None
    session_id: _Session | None = Field(
        default=None, description="A name for the run. A repeated call with the same name finds the same run."
    )
    tenant_id: Tenant | None = Field(default=None, description="Required if you belong to several tenants.")


class OfRun(Body):
    run: _Name = Field(description=_RUN)


class Look(OfRun):
    run_id: _Name | None = Field(
        default=None, description="The `run_id` of the start; by default the newest run of this conversation."
    )


class Await(Look):
    wait_seconds: float = Field(default=20, ge=0, le=LONGEST_WAIT, description="How long to wait for the end.")


class Waits(Body):
    run: _Name | None = Field(default=None, description="One run; by default all runs.")


class Say(OfRun):
    text: _Text
    message_id: _MessageId = Field(default=None, validation_alias=AliasChoices("message_id", "key"))  # its earlier name


class Decide(OfRun):
    gate: _Name = Field(description=GATE_NAME, validation_alias=GATE)
    digest: _Name = Field(description="The digest of the contents shown, from `pending`.")
    comment: _Text | None = None


class Reply(OfRun):
    text: _Text
    tool_call_id: _Name | None = Field(
        default=None, description="The call that asks; by default the first open question."
    )


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool: the texts for a model, the people who may use it, and its action.

    Args:
        is_reading: whether it changes nothing.
        is_once: whether a repeated call with the same arguments changes nothing more.
        schemas: of the arguments that the agent or pipeline has a type for.
        required: the names of the required ones.
    """

    name: str
    description: str
    arguments: type[BaseModel]
    do: Callable[[Person, Any], Awaitable[JSONObject]]
    role: Role
    scope: str
    is_reading: bool = False
    is_once: bool = False
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    required: Sequence[str] = ()

    @property
    def schema(self) -> JSONObject:
        schema: JSONObject = self.arguments.model_json_schema()
        for name, given in self.schemas.items():
            own = dict(given)
            # Definitions that a schema refers to are at the top of the combined schema.
            if definitions := {**schema.get("$defs", {}), **own.pop("$defs", {})}:
                schema["$defs"] = definitions
            schema["properties"][name] = own
        if required := [*schema.get("required", ()), *self.required]:
            schema["required"] = required
        return schema


class Offers:
    """The tools of a server.

    Args:
        allow_decisions: whether there are tools that decide and answer, so that a model can approve its own
            requests, or another model's.

    Raises:
        DefinitionError: an agent or a pipeline has a name that is too long for a tool.
    """

    def __init__(self, doors: Doors, *, allow_decisions: bool) -> None:
        self._doors = doors
        made = [*self._starts(), *self._looks(), *(self._decisions() if allow_decisions else ())]
        self._offers: dict[str, Offer] = {offer.name: offer for offer in made}

    def of(self, person: Person) -> Sequence[Offer]:
        """Return the tools that a person may use."""
        return [one for one in self._offers.values() if person.may(one.role) and person.may_do(one.scope)]

    async def call(self, person: Person, name: str, arguments: Mapping[str, Any]) -> JSONObject:
        """Use a tool for a person.

        Raises:
            InputError: the tool does not exist.
            HTTPException: 403; it is not for this person.
            ValidationError: the arguments are not its own.
            StandfastError: it cannot be done.
        """
        if (offer := self._offers.get(name)) is None:
            raise InputError(f"There is no tool {name[:100]!r} here; the tools are {', '.join(self._offers)}")
        self._doors.senders.check_rights(person, offer.role, offer.scope)
        asked = offer.arguments.model_validate(dict(arguments))
        if (run := getattr(asked, "run", None)) is not None:
            await admit(self._doors.people, person, run)
            if (run_id := getattr(asked, "run_id", None)) is not None:
                await admit(self._doors.people, person, run, run_id)
        return await offer.do(person, asked)

    # --- what there is ---

    def _starts(self) -> Iterator[Offer]:
        for item in self._doors.items.values():
            name, is_agent = f"start_{item.name}", isinstance(item, Agent)
            if len(name) > _LONGEST_NAME:
                raise DefinitionError(
                    f"{item.name}: an MCP tool name has at most {_LONGEST_NAME} characters, and {name} has {len(name)}"
                )
            about = (getattr(item, "description", None) or "").rstrip(" .")
            own = _own_arguments(item)
            yield Offer(
                name,
                f"Start {'the agent' if is_agent else 'the pipeline'} {item.name} in the "
                f"background{f': {about}' if about else ''}. It may act on the outside world. Returns the run: "
                f"read its end with `result`. Pass a {'message_id' if is_agent else 'session_id'} to make this "
                "repeatable: then a run is started once, and found again.",
                StartPipeline if not is_agent else StartInContext if own.schemas else StartAgent,
                self._start_of(item),
                "operator",
                "start",
                schemas=own.schemas,
                required=own.required,
            )

    def _looks(self) -> Iterator[Offer]:
        yield Offer(
            "send_message",
            "Send a message to an agent: to a run in flight, or, after its end, to the next run of its session.",
            Say, self._say, "operator", "message",
        )  # fmt: skip
        yield Offer(
            "status", "Return the progress of a run, and its items that wait for people.",
            Look, self._status, "viewer", "read", is_reading=True,
        )  # fmt: skip
        yield Offer(
            "result",
            "Wait for the end of a run, and return its result; or, if the time has passed or people must act "
            "first, its progress.",
            Await, self._result, "viewer", "read", is_reading=True,
        )  # fmt: skip
        yield Offer(
            "pending", "Return the items that wait for people: for one run in full, for all runs as a list.",
            Waits, self._pending, "viewer", "read", is_reading=True,
        )  # fmt: skip

    def _decisions(self) -> Iterator[Offer]:
        for decision in ("approve", "reject"):
            yield Offer(
                decision,
                f"{decision.capitalize()} at a gate, in the name of the signed-in person. Only if that person has "
                "said so; `pending` shows the contents, with their digest.",
                Decide, self._decide_of(decision), "approver", "decide", is_once=True,
            )  # fmt: skip
        yield Offer(
            "answer", "Answer the question of a run, in the name of the signed-in person.",
            Reply, self._answer, "approver", "answer",
        )  # fmt: skip

    # --- what they do ---

    def _start_of(self, item: Agent | Pipeline) -> Callable[[Person, Any], Awaitable[JSONObject]]:
        async def start(person: Person, asked: Any) -> JSONObject:
            message_id = getattr(asked, "message_id", None)
            given = StartRun(name=item.name, **asked.model_dump(exclude_none=True, exclude={"message_id"}))
            # Without message ids, a session is started once; with ids, each message is.
            is_once = message_id is None or given.session_id is None
            only_once = {"id_reuse_policy": WorkflowIDReusePolicy.REJECT_DUPLICATE} if is_once else {}
            note = "This was already started; nothing was started or sent again."
            try:
                begun = await self._doors.start(person, given, message_id, **only_once)
                run, is_new = begun.workflow_id, begun.is_new
            except SessionConflictError:
                if isinstance(item, Pipeline):
                    raise
                tenant = tenant_for(person, given.tenant_id)
                run, is_new = workflow_id(item.name, session_key_of(tenant, given.session_id or "")), False
                note = "This session already has a run, which did not get the message: use send_message."
            if is_new:
                return {"is_new": True, **await self._seen(run)}
            await admit(self._doors.people, person, run)  # another start may have been quicker
            return {"is_new": False, **await self._seen(run), "note": note}

        return start

    async def _say(self, person: Person, asked: Say) -> JSONObject:
        seen = listed(await our_run(self._doors.client, asked.run))
        item = self._doors.items.get(seen["type"])
        if "closed" not in seen:
            message_id = None if asked.message_id is None else said_id(asked.message_id, person)
            await self._doors.people.message(asked.run, asked.text, by=person.name, message_id=message_id)
        elif not isinstance(item, Agent) or "session_id" not in seen:
            raise InputError(f"Run {asked.run} has ended, and its agent cannot be started here")
        else:
            self._doors.senders.check_rights(person, "operator", "start")
            given = {"session_id": seen["session_id"], "tenant_id": seen.get("tenant_id"), "if_running": "message"}
            await self._doors.start(person, StartRun(name=item.name, message=asked.text, **given), asked.message_id)
        return await self._seen(asked.run)

    async def _status(self, person: Person, asked: Look) -> JSONObject:
        return _named(await looked_at(self._doors.client, asked.run, asked.run_id))

    async def _result(self, person: Person, asked: Await) -> JSONObject:
        clock = asyncio.get_running_loop().time
        until = clock() + asked.wait_seconds
        while True:
            seen = listed(await run_of(self._doors.client, asked.run, asked.run_id))
            if "closed" in seen:
                ended = await looked_at(self._doors.client, asked.run, asked.run_id)
                return {"has_ended": True, **_named(ended)}
            if seen["waiting"] or clock() >= until:
                return {"has_ended": False, **await self._seen(asked.run)}
            await asyncio.sleep(min(_EVERY, max(0.0, until - clock())))

    async def _pending(self, person: Person, asked: Waits) -> JSONObject:
        if asked.run is not None:
            return {"items": await self._shown(asked.run)}
        found = await waiting_for(self._doors.people, person, {}, _MOST + 1)
        return {"items": [_line(item) for item in found[:_MOST]], "has_more": len(found) > _MOST}

    def _decide_of(self, decision: Any) -> Callable[[Person, Any], Awaitable[JSONObject]]:
        async def decide(person: Person, asked: Decide) -> JSONObject:
            item = next((one for one in await self._shown(asked.run) if one["name"] == asked.gate), None)
            if item is not None and "digest" not in item and item["kind"] == "approval":
                raise InputError(str(item.get("why") or "This cannot be decided here"))
            given: dict[str, Any] = {"digest": asked.digest, "comment": asked.comment, "by": person.name}
            await self._doors.people.decide(asked.run, asked.gate, decision, **given)
            return {"done": True, **await self._seen(asked.run)}

        return decide

    async def _answer(self, person: Person, asked: Reply) -> JSONObject:
        await self._doors.people.answer(asked.run, asked.text, tool_call_id=asked.tool_call_id, by=person.name)
        return {"done": True, **await self._seen(asked.run)}

    # --- what is shown ---

    async def _seen(self, run: str) -> JSONObject:
        """Return a run as the server has it, without asking a worker; and its waiting items."""
        seen = _named(listed(await our_run(self._doors.client, run)))
        return (
            {**seen, "pending": [_line(one) for one in await self._doors.people.pending(run)]}
            if (seen["waiting"])
            else seen
        )

    async def _shown(self, run: str) -> list[JSONObject]:
        """Return the waiting items of a run in full; an item that cannot be shown in full has no digest."""
        shown = []
        for item in await self._doors.people.pending(run):
            whole = await load_whole(self._doors.store, {"workflow_id": run, **item})
            if whole is None:
                shown.append(item)
            elif whole.why is None and whole.size <= _SHOWN:
                shown.append({**item, "whole": whole.file})
            else:
                why = whole.why or f"It has {whole.size:,} bytes, which is too large to show here: decide on the page."
                shown.append({**{name: value for name, value in item.items() if name != "digest"}, "why": why})
        return shown


class _Own(NamedTuple):
    schemas: dict[str, JSONObject]
    required: tuple[str, ...]


def _own_arguments(item: Agent | Pipeline) -> _Own:
    """Return the schemas of the arguments that an agent or pipeline has a type for, and the required names."""
    if isinstance(item, Pipeline):
        schema = item.input_schema
        return _Own({} if schema is None else {"input": schema}, () if schema is None else ("input",))
    if item.context is None:
        return _Own({}, ())
    try:
        schema = item.context_schema or {}
    except DefinitionError:  # only code reads its type
        schema = {}
    return _Own({"context": schema}, ("context",) if item.needs_context else ())


def _named(seen: Mapping[str, Any]) -> JSONObject:
    return {"run": seen["workflow_id"], **{name: value for name, value in seen.items() if name != "workflow_id"}}


def _line(item: Mapping[str, Any]) -> JSONObject:
    """Return a list's line about a waiting item."""
    kept = ("workflow_id", "kind", "name", "message", "since", "deadline", "tool", "approvers")
    found = {name: item[name] for name in kept if item.get(name) is not None}
    return cast(JSONObject, {"run": found.pop("workflow_id"), **found} if "workflow_id" in found else found)
