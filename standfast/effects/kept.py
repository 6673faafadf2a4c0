"""Outcomes of calls as the ledger keeps them."""

import json
from dataclasses import dataclass

from standfast.tools import Failed, Returned, Unknown


@dataclass(frozen=True, slots=True)
class Raised(Failed):
    """The function raised; `kind` is the name of the error's class."""

    kind: str = ""


Kept = Returned | Failed | Unknown


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
