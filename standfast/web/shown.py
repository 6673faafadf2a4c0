"""Draws a difference that a gate shows, line by line, without leaving out any part of it."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup, escape

from standfast.messages import visible

_MOST_LINES = 1_000  # of two texts; to compare more would hold up everybody's pages
_SIGNS = {"+ ": "ins", "- ": "del"}


def difference(shown: Mapping[str, Any]) -> Markup:
    """Return a difference as HTML, all lines of it; of texts that are too long the whole of both."""
    before, after = shown["before"].split("\n"), shown["after"].split("\n")
    if len(before) + len(after) > _MOST_LINES:
        changes = [("replace", 0, len(before), 0, len(after))]
    else:  # not `ndiff`, which takes minutes for some texts
        changes = list(difflib.SequenceMatcher(None, before, after).get_opcodes())
    lines: list[str] = []
    for what, i, j, k, m in changes:
        if what == "equal":
            lines += [f"  {line}" for line in before[i:j]]
        else:
            lines += [*(f"- {line}" for line in before[i:j]), *(f"+ {line}" for line in after[k:m])]
    return difference_lines(lines)


def difference_lines(lines: Iterable[str]) -> Markup:
    """Return the lines of a difference as HTML, each with its sign."""
    return Markup("").join(map(_line, lines))


def _line(line: str) -> Markup:
    text, sign = visible(line), _SIGNS.get(line[:2])
    return Markup("{0}\n").format(text) if sign is None else Markup(f"<{sign}>{escape(text)}</{sign}>\n")
