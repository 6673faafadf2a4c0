"""Reads the results of activities so that none can wedge a workflow, also one of a user's own.

The SDK decodes a result before any code of the workflow runs. One that cannot be decoded, which an operator has put in
by hand, would fail the workflow's task again and again. So activities are asked for their results as they came.
"""

from dataclasses import dataclass
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

from standfast.messages import cut, error_text


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A payload that could not be read; whoever checks values refuses it and shows why."""

    reason: str

    def __repr__(self) -> str:
        return f"a payload that cannot be read ({self.reason})"


def undecodable(error: Exception) -> Undecodable:
    return Undecodable(" ".join(cut(error_text(error), 200).split()))


def read_result(found: RawValue | None, kind: Any = None) -> Any:
    """Return the result of an activity, which was asked for with `result_type=RawValue`.

    Args:
        kind: the type that it is read as; any by default.
    """
    if not isinstance(found, RawValue):  # completed without a result
        return None
    try:
        return workflow.payload_converter().from_payload(found.payload, kind)
    except Exception as error:
        return undecodable(error)
