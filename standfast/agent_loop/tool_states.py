"""Decides what a call sees of its agent's state, and whether the change that it leaves can be kept."""

from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import to_json

from standfast.agents import STATE_BYTES, Agent
from standfast.errors import InputError
from standfast.messages import cut, error_text, read_json
from standfast.tools import Failed, KeptState, Outcome, Returned

_WHY_BYTES = 4_096


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
            why = cut(error_text(error), _WHY_BYTES)
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
