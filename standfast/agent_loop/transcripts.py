"""Transcripts: which calls are unanswered, which messages may be added, how outcomes are written, and who speaks."""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar, assert_never

from pydantic import ValidationError
from pydantic_core import to_json

from standfast.agent_loop.actions import Settled
from standfast.agent_loop.tool_facts import CallT, LoopCall, ToolFacts
from standfast.agents import Agent
from standfast.agents.handoffs import handoff_tool_name
from standfast.errors import InputError, ToolDurabilityError
from standfast.messages import (
    LLMResponse,
    Message,
    Record,
    ToolCall,
    Usage,
    clean_text,
    cut,
    error_text,
    explain,
    json_problem,
    read_json,
)
from standfast.tools import TOOL_NAME, Asked, Cancelled, Failed, Outcome, Returned, Terminated, Unknown


def last_answer(messages: Sequence[Message]) -> int | None:
    """Return the index of the last assistant message, if only tool results follow it."""
    index = len(messages) - 1
    while index >= 0 and messages[index].role == "tool":
        index -= 1
    return index if index >= 0 and messages[index].role == "assistant" else None


def unanswered(messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """Return the last answer's calls that still lack a result."""
    last = last_answer(messages)
    if last is None:
        return ()
    results = {message.tool_call_id for message in messages[last + 1 :]}
    return tuple([call for call in messages[last].tool_calls or () if call.id not in results])


def read_transcript(messages: Iterable[Message | Mapping[str, Any]]) -> list[Message]:
    """Read a transcript from a caller; results are put in call order, system messages are left out.

    Raises:
        InputError: naming the message that is in the wrong place.
    """
    result: list[Message] = []
    open_calls: dict[str, ToolCall] = {}
    for index, given in enumerate(messages):
        message = _read_message(given, index)
        if message.role == "system":
            continue
        if problem := _misplaced(message, result, open_calls):
            raise InputError(f"messages[{index}]: {problem}")
        if message.role == "tool":
            del open_calls[message.tool_call_id or ""]
        for call in message.tool_calls or ():
            if not call.id or call.id in open_calls:
                raise InputError(f"messages[{index}]: tool call ids must be there and differ, got {call.id!r}")
            open_calls[call.id] = call
        result.append(message)
    if not result:
        raise InputError("messages: empty; give at least one message")
    return in_call_order(result)


def _misplaced(message: Message, before: Sequence[Message], open_calls: Mapping[str, ToolCall]) -> str | None:
    if message.tool_calls and message.role != "assistant":
        return "only an assistant message may carry tool calls"
    if message.role == "tool":
        if not any(earlier.role == "assistant" for earlier in before):
            return "Expected an assistant message before tool results"
        if message.tool_call_id not in open_calls:
            return f"no unanswered tool call has the id {message.tool_call_id!r}"
    elif open_calls:
        return (
            f"the tool calls {', '.join(open_calls)} before it have no results. "
            "Run the transcript up to there first, or add their results"
        )
    return None


def _read_message(given: Message | Mapping[str, Any], index: int) -> Message:
    if isinstance(given, Message):
        return given
    try:
        return Message.model_validate(given)
    except ValidationError as error:
        raise InputError(f"messages[{index}] is not a message: {explain(error)}") from error


def in_call_order(messages: Sequence[Message]) -> list[Message]:
    """Return the transcript with the results of each turn in the order of its calls."""
    result: list[Message] = []
    together: list[tuple[int, int]] = []  # of results of the last turn: the place of the call, and of the message
    position: dict[str | None, int] = {}
    for index, message in enumerate(messages):
        if message.role == "tool" and message.tool_call_id in position:
            together.append((position[message.tool_call_id], index))
            continue
        result += [messages[at] for _, at in sorted(together)]
        result.append(message)
        together.clear()
        if message.role == "assistant":
            position = {call.id: place for place, call in enumerate(message.tool_calls or ())}
    return result + [messages[at] for _, at in sorted(together)]


def repair_transcript(messages: Sequence[Message]) -> list[Message]:
    """Return a stored transcript as a model may see it: every call before the last turn answered, in call order.

    The store is not changed. A gap in the middle comes from another program, so the call's outcome is unknown.
    """
    result: list[Message] = []
    open_calls: dict[str | None, ToolCall] = {}
    for message in messages:
        if message.role == "tool" and open_calls.pop(message.tool_call_id, None) is None:
            continue  # a result without a call
        if message.role != "tool":
            result.extend([_result(call, _lost(call, ""), "failed") for call in open_calls.values()])
            open_calls = {call.id: call for call in message.tool_calls} if message.tool_calls else {}
        result.append(message)
    return in_call_order(result)


def extended(messages: Sequence[Message], more: Sequence[Message]) -> list[Message]:
    """Return a repaired transcript with later messages; results are moved into the turn they belong to."""
    last = last_answer(messages)
    at = len(messages) if last is None else last
    return [*messages[:at], *repair_transcript([*messages[at:], *more])]


def with_notices(view: list[Message], warning: str | None, nudge: str | None) -> list[Message]:
    """Return what the model sees with system messages added, never between a call and its result.

    A warning is about the last answer and stands before it; a nudge is about its results and stands at the end.
    """
    if warning is not None:
        last = last_answer(view)
        at = len(view) if last is None or not view[last].tool_calls else last
        view = [*view[:at], Message(role="system", content=warning), *view[at:]]
    if nudge is not None:
        view = [*view, Message(role="system", content=nudge)]
    return view


_REASON_BYTES = 2_000  # of a question
RecordT = TypeVar("RecordT", bound=Record)
_CALL_ID = re.compile(r"[a-zA-Z0-9_.:|-]{1,256}")


def answer_message(
    response: LLMResponse,
    *,
    turn: int,
    taken: AbstractSet[str],
    tools: AbstractSet[str],
    limit: int,
    model: str | None = None,
    agent: str | None = None,
) -> Message:
    """Make the assistant message of an answer, fit to be stored and sent back, whatever the model produced.

    Args:
        turn: where the message will stand; makes ids that come out the same when the answer is read again.
        taken: call ids used before.
        tools: names that exist; a malformed name never becomes one of them.
        limit: the longest text in bytes.
        model: which answered, if it is not the agent's own.
        agent: which answered, if there are several.
    """
    calls: dict[str, ToolCall] = {}
    for position, call in enumerate(response.tool_calls):
        call_id, name, arguments = call.id, _tool_name(call.name, tools), call.arguments
        if not _CALL_ID.fullmatch(call_id) or call_id in taken or call_id in calls:
            call_id = f"call_{turn}_{position}"
            while call_id in taken or call_id in calls:
                call_id += "_"
        if isinstance(arguments, str):
            arguments = cut(arguments, limit)
        elif len(written := to_json(arguments)) > limit:
            arguments = cut(written.decode(), limit)
        kept = call if arguments is call.arguments else ToolCall(arguments=arguments)
        if (call_id, name) != (kept.id, kept.name):
            kept = kept.model_copy(update={"id": call_id, "name": name})
        calls[call_id] = kept
    usage, thought = response.used, response.reasoning
    if thought is not None and (json_problem(list(thought.blocks)) or len(to_json(thought.blocks)) > limit):
        thought = None  # what cannot be kept cannot be sent back
    return Message(
        role="assistant",
        content=cut(clean_text(response.text), limit),
        tool_calls=tuple(calls.values()) or None,
        usage=usage,
        cost=response.cost if usage is None or response.cost is not None else usage.cost,
        reasoning=thought,
        stop_reason=response.not_whole,
        hosted=response.hosted and first_of(response.hosted, limit),
        citations=response.citations and first_of(response.citations, limit),
        model=model,
        agent=agent,
    )


def first_of(records: Sequence[RecordT], limit: int) -> tuple[RecordT, ...]:
    """Return as many of them as have `limit` bytes together."""
    kept, size = list[RecordT](), 0
    for record in records:
        size += len(record.model_dump_json())
        if size > limit:
            break
        kept.append(record)
    return tuple(kept)


def _tool_name(name: str, tools: AbstractSet[str]) -> str:
    if TOOL_NAME.fullmatch(name):
        return name
    readable = "invalid_" + re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:40]
    while readable in tools:
        readable += "_"
    return readable


def result_message(call: LoopCall, outcome: Outcome, limit: int, usage: Usage | None = None) -> Message | None:
    """Return what the model reads about an outcome, with at most about `limit` bytes of an error.

    None for a question: its answer will be the result.

    Args:
        usage: of the agents that the call ran.
    """
    match outcome:
        case Returned(content):
            return _result(call, content, "completed", usage)
        case Failed(error):
            return _result(call, _error(cut(error, limit)), "failed", usage)
        case Terminated(error):
            return _result(call, _error(cut(error_text(error), limit)), "failed", usage)
        case Unknown(reason):
            return _result(call, _lost(call, cut(reason, limit)), "failed", usage)
        case Cancelled(reason):
            return _result(call, _error(reason), "cancelled", usage)
        case Asked():
            return None
        case _:
            assert_never(outcome)


def question_of(call: LoopCall, outcome: Outcome) -> str:
    """Return the question about a call that asks a person, or whose outcome is unknown."""
    if isinstance(outcome, Asked):
        return outcome.question
    reason = cut(outcome.reason, _REASON_BYTES) if isinstance(outcome, Unknown) else ""
    if reason.endswith("…"):  # a history of an earlier version has only its beginning
        reason = ""
    return f"{ToolDurabilityError.sentence(call.name, call.id, reason)} What came of it? The answer becomes its result."


def outcome_of(message: Message) -> Outcome:
    """Return the outcome that a result was made of, as far as it says."""
    if message.status == "completed":
        return Returned(message.content)
    try:
        error = json.loads(message.content)
    except ValueError:
        return Failed(message.content)
    if not isinstance(error, dict):
        return Failed(message.content)
    if error.get("kind") == ToolDurabilityError.kind:
        return Unknown(ToolDurabilityError.read_reason(error))
    text = str(error.get("error"))
    return Cancelled(text) if message.status == "cancelled" else Failed(text)


def _result(call: LoopCall, content: str, status: Any, usage: Usage | None = None) -> Message:
    return Message(
        role="tool",
        content=content,
        tool_call_id=call.id,
        tool_name=call.name,
        status=status,
        usage=usage,
        cost=None if usage is None else usage.cost,
    )


def _lost(call: LoopCall, reason: str) -> str:
    return json.dumps(ToolDurabilityError(call.name, call.id, reason=reason).payload(), ensure_ascii=False)


def _error(text: str) -> str:
    return json.dumps({"error": text}, ensure_ascii=False)


def not_found(name: str, tools: Iterable[str]) -> Failed:
    """Return the outcome of a call to a tool that the agent does not have."""
    return Failed(f'Tool "{name}" not found. Available tools: {", ".join(tools) or "none"}')


def target_of(call: LoopCall, tools: Mapping[str, ToolFacts]) -> str:
    """Return the agent that a call hands the conversation over to; "" if it is another call."""
    tool = tools.get(call.name)
    return "" if tool is None else tool.handoff


def handoff_outcome(target: str, before: str) -> Outcome:
    """Return the outcome of a call that hands over. Nothing runs: the next answer is the other agent's.

    Args:
        before: to whom an earlier call of the same turn hands over; "" if none does.
    """
    if before:
        return Failed(f"Not done: the conversation was handed over to {before}; only one handoff per turn counts")
    return Returned(json.dumps({"handed_over_to": target}))


def handed_over_to(outcomes: Sequence[Settled[CallT]], tools: Mapping[str, ToolFacts]) -> str:
    """Return the agent that a turn has handed over to; "" if to none."""
    targets = (target_of(call, tools) for call, outcome in outcomes if isinstance(outcome, Returned))
    return next(filter(None, targets), "")


def last_speaker(messages: Sequence[Message]) -> str:
    """Return who gave the last answer of a transcript; "" for the session's own agent."""
    for message in reversed(messages):
        if message.role == "assistant":
            return message.agent or ""
    return ""


def next_speaker(agent: Agent, messages: Sequence[Message]) -> str:
    """Return who answers next in a transcript of an agent's session; "" if it never hands over.

    The transcript alone determines this, so a later run, the other driver or a checkpoint has the same agent.

    Raises:
        InputError: the conversation is with an agent that this one does not know.
    """
    speaker = agent.speaking(last_speaker(messages))
    speaker = agent.speaking(handed_to(speaker, messages) or speaker.name)
    return speaker.name if agent.speakers else ""


def handed_to(speaker: Agent, messages: Sequence[Message]) -> str:
    """Return the name, as it was then, of the agent that the last turn of a transcript handed over to; "" if to none.

    The call's result says it, even if a deploy has since renamed the agent, or `speaker` no longer hands over to it.
    """
    results = itertools.takewhile(lambda message: message.role != "assistant", reversed(messages))
    found = (_target(result, speaker.tool_map) for result in results if result.status == "completed")
    return next((target for target in reversed(list(found)) if target), "")


def _target(result: Message, tools: Mapping[str, ToolFacts]) -> str:
    tool = tools.get(result.tool_name or "")
    if tool is not None:
        return tool.handoff
    try:
        match read_json(result.content):
            case {"handed_over_to": str(target)} if result.tool_name == handoff_tool_name(target):
                return target
    except ValueError:
        pass
    return ""
