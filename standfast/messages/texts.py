"""Texts and JSON that any database, provider and process can read; and errors as text."""

import json
import math
import re
import unicodedata
from collections import deque
from collections.abc import Iterable
from itertools import repeat
from typing import Any

from pydantic import ValidationError

from standfast.errors import InputError

MAX_DEPTH = 64  # deeper JSON encodes but does not decode everywhere: about 980 levels wedge a Temporal workflow
LONGEST_ID = 200  # characters of the id of a message
MAX_DIGITS = 4_300  # of an integer; Python's own limit for reading one
TOO_LONG = 10**MAX_DIGITS
_MOST_LEAVES = 20  # errors of a group that are shown


def clean_text(text: str) -> str:
    """Return text that any database and provider accepts: no NUL, no lone surrogates (each becomes U+FFFD)."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if not text.isascii() and _has_lone_surrogate(text):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def check_whole(name: object, what: str, most: int | None = None) -> str:
    """Return a name of a person or thing, which must be text that any database keeps unchanged.

    Cleaned, as people's prose is, it would name a different person or thing.

    Args:
        most: maximum number of characters; None means no limit.

    Raises:
        InputError: with the reason.
    """
    if not isinstance(name, str) or clean_text(name) != name:
        raise InputError(f"{what} must be text without NUL or lone surrogates, got {name!r:.80}")
    if most is not None and len(name) > most:
        raise InputError(f"{what} is longer than {most:,} characters")
    return name


def check_message_id(message_id: object) -> str:
    """Return a user message's id.

    Raises:
        InputError: it is not one line of 1 to 200 characters.
    """
    if isinstance(message_id, str) and 0 < len(message_id) <= LONGEST_ID and message_id.isprintable():
        return message_id
    raise InputError(f"message_id must be 1 to {LONGEST_ID} printable characters, got {message_id!r:.80}")


def error_text(error: BaseException) -> str:
    """Return an exception's text, fit for a tool result; the name of its type if it has no text.

    A group is followed by its errors, including those of nested groups.
    """
    if isinstance(error, BaseExceptionGroup):
        return _group_text(error)
    try:
        # str() of a KeyError is the bare key, which is meaningless on its own.
        text, name = clean_text(str(error)), type(error).__name__
        return f"{name}: {text}" if text and isinstance(error, KeyError) else text or name
    except Exception:  # a __str__ that raises
        return type(error).__name__


def _group_text(group: "BaseExceptionGroup[Any]") -> str:
    leaves, waiting, count = list[str](), deque[BaseException](group.exceptions), 0
    while waiting:
        one = waiting.popleft()
        if isinstance(one, BaseExceptionGroup):
            waiting.extendleft(reversed(one.exceptions))
            continue
        count += 1
        if count <= _MOST_LEAVES:
            text, name = error_text(one), type(one).__name__
            leaves.append(text if text.startswith(name) else f"{name}: {text}")
    more = f"; and {count - _MOST_LEAVES:,} more" if count > _MOST_LEAVES else ""
    return f"{clean_text(str(group.message))}: {'; '.join(leaves)}{more}"


def size_over(text: str, limit: int) -> int | None:
    """Return a text's size in bytes if it is more than `limit`, else None; short texts need no encoding."""
    if len(text) <= limit // 4:
        return None
    size = len(text.encode())
    return size if size > limit else None


def with_article(noun: str) -> str:
    """Return a noun, such as the name of a type, after "a" or "an"."""
    return f"{'an' if noun[:1] in 'AEIOaeio' else 'a'} {noun}"


def cut(text: str, limit: int) -> str:
    """Return at most `limit` bytes of a text, with a note where something is missing."""
    size = size_over(text, limit)
    if size is None:
        return text
    return text.encode()[:limit].decode(errors="ignore") + f"\n[cut: {limit:,} of {size:,} bytes]"


def is_cut(text: str) -> bool:
    return re.search(r"\n\[cut: [\d,]+ of [\d,]+ bytes\]$", text[-80:]) is not None


def read_json(text: str) -> Any:
    """Read strict JSON: no NaN, at most `MAX_DEPTH` deep, integers of at most `MAX_DIGITS` digits.

    Raises:
        InputError: with the reason.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON: {error}") from error
    if problem := json_problem(value):
        raise InputError(problem)
    return value


def unfenced(text: str) -> str:
    """Return the text inside a Markdown fence, which many models put around JSON; any other text unchanged.

    Without a regular expression: one that skips blanks on both sides of a text takes cubic time to find that the fence
    is never closed, and blocks the interpreter (4,000 line breaks: 106 s).
    """
    fenced = text.strip()
    if len(fenced) < 6 or not (fenced.startswith("```") and fenced.endswith("```")):
        return text
    inner = fenced[3:-3]
    if inner[:4].lower() == "json":
        inner = inner[4:]
    opening = len(inner) - len(inner.lstrip())
    line = inner.rfind("\n", 0, opening)
    return text if line < 0 else inner[line + 1 :].rstrip()


def read_object(text: str) -> dict[str, Any]:
    """Read a strict JSON object, as `read_json` does."""
    value = read_json(text)
    if not isinstance(value, dict):
        raise InputError(f"a JSON {_JSON_NAMES[type(value)]} instead of an object")
    return value


_JSON_NAMES = {list: "array", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def json_problem(value: object, most: int | None = None) -> str | None:
    """Return why a value is not strict JSON, or None. Walks without recursion, since the depth is in doubt.

    Args:
        most: maximum number of values, after which the walk stops.
    """
    level: list[object] = [value]
    seen = depth = 0
    while level:
        deeper: list[object] = []
        seen += len(level)
        if most is not None and seen > most:
            return f"more than {most:,} values"
        for item in level:
            if (type(item) is int and -TOO_LONG < item < TOO_LONG) or (type(item) is str and item.isascii()):
                continue  # soon: an array may have a million
            if isinstance(item, dict | list) and depth == MAX_DEPTH:
                return f"nested deeper than {MAX_DEPTH} levels"
            if isinstance(item, dict):
                if not all(map(isinstance, item, repeat(str))):
                    return "an object has a key that is not a string"
                deeper.extend(item)
                deeper.extend(item.values())
            elif isinstance(item, list):
                deeper.extend(item)
            elif problem := _scalar_problem(item):
                return problem
        level, depth = deeper, depth + 1
    return None


def _scalar_problem(item: object) -> str | None:
    match item:
        case str():
            return "a string has a lone surrogate" if not item.isascii() and _has_lone_surrogate(item) else None
        case None | bool():
            return None
        case float():
            return None if math.isfinite(item) else f"{item} is not JSON"
        case int():
            too_long = abs(item) >= TOO_LONG
            return f"an integer has more than {MAX_DIGITS} digits" if too_long else None
        case _:
            return f"a value of type {type(item).__name__} is not JSON"


def _has_lone_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def explain(error: ValidationError) -> str:
    """Put a validation error on one line: `field: reason; field: reason`."""
    return "; ".join(
        f"{'.'.join(str(part) for part in fault['loc']) or 'value'}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_input=False, include_context=False)[:5]
    )


def person(name: str | None) -> str:
    """Return a key that is the same for all spellings of a person's name; "" without a name.

    Case, full-width and other forms of a letter, spaces around the name and invisible characters do not make a
    different person.
    """
    if name is None:
        return ""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return "".join(sign for sign in plain if unicodedata.category(sign) not in _UNSEEN).strip()


_UNSEEN = ("Cf", "Cc")


def distinct_people(names: Iterable[str | None]) -> tuple[str, ...]:
    """Return each person once, in the order and the spelling of the first appearance."""
    found: dict[str, str] = {}
    for name in names:
        if name is not None and (who := person(name)):
            found.setdefault(who, name)
    return tuple(found.values())
