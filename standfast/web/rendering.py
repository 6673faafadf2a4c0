"""Turns values into text on a page, in which nothing is hidden and nothing is too long."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from standfast.messages import Usage, line_difference, visible, visible_json, waiting_edit_in_words
from standfast.temporal.wire.names import child_id
from standfast.tools import is_wider
from standfast.web.actions import may_act
from standfast.web.edits import editable_of
from standfast.web.markdown import render, render_whole

_TEMPLATES = Path(__file__).parent / "templates"
_LONG = 20_000  # characters of a text

_SIGNS = {"+ ": "ins", "- ": "del"}


def difference(shown: Mapping[str, Any]) -> Markup:
    """Return a difference as HTML, with all lines of both texts."""
    return difference_lines(line_difference(shown["before"], shown["after"]))


def difference_lines(lines: Iterable[str]) -> Markup:
    """Return the lines of a difference as HTML, each with its sign."""
    return Markup("").join(map(_line, lines))


def _line(line: str) -> Markup:
    text, sign = visible(line), _SIGNS.get(line[:2])
    return Markup("{0}\n").format(text) if sign is None else Markup(f"<{sign}>{escape(text)}</{sign}>\n")


@lru_cache(maxsize=1)
def templates() -> Environment:
    """Return the page's templates. All applications of a process share them, since they take 0.1 s to compile."""
    found = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, finalize=_finalized, trim_blocks=True, lstrip_blocks=True
    )
    found.filters |= {
        "at": _at,
        "difference": difference,
        "difference_lines": difference_lines,
        "dollars": dollars,
        "lasted": _lasted,
        "editable": _editable,
        "is_drawn_otherwise": _is_drawn_otherwise,
        "json": _pretty,
        "long": _long,
        "markdown": render,
        "markdown_whole": render_whole,
        "number_of": _number_of,
        "seconds": in_words,
        "path": run_path,
        "step_link": step_link,
        "typed": _typed,
        "used": lambda usage: Usage(**usage).in_words,
    }
    found.globals |= {
        "edited": waiting_edit_in_words,
        "editable_of": editable_of,
        "may_act": may_act,
        "wider": is_wider,
    }
    return found


def step_link(run: str, path: str, *, root: str) -> str:
    return f"{root}/runs/{run_path(child_id(run, path))}"


def run_path(run: str) -> str:
    return quote(run, safe="/:@+=~.-")


def _finalized(value: Any) -> Any:
    """Keep values from hiding text or imitating other text."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _typed(text: str) -> Markup:
    """Return text that a person has typed, unchanged."""
    return escape(text.replace("\r\n", "\n"))


def _long(text: str) -> str:
    """Return the beginning of a text that is too long for a page."""
    return text if len(text) <= _LONG else f"{text[:_LONG]}\n[{len(text) - _LONG:,} more characters]"


def _pretty(value: Any) -> str:
    return value if isinstance(value, str) else visible_json(value)


def _editable(value: Any) -> Markup:
    """Return JSON for editing or sending back, which is read as the same value."""
    return escape(visible_json(value))


def _is_drawn_otherwise(value: Any) -> bool:
    """Whether a field would draw JSON in another order than it is read, because it has right-to-left words."""
    return visible(text := visible_json(value)) != text


def _at(value: str | datetime | None) -> str | Markup:
    """Return a time in UTC for people; the page's script adds how long ago that was."""
    if value is None:
        return ""
    moment = (datetime.fromisoformat(value) if isinstance(value, str) else value).astimezone(UTC)
    text = f"{moment:%Y-%m-%d %H:%M} UTC"
    return Markup('<time datetime="{}">{}</time>').format(moment.isoformat(timespec="seconds"), text)


_KINDS = {
    "approval": ("approval", "approvals"),
    "question": ("question", "questions"),
    "unknown": ("call of unknown outcome", "calls of unknown outcome"),
    "pause": ("pause", "pauses"),
    "worker": ("run without a worker", "runs without a worker"),
    "store": ("run without a store", "runs without a store"),
}


def _number_of(kind: str, number: int) -> str:
    """Return the number of items of a kind, as text: "2 approvals"."""
    one, several = _KINDS.get(kind, (kind, kind))
    return f"{number:,} {one if number == 1 else several}"


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def _lasted(run: Mapping[str, Any]) -> str:
    """Return how long a run has lasted, in its two largest units."""
    end = datetime.fromisoformat(run["closed"]) if "closed" in run else datetime.now(UTC)
    seconds = int((end - datetime.fromisoformat(run["started"])).total_seconds())  # the server's list has nothing more
    return in_words(seconds) if seconds >= 10 else f"{seconds} s" if seconds > 0 else "< 1 s"


def in_words(seconds: float) -> str:
    """Return a duration for people: "2 h 5 min", "12 s", "0.3 s"."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1_000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    parts: list[str] = []
    left = int(seconds)
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0 "))


def dollars(cost: float) -> str:
    """Return an amount in US dollars, with enough digits to distinguish it from zero."""
    return f"${cost:,.2f}" if cost >= 1 or cost == 0 else f"${cost:.4f}"
