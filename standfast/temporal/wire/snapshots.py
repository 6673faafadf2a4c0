"""Snapshots that steer an agent's workflow: recorded once at its start, so that no deploy changes them later.

The snapshots and the loop's state contain nothing from the user: no callable, no schema, no text except names.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, NotRequired, TypedDict

from standfast.agents import Agent, DiminishingReturns, Lane, Loop, OnTerminalToolError, TokenBudget
from standfast.messages import JSONObject
from standfast.tools import RetryPolicy, Tool

GRACE = 5.0  # seconds of a tool attempt that are reserved for recording its handler's outcome
TIMEOUT = 60.0  # seconds of an attempt in facts without this field, as in the first version
_USUAL_RETRIES = RetryPolicy()
# The meaning of missing fields in facts: such facts are older than today's defaults.
_USUAL_LOOP = Loop(output_retries=0)
HOOKS = ("on_start", "on_complete", "on_stuck", "output")
BegunState = str | tuple[int, str]  # a state that `on_start` left, as JSON, and the changes by left calls before it


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFacts:
    """The facts that a workflow knows about a tool.

    Args:
        timeout: seconds from the start of an attempt to its end, including recording.
        attempts, initial, factor, longest: Temporal's retry policy; one attempt unless safe to retry.
        agent: whether it is an agent, which runs as a child workflow.
        handoff: the agent to which a call hands the conversation over; "" for other tools.
    """

    parallel: bool = False
    safe_to_retry: bool = False
    verify: bool | None = None
    timeout: float = TIMEOUT
    attempts: int = 1
    initial: float = 1.0
    factor: float = 2.0
    longest: float = 30.0
    agent: bool = False
    handoff: str = ""

    approval: ClassVar[None] = None
    """A workflow never looks for gates: the activity that has the model's answer does."""


class Surroundings(TypedDict):
    """The facts that a run needs to know about its worker and namespace.

    search: the namespace has the search attributes. notices: the worker has webhooks. receipts: workers give receipts.
    wakes: a reset wakes the run, even if nothing else comes with it. board: the store shows the run's waiting items.
    attaches: after a reset, the run looks up the end of an agent that it had started before.
    """

    search: bool
    notices: NotRequired[bool]
    receipts: NotRequired[bool]
    wakes: NotRequired[bool]
    board: NotRequired[bool]
    attaches: NotRequired[bool]


class GateSurroundings(Surroundings):
    """A user workflow's surroundings, found at its first gate.

    was_reset: it was reset before its first gate. Workers of earlier versions do not report it.
    binds_run: the digests of its gates are bound to this run, unlike those of earlier versions.
    shows_whole: a gate that does not fit into the query `pending` is refused. Earlier versions cut its message.
    shows_escalations: after a deadline, people read the message of the escalation, instead of the first one.
    fits_item: a gate that clients would not read, since it is too large, is refused.
    """

    was_reset: NotRequired[bool]
    binds_run: NotRequired[bool]
    shows_whole: NotRequired[bool]
    shows_escalations: NotRequired[bool]
    fits_item: NotRequired[bool]


WHOLE_GATES: GateSurroundings = {
    "search": False,
    "binds_run": True,
    "shows_whole": True,
    "shows_escalations": True,
    "fits_item": True,
}
"""The facts of this version, which no worker needs to look up."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that steer one run.

    Args:
        model: shown to people; "" if the agent names none.
        hooks: those of `HOOKS` that the agent has, and "approve" if it limits the approvers.
        limits_retries: whether the agent limits the attempts at its model; after them the run ends, and does not pause.
        fallbacks: the agent's other models.
        speakers: the model and the other models of each agent of the conversation, by name, if there are several.
        search: see `Surroundings`.
        lane: see `Agent.lane`.
    """

    loop: Loop
    tools: Mapping[str, ToolFacts]
    on_terminal_tool_error: OnTerminalToolError = "message"
    model: str = ""
    hooks: tuple[str, ...] = ()
    limits_retries: bool = False
    fallbacks: tuple[str, ...] = ()
    speakers: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    search: bool = False
    lane: Lane = "each"

    @classmethod
    def read(
        cls, data: Mapping[str, Any], *, max_iterations: int | None = None, max_tokens: int | None = None
    ) -> "Facts":
        """Read recorded facts, and replace the agent's limits by the run's own."""
        numbers = dict(data.get("loop", {}))
        numbers["on_model_outage"] = "retry" if data.get("outlasts") else "pause"  # like runs of earlier versions
        if max_iterations is not None:
            numbers["max_iterations"] = max_iterations
        budget = numbers.pop("token_budget", None)
        if max_tokens is not None:
            budget = {**(budget or {}), "max": min(max_tokens, (budget or {}).get("max", max_tokens))}
        if budget is not None:
            numbers["token_budget"] = TokenBudget(**budget)
        if (retry := numbers.pop("model_retry", None)) is not None:
            numbers["model_retry"] = RetryPolicy(**retry)
        if (short := numbers.pop("diminishing_returns", None)) is not None:
            numbers["diminishing_returns"] = DiminishingReturns(**short)
        return cls(
            loop=replace(_USUAL_LOOP, **numbers),
            tools={name: read_tool_facts(facts) for name, facts in data.get("tools", {}).items()},
            on_terminal_tool_error=data.get("on_terminal_tool_error", "message"),
            model=data.get("model", ""),
            hooks=tuple(data.get("hooks", ())),
            limits_retries="model_retry" in data.get("loop", {}),
            search=data.get("search", False),
            lane=data.get("lane", "each"),
            fallbacks=tuple(data.get("fallbacks", ())),
            speakers={
                name: (one.get("model", ""), tuple(one.get("fallbacks", ())))
                for name, one in data.get("agents", {}).items()
            },
        )

    def model_of(self, agent: str) -> str:
        """Return the model of an agent of the conversation; "" is the first."""
        return self.speakers[agent][0] if agent in self.speakers else self.model


def write_facts(
    agent: Agent, tools: Mapping[str, Tool[..., Any]], surroundings: Surroundings, lane: Lane = "each"
) -> JSONObject:
    """Return an agent's facts as JSON, without default values.

    Args:
        lane: of agents without their own.
    """
    speakers = agent.speakers.values() or (agent,)
    agents = {item.name for one in speakers for item in one.tools if isinstance(item, Agent)}
    facts: JSONObject = {
        "loop": _write_loop(agent),
        "tools": {name: write_tool_facts(tool_facts(tool, name in agents)) for name, tool in tools.items()},
    }
    if (agent.lane or lane) != "each":
        facts["lane"] = agent.lane or lane
    if agent.loop.on_model_outage == "retry":
        facts["outlasts"] = True  # not in `loop`, where workers of earlier versions would fail on it
    if agent.on_terminal_tool_error != "message":
        facts["on_terminal_tool_error"] = agent.on_terminal_tool_error
    if agent.model is not None:
        facts["model"] = agent.model
    if agent.speakers:
        facts["agents"] = {name: _models_of(one) for name, one in agent.speakers.items()}
    hooks = [name for name in HOOKS if getattr(agent, name) is not None]
    if hooks := [*hooks, *(["approve"] if "approve" in agent.access else [])]:
        facts["hooks"] = hooks
    facts |= {name: True for name, is_so in surroundings.items() if is_so}
    if agent.fallback_models:
        facts["fallbacks"] = list(agent.fallback_models)
    return facts


def _write_loop(agent: Agent) -> JSONObject:
    given, loop = agent.loop, _changed(_USUAL_LOOP, agent.loop)
    loop.pop("context_compression", None)
    loop.pop("on_model_outage", None)
    if "model_retry" in loop:
        loop["model_retry"] = asdict(given.model_retry)
    if given.budget is not None:
        loop["token_budget"] = {
            "max": given.budget.max,
            "stop_threshold": given.budget.stop_threshold,
            "warning_threshold": given.budget.warning_threshold,
        }
    if given.diminishing_returns is not None:
        loop["diminishing_returns"] = asdict(given.diminishing_returns)
    return loop


def _models_of(agent: Agent) -> JSONObject:
    models: JSONObject = {"model": agent.model, "fallbacks": list(agent.fallback_models)}
    return {name: value for name, value in models.items() if value}


def write_tool_facts(facts: ToolFacts) -> JSONObject:
    """Return a tool's facts as JSON, without default values."""
    return _changed(ToolFacts(), facts)


def read_tool_facts(data: Mapping[str, Any]) -> ToolFacts:
    return ToolFacts(**data)


def is_tool_facts(found: object) -> bool:
    """Whether a value can be read as facts of a tool."""
    return isinstance(found, dict) and all(
        name in _USUAL_FACTS and _is_like(value, _USUAL_FACTS[name]) for name, value in found.items()
    )


def _is_like(value: Any, usual: Any) -> bool:
    """Whether a value has the same kind as a fact's default: a flag, or an amount."""
    if isinstance(usual, str):
        return isinstance(value, str)
    if usual is None or isinstance(usual, bool):
        return value is usual or isinstance(value, bool)
    return isinstance(value, (type(usual), int)) and not isinstance(value, bool) and value >= 0


_USUAL_FACTS = asdict(ToolFacts())


def tools_of(started: Mapping[str, ToolFacts], told: Mapping[str, Any]) -> Mapping[str, ToolFacts]:
    """Return the tools that apply to the calls of a turn: those recorded at the start, with the turn's changes."""
    if not told:
        return started
    tools = {**started, **{name: read_tool_facts(facts) for name, facts in told.get("tools", {}).items()}}
    return {name: tools.get(name, ToolFacts()) for name in told["available"]} if "available" in told else tools


def tool_facts(tool: Tool[..., Any], agent: bool = False) -> ToolFacts:
    """Return the facts that a workflow needs to know about a tool."""
    policy = tool.retry or _USUAL_RETRIES
    return ToolFacts(
        parallel=tool.parallel,
        safe_to_retry=tool.safe_to_retry,
        verify=None if tool.verify is None else True,
        timeout=TIMEOUT if agent else tool.seconds + GRACE,  # agents run without a time limit
        attempts=policy.maximum_attempts if tool.safe_to_retry else 1,
        initial=policy.waits[0],
        factor=policy.backoff_coefficient,
        longest=policy.waits[1],
        agent=agent,
        handoff=tool.handoff,
    )


def _changed(usual: Any, value: Any) -> JSONObject:
    return {
        name: getattr(value, name)
        for name in usual.__dataclass_fields__
        if getattr(value, name) != getattr(usual, name)
    }
