"""The events that `run_streaming` yields."""

from dataclasses import dataclass

from standfast.checkpoints import Checkpoint, RunResult
from standfast.messages import Message, ToolCall


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the model's text. An adapter that cannot stream gives the whole text as one piece."""

    text: str


@dataclass(frozen=True, slots=True)
class ModelRetried:
    """The model could not be called and is called again after a delay; its partial answer is void."""

    error: str
    delay: float


@dataclass(frozen=True, slots=True)
class MessageAdded:
    """A message became part of the transcript, at `index`; with a durable store it is written."""

    index: int
    message: Message


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A tool call starts."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A tool call ended; `result` is what the model will read, None if it asked a question."""

    call: ToolCall
    result: Message | None


@dataclass(frozen=True, slots=True)
class CheckpointReached:
    """Another `checkpoint_interval` iterations are done."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The last event: what `run` would have returned."""

    result: RunResult


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A step of a pipeline starts; `step` is its path."""

    step: str


@dataclass(frozen=True, slots=True)
class StepCompleted:
    """A step of a pipeline is done, and its output fits."""

    step: str
    iterations: int
    response: str


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step of a pipeline failed; `reason` is one word, `error` a sentence."""

    step: str
    reason: str
    error: str


PipelineEvent = StepStarted | StepCompleted | StepFailed
Event = TextDelta | ModelRetried | MessageAdded | ToolStarted | ToolEnded | CheckpointReached | RunEnded
