"""The bodies of requests and answers of the JSON API, from which its OpenAPI document is made."""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from standfast.agent_loop import Remember, StandingApproval
from standfast.messages import Image, JSONObject, Message
from standfast.stores.protocol import LONGEST_TENANT, SESSION_ID
from standfast.temporal.client.runs.decisions import MOST

GATE = AliasChoices("gate", "name")  # waiting items call it a name
GATE_NAME = "The `name` of the waiting item."
_Name = Annotated[str, Field(min_length=1, max_length=200)]
_Text = Annotated[str, Field(min_length=1, max_length=200_000)]
_Session = Annotated[str, Field(pattern=f"^{SESSION_ID.pattern}$")]
Tenant = Annotated[str, Field(pattern=f"^{SESSION_ID.pattern}$", max_length=LONGEST_TENANT)]


class Body(BaseModel):
    """The body of a request; an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StartRun(Body):
    """An agent or a pipeline to run."""

    name: _Name = Field(description="Of the agent or pipeline.")
    message: _Text | None = Field(default=None, description="The message to the agent.")
    images: tuple[Image, ...] = Field(default=(), description="Beside the message.", max_length=20)
    input: Any = Field(default=None, description="Of a pipeline.")
    context: Any = Field(
        default=None, description="Context of an agent's run, in the agent's type; by default a session keeps its own."
    )
    session_id: _Session | None = Field(default=None, description="The conversation or run key.")
    tenant_id: Tenant | None = Field(default=None, description="Required if you belong to several tenants.")
    if_running: Literal["refuse", "message"] = Field(default="refuse", description="If one is in flight.")


class Decide(Body):
    """A decision at a gate, with the `digest` of the contents that were reviewed."""

    gate: Annotated[str, Field(min_length=1, max_length=2_000, validation_alias=GATE, description=GATE_NAME)]
    decision: Literal["approve", "reject"]
    digest: Annotated[str, Field(min_length=1, max_length=200)]
    comment: _Text | None = None
    edit: Any = Field(default=None, description="All arguments to run the call with, or the whole value of a gate.")
    remember: Remember | None = Field(default=None, description="Also approve later calls like this one.")


class ChosenGate(Body):
    """A gate, and the digest of the contents that were reviewed."""

    run: Annotated[str, Field(min_length=1, max_length=2_000)]
    gate: Annotated[str, Field(min_length=1, max_length=2_000, validation_alias=GATE, description=GATE_NAME)]
    digest: Annotated[str, Field(min_length=1, max_length=200)]


class DecideSeveral(Body):
    """One decision for several gates; each counts separately."""

    decision: Literal["approve", "reject"]
    gates: Annotated[tuple[ChosenGate, ...], Field(min_length=1, max_length=MOST)]
    comment: _Text | None = None


class Revoke(Body):
    """The id of a standing approval to end."""

    id: _Name


class Answer(Body):
    """An answer to a call's question, or to the first open one."""

    text: _Text
    tool_call_id: _Name | None = None


class Say(Body):
    """A message to an agent's run."""

    text: _Text
    images: tuple[Image, ...] = Field(default=(), max_length=20)


class Resume(Body):
    """How a paused run continues; skipping a call or step needs a reason."""

    action: Literal["retry", "abort", "skip"] = "retry"
    name: Annotated[str, Field(min_length=1, max_length=2_000)] | None = None
    model: _Name | None = None
    reason: _Text | None = None


class Resolve(Body):
    """The outcome of a call whose outcome was unknown."""

    tool_call_id: _Name
    decision: Literal["happened", "not-happened", "leave"]
    result: Any = None
    reason: _Text | None = None


class Nothing(Body):
    """No field is required."""


class Started(BaseModel):
    """The run, and whether this request has started it; a repeat with the same key has not."""

    workflow_id: str
    is_new: bool


class Done(BaseModel):
    """The act counts; `note` gives the time if it counts later."""

    done: Literal[True] = True
    note: str | None = None


class DecidedGate(BaseModel):
    """The outcome of a decision; "unknown" if it was sent, and may count later."""

    run: str
    gate: str
    outcome: Literal["done", "refused", "unknown"]
    why: str | None = None
    note: str | None = None


class DecidedGates(BaseModel):
    """The outcome of each decision, in order."""

    gates: list[DecidedGate]


class Me(BaseModel):
    """The sender of the request; `csrf` is for browsers that have signed in with a cookie."""

    name: str
    role: str
    tenants: list[str] | None = None
    only_own: bool
    scopes: list[str] | None = None
    csrf: str | None = None


class Run(BaseModel):
    """The server's entry for a run; `state`, `result` or `error` only for a single one."""

    model_config = ConfigDict(extra="allow")

    workflow_id: str
    run_id: str
    type: str
    status: str
    waiting: list[str] = []
    session_id: str | None = None
    tenant_id: str | None = None
    started: str | None = None
    closed: str | None = None


class Runs(BaseModel):
    """A page of runs, the latest start first; `next` is the `page` of the next one."""

    runs: list[Run]
    next: str | None = None


class Transcript(BaseModel):
    """Messages, the oldest first; `next` is the `after` of the next ones."""

    messages: list[Message]
    next: int | None = None


class Items(BaseModel):
    """An item that waits for people."""

    items: list[JSONObject]


class Waiting(BaseModel):
    """A page of items that wait for people, the next deadline first.

    `next` is the `after` of the next page. `counts` are of all pages, by kind, if a store has a board.
    """

    items: list[JSONObject]
    counts: dict[str, int] | None = None
    next: str | None = None


class ListedApproval(StandingApproval):
    """A standing approval, with the reason why its giver could not give it today; calls pass by it all the same."""

    outdated: str | None = None


class Standing(BaseModel):
    """Standing approvals, the newest first; `used` counts as far as the audit trail goes back."""

    standing: list[ListedApproval]


class Problem(BaseModel):
    """What happened, and what to do."""

    code: str
    message: str
    do: str


class Error(BaseModel):
    """The answer to every failed request."""

    error: Problem
