"""Renders texts of models and people as Markdown, without parts that could act, load or hide anything."""

import re
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from standfast.messages import visible

_LONG = 20_000  # characters that are rendered; more would delay all pages
# People approve the text that they see: a link hides its address, and a definition and an entity hide their contents.
# All of these stay as written.
_HIDING = ("link", "image", "autolink", "reference", "entity", "html_inline", "html_block")
_WHOLE = MarkdownIt("js-default", {"html": False, "linkify": False}).disable(_HIDING)
_MARKS = frozenset("*_~`#|>-+=:\\")  # characters that may be rendered as a form
_TAG = re.compile("<[^<>]*>")


class _Parser(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # noqa: N802  # the parser's own name for it
        return url.lower().startswith(("https://", "http://", "mailto:"))


# Pictures are not fetched, and raw HTML stays text; headings would break the page's own outline.
_PARSER = _Parser("commonmark", {"html": False, "maxNesting": 20}).enable(["table"]).disable(["image"])


def render(text: str) -> Markup:
    """Return a text as HTML: paragraphs, lists, code, tables, emphasis, and links that show their targets."""
    more = f"\n\n[{len(text) - _LONG:,} more characters]" if len(text) > _LONG else ""
    tokens = _PARSER.parse(visible(text[:_LONG] + more))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = "p"
        if token.type == "heading_open":
            token.attrSet("class", "heading")
        for inner in token.children or ():
            _mark(inner)
    return Markup(_PARSER.renderer.render(tokens, _PARSER.options, {}))  # all text in it is escaped


def render_whole(text: str) -> Markup:
    """Return a text that people decide on as HTML, without omitting any part of it.

    A long text is shown as written, and so is a text that Markdown would not render completely: it drops surplus table
    cells, and parts that are nested too deeply.
    """
    shown = visible(text)
    drawn = Markup(_drawn(shown)) if len(text) <= _LONG else None  # it has been escaped
    if drawn is None or not _has_all(_TAG.sub("", drawn), shown):
        return Markup("<pre>{}</pre>").format(shown)
    return drawn


def _drawn(text: str) -> str:
    """Return the HTML of a text, with the words after a fence and the numbers of a list, as written."""
    tokens = _WHOLE.parse(text)
    for token in tokens:
        if token.type == "fence" and token.info.strip():
            token.content, token.info = f"{token.markup}{token.info}\n{token.content}", ""
    return str(_WHOLE.renderer.render(tokens, _WHOLE.options, {}))


def _numbered(renderer: Any, tokens: Any, at: int, options: Any, env: Any) -> str:
    opening: str = renderer.renderToken(tokens, at, options, env)
    item = tokens[at]
    return f'<li class="numbered">{item.info}{item.markup} ' if item.info else opening


_WHOLE.add_render_rule("list_item_open", _numbered)


def _has_all(drawn: str, text: str) -> bool:
    """Whether the rendered text has every character of a text in order, except for blanks and marks."""
    shown = iter("".join(Markup(drawn).unescape().split()))
    left = next(shown, "")
    for char in "".join(text.split()):
        if char == left:
            left = next(shown, "")
        elif char not in _MARKS:
            return False
    return True


def _mark(token: Token) -> None:
    if token.type == "link_open":
        token.attrSet("rel", "noopener noreferrer nofollow")
        token.attrSet("title", visible(str(token.attrGet("href") or "")))
