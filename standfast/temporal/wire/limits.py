"""Limits of the data that crosses Temporal, and readers of untrusted data that enforce them."""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic_core import to_json

from standfast.errors import InputError
from standfast.messages import check_whole, clean_text, json_problem

INLINE_BYTES = 256 * 1024  # of one value in a history; Temporal refuses 2 MiB, and becomes slow long before
CHECKPOINT_BYTES = 1024 * 1024
VALUES = INLINE_BYTES // 2  # the maximum that fits into so many bytes; a workflow that walks a million seems to hang
RESULT_VALUES = CHECKPOINT_BYTES // 2
THOUGHTS = 300  # characters of a model's thoughts in a history
SOURCES = 16_384  # bytes, in a history, of a provider's own calls, and of the sources that an answer names
PREVIEW = 40  # characters of a result that people see in a history; the whole is in the store
PARKED_MESSAGES = 1_000  # kept by a run until it can take them in; Temporal ends a run at 10,000 signals
PARKED_BYTES = 768 * 1024  # of all of them as JSON: they cross a history together when the run continues as new
AWAITED_BYTES = 1_792 * 1024  # of all of them with the answer that the run waits for
QUESTION_BYTES = 4 * 1024  # of a question; a turn may have 64
SHOWN_BYTES = 16 * 1024  # of the arguments of a call that people are asked about
SCHEMAS_BYTES = 64 * 1024  # of the schemas of such calls of a turn; people edit the others' arguments as JSON
GATES_BYTES = 512 * 1024  # of all questions about the calls of a turn
PENDING_BYTES = 1_536 * 1024  # of all waiting items, in the answer to one query
OWN_GATES_BYTES = PENDING_BYTES - 128 * 1024  # of a user workflow's gates; all other waiting items are small
ITEM_NAME = 2_000  # characters of the name of a waiting item, as clients read it
LONGEST_NAME = 256  # characters of the name of a person who acts
EARLY_BYTES = 64 * 1024  # of decisions at gates that are not open


def check_json(value: object, what: str, limit: int = INLINE_BYTES) -> None:
    """Refuse a value that another process could not read, or that is too large for a history.

    Raises:
        InputError: naming `what` and the limit.
    """
    if problem := json_problem(value, limit // 2):
        raise InputError(f"{what}: {problem}")
    size = len(to_json(value))
    if size > limit:
        raise InputError(
            f"{what}: {size:,} bytes, more than {limit:,}; keep large data elsewhere and send its location"
        )


def read_fields(data: object, what: str, known: Mapping[str, type], *, own: Collection[str] = ()) -> dict[str, Any]:
    """Read a JSON object of known keys; None represents an absent one.

    Args:
        own: keys that only standfast uses, and that are not offered to people.

    Raises:
        InputError: naming the key and the rule.
    """
    if not isinstance(data, dict):
        raise InputError(f"{what} must be a JSON object with {_offered(known, own)}, got {shortened(data)}")
    check_json(data, what, CHECKPOINT_BYTES if own else INLINE_BYTES)
    if unknown := sorted(data.keys() - known.keys()):
        raise InputError(f"{what}: unknown key {unknown[0]!r}; it accepts {_offered(known, own)}")
    given = {name: value for name, value in data.items() if value is not None}
    for name, value in given.items():
        if not isinstance(value, known[name]) or (isinstance(value, bool) and known[name] is int):
            raise InputError(f"{what}: {name} must be {_NAMES[known[name]]}, got {shortened(value)}")
        if name in _WRITTEN and isinstance(value, str):
            given[name] = clean_text(value)
    check_names(given, what)
    return given


def _offered(known: Mapping[str, type], own: Collection[str]) -> str:
    return ", ".join(name for name in known if name not in own)


def check_names(given: Mapping[str, Any], what: str) -> None:
    """Refuse names and ids (all text except people's prose) that a store could not keep unchanged.

    Raises:
        InputError: naming the key.
    """
    for name, value in given.items():
        if isinstance(value, str) and name not in _WRITTEN:
            check_whole(value, f"{what}: {name}", LONGEST_NAME if name == "by" else None)


_WRITTEN = ("text", "message", "comment", "reason", "result", "input", "edit")


_NAMES: dict[Any, str] = {str: "text", int: "a whole number", dict: "an object", bool: "true or false", list: "a list"}


def shortened(value: object) -> str:
    """Return a value as people see it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"
