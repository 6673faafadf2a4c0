"""The actions that a driver carries out; `next_action` returns the next one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal

from standfast.agent_loop.tool_facts import CallT
from standfast.checkpoints import EndStatus, Question
from standfast.messages import Tripped, Usage
from standfast.tools import Outcome

Settled = tuple[CallT, Outcome]
UsedByAgents = Mapping[str, Usage]  # by the ids of the calls that ran them


@dataclass(frozen=True, slots=True)
class CallModel:
    """Call the model; a warning and a nudge are shown to it from now on (see `with_notices`).

    Args:
        warning: the tokens used when the budget's warning became due. Its text may be the user's code, which does
            not run here.
        model: a fallback, instead of the agent's own.
        agent: which agent of the conversation answers; "" if there is only one.
        decided: the gate that has held the answer, or what the user said. Only if people have approved what the user
            said, the model is called: else there is an answer, or one stands in its place.
    """

    warning: int | None = None
    nudge: str | None = None
    model: str | None = None
    agent: str = ""
    decided: Question | None = None


@dataclass(frozen=True, slots=True)
class OpenGates(Generic[CallT]):
    """Find out which of these calls people must approve, before any call of the turn runs (see `open_gates`)."""

    calls: tuple[CallT, ...]


@dataclass(frozen=True, slots=True)
class AskApproval:
    """Wait until these gates are decided; in any order, and none of the turn's calls runs before the last is.

    A gate that does not hold a call is the only one.
    """

    gates: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class CallTools(Generic[CallT]):
    """Run the batches one after the other, the calls of a batch together; `settled` ones are not run.

    Args:
        recovering: an earlier run may have started the calls; ask `verify` before a call with effects.
    """

    batches: tuple[tuple[CallT, ...], ...]
    settled: tuple[Settled[CallT], ...] = ()
    recovering: bool = False


@dataclass(frozen=True, slots=True)
class AskHuman:
    """Wait for the answer to `question`."""

    question: Question


@dataclass(frozen=True, slots=True)
class Finish:
    """End the run.

    Args:
        raises: raise the turn's terminal error once everything is recorded.
        tripped: the guardrail that ends it.
    """

    status: EndStatus
    response: str
    raises: bool = False
    tripped: Tripped | None = None

    @property
    def answer(self) -> str | None:
        """The final answer, which is read as the agent's output; None if the run ends without one."""
        return self.response if self.status == "complete" else None

    @property
    def hook(self) -> Literal["on_complete", "on_stuck"] | None:
        """The agent's hook for this ending. After an error there is none, and nothing more is written."""
        if self.status == "error":
            return None
        return "on_complete" if self.status == "complete" else "on_stuck"


@dataclass(frozen=True, slots=True)
class Correct:
    """Tell the model that its answer does not fit the agent's output, and ask again (see `LoopState.judged`)."""

    message: str


Action = CallModel | OpenGates[CallT] | AskApproval | CallTools[CallT] | AskHuman | Finish
