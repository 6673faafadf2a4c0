"""Draws what a gate shows: Markdown without HTML, links or hidden parts, differences line by line, and pictures.

People approve what they see. So a text is drawn in no way that leaves a part of it out.
"""

import difflib
from collections.abc import Mapping
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from standfast.messages import visible

# A link hides its address, a definition and an entity what they are; all of them are drawn as they were written.
_HIDING = ("link", "image", "autolink", "reference", "entity", "html_inline", "html_block")
_MARKDOWN = MarkdownIt("js-default", {"html": False, "linkify": False}).disable(_HIDING)
_MOST_LINES = 4_000  # of a text that is compared line by line
_SIGNS = {"+ ": "ins", "- ": "del"}


def markdown(text: str) -> Markup:
    """Return Markdown as HTML."""
    return Markup(_MARKDOWN.render(visible(text)))  # it has been escaped


def difference(shown: Mapping[str, Any]) -> Markup:
    """Return a difference as HTML, all lines of it; of texts that are too long the whole of both."""
    before, after = shown["before"].split("\n"), shown["after"].split("\n")
    if len(before) + len(after) > _MOST_LINES:
        lines = [*(f"- {line}" for line in before), *(f"+ {line}" for line in after)]
    else:
        lines = [line for line in difflib.ndiff(before, after) if not line.startswith("? ")]
    return Markup("").join(map(_line, lines))


def _line(line: str) -> Markup:
    text, sign = visible(line), _SIGNS.get(line[:2])
    return Markup("{0}\n").format(text) if sign is None else Markup(f"<{sign}>{escape(text)}</{sign}>\n")
