"""Outcomes of calls as the ledger keeps them."""

import json
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from standfast.effects import failures
from standfast.tools import Failed, Returned, Unknown
from standfast.tools.kept_results import changed_by_json


@dataclass(frozen=True, slots=True)
class Raised(Failed):
    """The function raised; `kind` is the name of the error's class."""

    kind: str = ""


Kept = Returned | Failed | Unknown


def written(value: Any, result: TypeAdapter[Any]) -> Kept:
    """Return a result as JSON, for the ledger."""
    try:
        text = result.dump_json(value).decode()
        result.validate_json(text)
        problem = changed_by_json(value, text, result)
    except Exception as error:
        return Failed(f"ran, but its result was lost: it cannot be kept as JSON ({failures.said_by(error)})")
    return Returned(text) if problem is None else Failed(f"ran, but its result could not be kept whole: {problem}")


def write_kept(outcome: Kept) -> str:
    match outcome:
        case Returned(content):
            return json.dumps({"returned": content})
        case Raised(error):
            return json.dumps({"failed": error, "kind": outcome.kind})
        case Failed(error):
            return json.dumps({"failed": error})
        case Unknown(reason):
            return json.dumps({"unknown": reason})


def read_kept(text: str) -> Kept:
    kept = json.loads(text)
    if "returned" in kept:
        return Returned(kept["returned"])
    if "kind" in kept:
        return Raised(kept["failed"], kind=kept["kind"])
    return Failed(kept["failed"]) if "failed" in kept else Unknown(kept["unknown"])
