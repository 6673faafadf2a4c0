"""Texts and JSON that any database, provider and process can read; errors as text; and texts as people see them.

People approve what they read, and the texts also come from models and strangers, so nothing may be disguised. Escape
sequences must not reach a terminal. No character may be invisible or look like another one, and all characters must
appear in their actual order.
"""

import json
import math
import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import repeat
from typing import Any

from pydantic import ValidationError

from standfast.errors import InputError

JSONObject = dict[str, Any]  # as it was read, or will be written; `json_problem` tells whether it is strict JSON
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


def read_object(text: str) -> JSONObject:
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


# Joiners between letters of scripts that need them, and the parts of an emoji, are visible there. All other characters
# here are invisible: controls, direction marks, fillers, tags, variation selectors, unusual blanks.
_JOINED = r"[\u0600-\u08ff\u0900-\u0dff\u1000-\u109f\u1780-\u17ff]"
_EMOJI = r"[\u2190-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
_SHAPELESS = re.compile(
    rf"(?<={_JOINED})[\u200c\u200d](?={_JOINED})|(?<={_EMOJI})\ufe0f|(?<=[\ufe0f\U0001f000-\U0001faff])\u200d(?={_EMOJI})"
    # So are strokes through a letter, and the slash that makes a fraction of the digits around it.
    r"|(?P<shown>[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0334-\u0338\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f"
    r"\u2028-\u202e\u2044\u205f-\u206f\u20d2\u20d3\u20d8-\u20da\u20e5-\u20eb\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    # And what looks like a comma, a full stop or a 1 between digits.
    r"|(?<=[0-9])[\u201a\u2024\u2223\uff5c](?=[0-9]))"
)
_OF_OTHERS = ("CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU")  # scripts with Latin look-alikes
_ALIKE = frozenset("АВЕЅІЈКМНОРСТУХӀаеорсухѕіјһԁԛԝӏΑΒΕΖΗΙΚΜΝΟΡΤΥΧον")
_LIKE_DIGITS = frozenset("ӏӀОоΟοОоՕօⲒⲞⲟꓲꓳᛁǀ")  # letters that look like a digit next to digits
_WORD = re.compile(r"[^\W_]+")
# The blocks of right-to-left scripts; their numbers are separate, or two of them would change places.
_NUMBERS = r"\u0600-\u0605\u0660-\u0669\u066b\u066c\u06dd\u0890\u0891\u08e2\U00010d30-\U00010d39\U00010e60-\U00010e7e"
_LETTERS = (
    r"\u0590-\u05ff\u0606-\u065f\u066a\u066d-\u06dc\u06de-\u06ef\u06fa-\u088f\u0892-\u08e1\u08e3-\u08ff\ufb1d-\ufdff"
    r"\ufe70-\ufefe\U00010800-\U00010d2f\U00010d3a-\U00010e5f\U00010e7f-\U00010fff\U0001e800-\U0001efff"
)
_FROM_RIGHT = re.compile(
    rf"[{_NUMBERS}]+|[{_LETTERS}][{_LETTERS}\u200c\u200d]*(?: [{_LETTERS}][{_LETTERS}\u200c\u200d]*)*"
)
_DIGITS = "0123456789"
_FSI, _PDI = "\u2068", "\u2069"
_ISOLATED = re.compile(f"{_FSI}([^{_FSI}{_PDI}]*){_PDI}")


def visible(text: str) -> str:
    """Return a text in which nothing is hidden, for people: on a page, in a terminal, in a message.

    An invisible character is shown as `‹U+200B›`, and one that looks like another gets such a mark after it.
    Right-to-left words are isolated, so that everything else appears in order. Applying the function again changes
    nothing.
    """
    text = text.replace("\r\n", "\n")
    if text.isascii():
        return _SHAPELESS.sub(_marked, text)
    shown, end = [], 0
    for found in _ISOLATED.finditer(text):
        run = found[1]
        if _FROM_RIGHT.fullmatch(run) and _SHAPELESS.sub(_marked, run) == run:  # in the form of this function
            shown += [_shown(text[end : found.start()]), found[0]]
            end = found.end()
    return "".join([*shown, _shown(text[end:])])


def visible_json(value: object, *, indent: int | None = 2, default: Callable[[object], object] | None = None) -> str:
    """Return a value as JSON for people to read and edit: hidden characters, and look-alikes, are escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=default)
    if text.isascii() and "\x7f" not in text:
        return text
    escaped = _SHAPELESS.sub(lambda found: _escaped(found[0]) if found["shown"] else found[0], text)
    return _with_look_alikes(escaped, _escaped)


def _shown(text: str) -> str:
    return _with_isolates(_with_look_alikes(_SHAPELESS.sub(_marked, text), lambda char: f"{char}{_mark(char)}"))


def _mark(char: str) -> str:
    return f"‹U+{ord(char):04X}›"


def _marked(found: re.Match[str]) -> str:
    return _mark(found[0]) if found["shown"] else found[0]


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1]


# --- look-alike letters ---


def _with_look_alikes(text: str, write: Callable[[str], str]) -> str:
    """Mark characters that look like another letter or digit, unless they are already marked."""
    others = {char for char in set(text) if _script(char) in _OF_OTHERS}
    is_disguise = bool(others) and others <= _ALIKE and any(_is_latin(char) for char in set(text))

    def word(found: re.Match[str]) -> str:
        letters = found[0]
        if letters.isascii():
            return letters
        odd = {char: _mark(char) for char in _odd_in(letters, is_disguise)}
        if not odd:
            return letters
        at = found.start() + 1
        return "".join(
            write(char) if char in odd and not text.startswith(odd[char], at + place) else char
            for place, char in enumerate(letters)
        )

    return _WORD.sub(word, text)


def _odd_in(word: str, is_disguise: bool) -> Iterator[str]:
    has_latin = any(_is_latin(char) for char in word)
    has_digit = any("0" <= char <= "9" for char in word)
    is_number = has_digit and all(char.isdecimal() or char in _LIKE_DIGITS for char in word)
    for char in set(word):
        # A superscript digit is obvious at the end of a number, and easily missed before other digits.
        if unicodedata.category(char) == "No" and any(f"{char}{digit}" in word for digit in _DIGITS):
            yield char
        if char < "\u0100":
            continue
        is_other = _script(char) in _OF_OTHERS and (has_latin or is_disguise)
        is_digit = (char.isdecimal() and (has_latin or has_digit)) or (is_number and char in _LIKE_DIGITS)
        if is_other or is_digit or _stands_for_ascii(char):
            yield char


@lru_cache(maxsize=4_096)
def _script(char: str) -> str:
    """Return the first word of a character's name, which is the script of a letter."""
    return "" if char < "\u0100" else unicodedata.name(char, "").partition(" ")[0]


def _is_latin(char: str) -> bool:
    return (char.isascii() and char.isalpha()) or _script(char) == "LATIN"


@lru_cache(maxsize=4_096)
def _stands_for_ascii(char: str) -> bool:
    """Whether it is a variant of an ASCII letter or digit, such as a mathematical one."""
    plain = unicodedata.normalize("NFKC", char)
    return len(plain) == 1 and plain.isascii() and plain.isalnum() and unicodedata.category(char) != "No"


# --- right-to-left words ---


def _with_isolates(text: str) -> str:
    """Isolate each run of such words: otherwise digits and words after it would appear before it."""
    return _FROM_RIGHT.sub(lambda found: f"{_FSI}{found[0]}{_PDI}", text)
