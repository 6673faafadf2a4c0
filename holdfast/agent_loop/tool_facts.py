"""What the loop knows of a tool, and what that makes of a call that was broken off."""

from typing import Protocol

from holdfast.tools import Cancelled, Failed, Outcome, Unknown


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
    """Return what an attempt came to that went past its timeout of `after` seconds."""
    reason = f"it was cut off after its timeout of {after:g} s"
    return Failed(f'Tool "{name}": {reason}', raised=True) if tool.safe_to_retry else Unknown(reason)


def cancelled(tool: ToolFacts | None) -> Outcome:
    """Return what a call came to that was cancelled while it ran."""
    if tool is None or tool.safe_to_retry:
        return Cancelled("Cancelled while it ran")
    return Unknown("it was cancelled while it ran")


def may_run_again(tool: ToolFacts | None) -> bool:
    """Nobody can tell whether an orphaned call ran. A tool that is gone may have had effects, too."""
    return tool is not None and (tool.safe_to_retry or tool.verify is not None)
