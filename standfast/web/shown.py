"""Draws a difference that a gate shows, line by line, without omitting any part of it."""

from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup, escape

from standfast.messages import line_difference, visible

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
