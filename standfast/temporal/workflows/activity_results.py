"""Reads the results of activities so that no result can wedge a workflow, including a user's own workflow.

The SDK decodes a result before any workflow code runs. A result that cannot be decoded, such as one entered by an
operator, would fail the workflow task again and again. So activities return their results undecoded.
"""

from dataclasses import dataclass
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

from standfast.messages import cut, error_text


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A payload that could not be read; the code that validates values rejects it and shows the reason."""

    reason: str

    def __repr__(self) -> str:
        return f"a payload that cannot be read ({self.reason})"


def undecodable(error: Exception) -> Undecodable:
    return Undecodable(" ".join(cut(error_text(error), 200).split()))


def read_result(found: RawValue | None, kind: Any = None) -> Any:
    """Return the result of an activity that was called with `result_type=RawValue`.

    Args:
        kind: the type to decode it as; any by default.
    """
    if not isinstance(found, RawValue):  # completed without a result
        return None
    try:
        return workflow.payload_converter().from_payload(found.payload, kind)
    except Exception as error:
        return undecodable(error)
