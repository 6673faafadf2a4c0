"""Outcomes of tool calls as JSON: the data read may be malformed, the data written is valid."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from standfast.agent_loop import agent_outcome, said_by_agent
from standfast.messages import JSONObject, Usage, cut, json_problem, size_over
from standfast.temporal.wire.activity_types import Source
from standfast.temporal.wire.inputs import INLINE_BYTES, PREVIEW, QUESTION_BYTES, VALUES
from standfast.tools import Asked, Failed, Returned, Terminated
from standfast.tools.calls import Outcome, WrittenOutcome
from standfast.tools.calls import read_outcome as read_outcome
from standfast.tools.calls import write_outcome as write_outcome


def source_of(outcome: Outcome) -> Source:
    """Return the place of a call's result that is nowhere else."""
    return cast(Source, write_outcome(outcome))


def previewed(written: WrittenOutcome) -> WrittenOutcome:
    """Return a written outcome with its text cut for a history, and the full size if it was cut."""
    outcome = {name: value for name, value in written.items() if name != "state"}  # the store has it
    kind = next(iter(outcome))
    text = cast(str, outcome[kind])
    if kind in ("asked", "terminated", "unknown"):
        # People read questions, terminal errors and the reasons of unknown outcomes as far as a history has room.
        return cast(WrittenOutcome, {**outcome, kind: cut(text, QUESTION_BYTES)})
    if len(text) <= PREVIEW:
        return cast(WrittenOutcome, outcome)
    return cast(WrittenOutcome, {**outcome, kind: text[:PREVIEW] + "…", "size": len(text.encode())})


def reported(outcome: WrittenOutcome, key: str) -> WrittenOutcome:
    """Return the report of a tool's activity: the outcome as a history has it, and its call.

    The call distinguishes it from a result that an operator enters, who may copy the report of another call.
    """
    return {**previewed(outcome), "call": key}


def is_reported(found: object, key: str) -> bool:
    """Whether a value is the report of a tool's activity about a call."""
    return isinstance(found, dict) and found.get("call") == key and is_outcome(found)


_OUTCOMES = ("returned", "failed", "asked", "terminated", "unknown", "cancelled")


def is_outcome(found: Mapping[str, Any]) -> bool:
    """Whether `read_outcome` can read it, and its other fields have the right types."""
    kinds = [kind for kind in _OUTCOMES if kind in found]
    status, spent = found.get("status_code", 500), found.get("spent")
    return (
        len(kinds) == 1
        and isinstance(found[kinds[0]], str)
        and isinstance(status, int)
        and isinstance(found.get("metadata"), dict | None)
        and (spent is None or is_usage(spent))
    )


def is_usage(found: object) -> bool:
    """Whether `Usage.of` can read it."""
    try:
        Usage.of(cast(Any, found))
    except (TypeError, ValueError, AttributeError):
        return False
    return True


def put_in(found: object) -> WrittenOutcome:
    """Return, as a written outcome, the result that an operator entered for a call: a text, or why it is unusable."""
    if problem := json_problem(found, VALUES):
        return {"failed": f"An operator entered an unusable result: {problem}"}
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    if size := size_over(text, INLINE_BYTES):
        return {"failed": f"An operator entered a result of {size:,} bytes, more than {INLINE_BYTES:,}"}
    return {"returned": text}


def shown_arguments(arguments: JSONObject | str) -> str:
    """Return a call's arguments on one line, cut for a history."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= PREVIEW else text[:PREVIEW] + "…"


def result_usage(result: JSONObject) -> Usage | None:
    """Return the usage of a run, from its result."""
    usage = result.get("usage")
    return None if usage is None else Usage(**usage)


def outcome_of_terminal_error(text: str, details: Sequence[object]) -> Terminated:
    """Return the outcome of a call whose agent's run failed with a terminal error, which becomes the caller's in full.

    Args:
        details: the failure's details, `{"status_code", "metadata"}` first; unreadable ones are omitted.
    """
    said = details[0] if details and isinstance(details[0], dict) else {}
    written = {**said, "terminated": text}
    return cast(Terminated, read_outcome(written if is_outcome(written) else {"terminated": text}))


def outcome_of_result(agent: str, result: Mapping[str, Any]) -> Returned | Asked | Failed:
    """Return the outcome of a call that has run an agent, from the result of its run."""
    status = str(result.get("status"))
    said = said_by_agent(status, result.get("response"), result.get("error"))
    return agent_outcome(agent, status, said, result.get("question"), unknown=result.get("about_unknown") is True)
