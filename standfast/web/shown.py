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
_LONG = 20_000  # characters; a longer text is shown as it was written, since drawing it would hold up everybody's pages
_MOST_LINES = 1_000  # of two texts that are compared line by line, for the same reason
_SIGNS = {"+ ": "ins", "- ": "del"}


def markdown(text: str) -> Markup:
    """Return Markdown as HTML, all of it."""
    if len(text) > _LONG:
        return Markup("<pre>{}</pre>").format(visible(text))
    return Markup(_MARKDOWN.render(visible(text)))  # it has been escaped


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
    return Markup("").join(map(_line, lines))


def _line(line: str) -> Markup:
    text, sign = visible(line), _SIGNS.get(line[:2])
    return Markup("{0}\n").format(text) if sign is None else Markup(f"<{sign}>{escape(text)}</{sign}>\n")
