"""Outcomes of tool calls as JSON, for the ledger of both drivers, and for Temporal."""

from collections.abc import Mapping
from typing import Any, TypedDict

from pydantic_core import to_json

from standfast.errors import InputError, TerminalError
from standfast.messages import clean_text, json_problem
from standfast.tools import Asked, Cancelled, Failed, KeptState, Outcome, Returned, Terminated, Unknown

_METADATA_BYTES = 16 * 1024  # of a terminal error


class WrittenOutcome(TypedDict, total=False):
    """The outcome of a call, as `write_outcome` writes it: one of the first six keys, and its further fields.

    Only the ledger has a `state`.
    """

    returned: str
    failed: str
    asked: str
    terminated: str
    unknown: str
    cancelled: str
    about_unknown: bool
    status_code: int
    metadata: dict[str, Any] | None
    state: KeptState
    size: int
    spent: Any
    by: str
    call: str


def write_outcome(outcome: Outcome) -> WrittenOutcome:
    """Return an outcome as JSON: one key for its kind, and the fields of that kind."""
    match outcome:
        case Returned(content, state):
            return {"returned": content} if state is None else {"returned": content, "state": state}
        case Failed(error):
            return {"failed": error}
        case Asked(question, unknown):
            return {"asked": question, "about_unknown": True} if unknown else {"asked": question}
        case Terminated(error):
            return {
                "terminated": clean_text(str(error)),
                "status_code": error.status_code,
                "metadata": _plain_metadata(error),
            }
        case Unknown(reason):
            return {"unknown": reason}
        case Cancelled(reason):
            return {"cancelled": reason}


def _plain_metadata(error: TerminalError) -> dict[str, Any]:
    if problem := json_problem(error.metadata, _METADATA_BYTES // 2):
        return {"left_out": f"metadata: {problem}"}
    if (size := len(to_json(error.metadata))) > _METADATA_BYTES:
        too_large = f"metadata: {size:,} bytes, more than {_METADATA_BYTES:,}"
        return {"left_out": f"{too_large}; keep large data elsewhere and send its location"}
    return error.metadata


def read_outcome(data: Mapping[str, Any]) -> Outcome:
    """Read the value that `write_outcome` wrote."""
    match data:
        case {"returned": content}:
            return Returned(content)
        case {"failed": error}:
            return Failed(error)
        case {"asked": question}:
            return Asked(question, data.get("about_unknown") is True)
        case {"terminated": text}:
            return Terminated(TerminalError(text, data.get("status_code", 500), data.get("metadata")))
        case {"unknown": reason}:
            return Unknown(reason)
        case {"cancelled": reason}:
            return Cancelled(reason)
    raise InputError(f"No outcome: {data!r:.80}")
