"""Types of the inputs and results of the activities of pipelines, which are JSON in a history; see `names`."""

from typing import Any, NotRequired, Required, TypedDict

from standfast.temporal.wire.activity_types import WrittenOutcome
from standfast.temporal.wire.snapshots import Surroundings


class Making(TypedDict):
    path: str
    what: str


class CameTo(TypedDict, total=False):
    """The result of a step; see `Work.keep`."""

    path: Required[str]
    status: str
    response: str
    iterations: int
    session: str
    outcome: WrittenOutcome
    ran: int
    output: Any


class Ending(TypedDict):
    done: list[str]
    failed: NotRequired[list[str]]


class StepReference(TypedDict, total=False):
    """A pipeline's step, to be kept, made, or ended; `raised` are the versions that have been tried."""

    run: Required[str]
    done: CameTo
    make: Making
    end: Ending
    known: dict[str, Any]
    raised: list[str]


class OpenedPipeline(Surroundings):
    """The facts that steer a pipeline's run; `done` has the results of the earlier run that it restarts."""

    pipeline: str
    plan: list[dict[str, Any]]
    gates: dict[str, Any]
    tools: dict[str, dict[str, Any]]
    again: NotRequired[bool]
    done: NotRequired[dict[str, Any]]


class Stepped(TypedDict, total=False):
    """The result of a step's activity; `failed` is a reason and its text."""

    kept: str
    failed: tuple[str, str]
    made: Any
    result: dict[str, Any]


class ShownValue(TypedDict, total=False):
    """A value that people see at a gate, by its `kind`; it may have further fields."""

    kind: Required[str]
    size: int
    media_type: str


class Shown(TypedDict, total=False):
    """The contents that people see at a gate beside the message. If they are large, `shown` has sizes."""

    shown: list[ShownValue]
    size: int
    reference: dict[str, Any]


class AskedAtGate(Shown):
    """The data that a step's activity has made for a gate; see `StepRecords.asked_at`."""

    message: Required[str]
    digest: Required[str]
    later: NotRequired[list["AskedAtGate"]]
    edits: NotRequired[bool]
