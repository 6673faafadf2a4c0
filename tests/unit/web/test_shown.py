"""What a gate shows, as the page draws it: whole, and nothing in it acts or hides."""

import re

import pytest
from markupsafe import Markup

from standfast.web.markdown import render_whole
from standfast.web.shown import difference

_TAGS = re.compile(r"<[^>]*>")


def plain(drawn: Markup) -> str:
    return Markup(_TAGS.sub("", drawn)).unescape()


@pytest.mark.parametrize("lines", [3, 400, 30_000])
def test_a_difference_has_every_line_of_both_texts(lines: int) -> None:
    before = [f"line {number % 7}" for number in range(lines)]
    after = [f"line {number % 5}" for number in range(lines)]
    drawn = difference({"before": "\n".join(before), "after": "\n".join(after)})
    shown = plain(drawn).split("\n")
    assert [line[2:] for line in shown if line[:2] in ("  ", "- ")] == before
    assert [line[2:] for line in shown if line[:2] in ("  ", "+ ")] == after


def test_a_line_of_a_difference_that_looks_like_another_hides_nothing() -> None:
    drawn = difference({"before": "<b>\n? x\n- y", "after": "<b>\n? z\n- y\u202e"})
    assert drawn == "  &lt;b&gt;\n<del>- ? x</del>\n<del>- - y</del>\n<ins>+ ? z</ins>\n<ins>+ - y‹U+202E›</ins>\n"


def test_a_text_too_long_to_be_drawn_is_shown_as_it_was_written() -> None:
    text = "|a|b|\n|-|-|\n" + "|1|<i>|\n" * 50_000
    drawn = render_whole(text)
    assert drawn.startswith("<pre>")
    assert plain(drawn) == text


@pytest.mark.parametrize(
    "hidden",
    ["[a](https://evil.example)", "![a](https://evil.example)", "<https://evil.example>", "[a]: https://evil.example",
     "&#x202e;", "<!-- x -->", "<b>", "[a][b]", "javascript:alert(1)"],
)  # fmt: skip
def test_what_markdown_would_hide_is_drawn_as_it_was_written(hidden: str) -> None:
    assert plain(render_whole(f"*so* {hidden} on\n\n{hidden}")) == f"so {hidden} on\n{hidden}\n"
