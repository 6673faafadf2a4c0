"""The facts about tools that the loop needs: which calls run together, and what a lost call means."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from standfast.messages import ToolCall
from standfast.tools import Cancelled, Failed, Outcome, Unknown


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


def cut_off(tool: ToolFacts, name: str, after: float) -> Outcome:
    """Return the outcome of an attempt that exceeded its timeout of `after` seconds."""
    reason = f"it was cut off after its timeout of {after:g} s"
    return Failed(f'Tool "{name}": {reason}', raised=True) if tool.safe_to_retry else Unknown(reason)


def cancelled(tool: ToolFacts | None) -> Outcome:
    """Return the outcome of a call that was cancelled while it ran."""
    if tool is None or tool.safe_to_retry:
        return Cancelled("Cancelled while it ran")
    return Unknown("it was cancelled while it ran")


def may_run_again(tool: ToolFacts | None) -> bool:
    """Whether an orphaned call may run again. Nobody can tell if it ran, and a removed tool may have had effects."""
    return tool is not None and (tool.safe_to_retry or tool.verify is not None)


def batches(calls: Iterable[ToolCall], tools: Mapping[str, ToolFacts]) -> tuple[tuple[ToolCall, ...], ...]:
    """Put adjacent parallel calls into one batch; every other call is a batch of its own."""
    batches: list[list[ToolCall]] = []
    open_batch = False
    for call in calls:
        parallel = call.name in tools and tools[call.name].parallel
        if parallel and open_batch:
            batches[-1].append(call)
        else:
            batches.append([call])
        open_batch = parallel
    return tuple(tuple(batch) for batch in batches)
