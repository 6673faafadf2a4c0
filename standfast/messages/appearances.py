"""Shows texts to people so that nothing is disguised, because people approve what they read.

The texts also come from models and strangers. Escape sequences must not reach a terminal. No character may be invisible
or look like another one, and all characters must appear in their actual order.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache

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
