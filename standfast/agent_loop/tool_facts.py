"""The facts about tools and calls that the loop needs, and what a call sees and changes of its agent's state."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic_core import to_json
from typing_extensions import TypeVar

from standfast.agents import STATE_BYTES, Agent
from standfast.errors import InputError
from standfast.messages import StopReason, ToolCall, Tripped, Usage, cut, error_text, read_json
from standfast.tools import Asked, Cancelled, Failed, KeptState, Outcome, Returned, Unknown


class ToolFacts(Protocol):
    """What the loop needs to know of a tool."""

    @property
    def parallel(self) -> bool: ...
    @property
    def safe_to_retry(self) -> bool: ...
    @property
    def verify(self) -> object | None: ...
    @property
    def approval(self) -> object | None: ...
    @property
    def handoff(self) -> str: ...


class LoopCall(Protocol):
    """What the loop needs to know of a tool call; a driver may have more, or leave the arguments in the store."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...


CallT = TypeVar("CallT", bound=LoopCall, default=ToolCall)
CallT_co = TypeVar("CallT_co", bound=LoopCall, default=ToolCall, covariant=True)


class Answer(Protocol[CallT_co]):
    """What the loop needs to know of a model's answer."""

    @property
    def content(self) -> str: ...
    @property
    def tool_calls(self) -> tuple[CallT_co, ...] | None: ...
    @property
    def usage(self) -> Usage | None: ...
    @property
    def stop_reason(self) -> StopReason | None: ...
    @property
    def tripped(self) -> tuple[Tripped, ...] | None: ...


ToolT_co = TypeVar("ToolT_co", bound=ToolFacts, default=ToolFacts, covariant=True)


def cut_off(tool: ToolFacts, name: str, after: float, *, still_runs: bool = False) -> Outcome:
    """Return the outcome of an attempt that exceeded its timeout of `after` seconds.

    Args:
        still_runs: as in `Unknown`.
    """
    reason = f"it was cut off after its timeout of {after:g} s"
    if tool.safe_to_retry:
        return Failed(f'Tool "{name}": {reason}', raised=True)
    return Unknown(reason, cut_off=True, still_runs=still_runs)


def verify_cut_off(after: float, *, still_runs: bool = False) -> Unknown:
    """Return the verdict of a `verify` that exceeded its timeout of `after` seconds."""
    return Unknown(f"verify was cut off after {after:g} s{', and ignores cancellation' if still_runs else ''}")


def cancelled(tool: ToolFacts | None) -> Outcome:
    """Return the outcome of a call that was cancelled while it ran."""
    if tool is None or tool.safe_to_retry:
        return Cancelled("Cancelled while it ran")
    return Unknown("it was cancelled while it ran")


def left_open(tool: ToolFacts | None, reason: str = "") -> Outcome:
    """Return the outcome of a call that the run gives up, and that an earlier attempt has started and not ended."""
    return cancelled(tool) if tool is not None and tool.safe_to_retry else Unknown(reason)


def cancelled_itself(tool: ToolFacts | None) -> Outcome:
    """Return the outcome of a call whose handler raised a cancel itself.

    It may have sent its request before.
    """
    if tool is None or tool.safe_to_retry:
        return Failed("The tool was cancelled from within")
    return Unknown("the tool was cancelled from within", cut_off=True)


def not_started(tool: ToolFacts | None, *, recovering: bool = False, why: str | None = None) -> Outcome:
    """Return the outcome of a call that this run has not started before it stopped.

    Args:
        recovering: an earlier run may have started it.
        why: it stopped; that it was cancelled if None.
    """
    if recovering and (tool is None or not tool.safe_to_retry):
        return Unknown()
    return Cancelled(f"Not run: {why or 'the run was cancelled before this call started'}")


def without_dependencies(owner: str, error: str, *, has_begun: bool) -> Failed | Unknown:
    """Return the outcome of a call if what the tools of its agent or pipeline depend on could not be made.

    Args:
        owner: that agent or pipeline.
        has_begun: the call may have run before, and `verify` was due.
    """
    why = f"the dependencies of '{owner}' could not be made: {error}"
    return Unknown(f"verify was not run: {why}") if has_begun else Failed(f"Not run: {why}", raised=True)


def not_closed(tool: ToolFacts, owner: str, error: str) -> Failed | Unknown:
    """Return the outcome of a call if what it depended on could not be closed, which may undo what it did."""
    why = f"it ran, and the dependencies of '{owner}' could not be closed: {error}"
    return Failed(why, raised=True) if tool.safe_to_retry else Unknown(why, cut_off=True)


def failed_for_good(call: LoopCall) -> str:
    """Return why calls behind one do not start, whose tool has failed for good."""
    return f"call {call.id} of tool {call.name} failed for good"


def may_run_again(tool: ToolFacts | None) -> bool:
    """Whether an orphaned call may run again. It may have run already, and a removed tool may have had effects."""
    return tool is not None and (tool.safe_to_retry or tool.verify is not None)


def batches(calls: Iterable[CallT], tools: Mapping[str, ToolFacts]) -> tuple[tuple[CallT, ...], ...]:
    """Put adjacent parallel calls into one batch; every other call is a separate batch."""
    batches: list[list[CallT]] = []
    open_batch = False
    for call in calls:
        parallel = call.name in tools and tools[call.name].parallel
        if parallel and open_batch:
            batches[-1].append(call)
        else:
            batches.append([call])
        open_batch = parallel
    return tuple(tuple(batch) for batch in batches)


_WHY_BYTES = 8_192


def agent_outcome(
    agent: str, status: str, said: str, question: str | None = None, *, unknown: bool = False
) -> Returned | Asked | Failed:
    """Return the outcome of a call that has run an agent: its answer, its question, or why there is neither.

    Args:
        said: see `said_by_agent`.
        unknown: see `Asked`.
    """
    if status == "complete":
        return Returned(said)
    if status == "interrupted":
        return Asked(question or "", unknown)
    return Failed(cut(f"Agent '{agent}' ended with {status}: {said}", _WHY_BYTES))


def said_by_agent(status: str, response: str | None, error: str | None) -> str:
    """Return the answer of an agent; if it has not completed, rather why."""
    return (response if status == "complete" else error or response) or ""


def agent_failure(agent: str, why: str) -> str:
    """Return the error of a call or step whose agent was ended by something else."""
    return cut(f"Agent '{agent}' failed: {why}", _WHY_BYTES)


_STATE_ERROR_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class ToolState:
    """The agent's state as a call finds it."""

    agent: Agent
    kept: KeptState

    def read(self) -> Any:
        """Return a copy for one attempt; None for an agent without state."""
        return None if self.agent.state is None else self.agent.read_state(self.kept.text)

    def after(self, outcome: Outcome) -> "ToolState":
        """Return the state that the next call finds."""
        changed = outcome.state if isinstance(outcome, Returned) else None
        return self if changed is None else replace(self, kept=changed)

    def with_change(self, outcome: Outcome, left: Any, tool: str, *, parallel: bool) -> Outcome:
        """Return the outcome of a handler that has run, with the state if it changed that; only a result has one.

        Args:
            left: `ctx.state` as the handler leaves it.
            parallel: whether the tool is declared so; then other calls run beside it, and it may only read.
        """
        if not isinstance(outcome, Returned):
            return outcome
        try:
            text = self._written(left)
            if text is not None and parallel:
                raise InputError("a tool that is declared parallel=True may read it, but not change it")
        except Exception as error:  # including errors of the type's own validators
            why = cut(error_text(error), _STATE_ERROR_BYTES)
            return Failed(f'Tool "{tool}" ran, but its result and its change of the state were lost: {why}')
        return outcome if text is None else replace(outcome, state=KeptState(self.kept.number + 1, text))

    def _written(self, left: Any) -> str | None:
        """Return a state as JSON; None if it is as it was.

        Raises:
            InputError: it cannot be kept.
        """
        agent = self.agent
        if agent.state is None:
            if left is None:
                return None
            raise InputError(f"'{agent.name}' has no state: declare its type with Agent(state=…)")
        text = agent.write_state(left)
        if text == agent.write_state(agent.read_state(self.kept.text)):
            return None
        read_json(text)
        if (size := len(to_json(text))) > STATE_BYTES:
            raise InputError(f"the state has {size:,} bytes, more than {STATE_BYTES:,}")
        return text
