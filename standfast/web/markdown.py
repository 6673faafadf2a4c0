"""Renders words of models and people as Markdown, without what could act, load or hide anything."""

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from standfast.messages import visible

_LONG = 20_000  # characters that are rendered; more would hold up everybody's pages
# People approve what they see: a link hides its address, a definition and an entity what they are. All of them stay as
# they were written.
_HIDING = ("link", "image", "autolink", "reference", "entity", "html_inline", "html_block")
_WHOLE = MarkdownIt("js-default", {"html": False, "linkify": False}).disable(_HIDING)


class _Parser(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # noqa: N802  # the parser's own name for it
        return url.lower().startswith(("https://", "http://", "mailto:"))


# Nothing is fetched for a picture, and raw HTML stays text; headings would break the page's own outline.
_PARSER = _Parser("commonmark", {"html": False, "maxNesting": 20}).enable(["table"]).disable(["image"])


def render(text: str) -> Markup:
    """Return a text as HTML: paragraphs, lists, code, tables, emphasis, and links that say where they lead."""
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
    """Return a text that people decide on as HTML, which leaves out no part of it; a long one as it was written."""
    if len(text) > _LONG:
        return Markup("<pre>{}</pre>").format(visible(text))
    return Markup(_WHOLE.render(visible(text)))  # it has been escaped


def _mark(token: Token) -> None:
    if token.type == "link_open":
        token.attrSet("rel", "noopener noreferrer nofollow")
        token.attrSet("title", visible(str(token.attrGet("href") or "")))
