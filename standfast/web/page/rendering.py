"""Turns values and Markdown into text on a page, in which nothing acts, is hidden, or is too long."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

from standfast.messages import Usage, line_difference, visible, visible_json, waiting_edit_in_words
from standfast.temporal.wire.names import child_id
from standfast.tools import is_wider
from standfast.web.page.actions import may_act
from standfast.web.page.edits import editable_of

_TEMPLATES = Path(__file__).parents[1] / "templates"

_SIGNS = {"+ ": "ins", "- ": "del"}

_LONG = 20_000  # characters of a text that are rendered; more would delay all pages
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
