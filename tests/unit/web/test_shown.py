"""A gate's contents on the page: complete, and nothing in them acts or hides."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from standfast.messages import changed_lines, line_difference
from standfast.web.page.rendering import difference, render_whole

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


@given(st.lists(st.sampled_from("abcdef")), st.lists(st.sampled_from("abcdef")))
def test_a_difference_keeps_the_order_of_both_texts(before: list[str], after: list[str]) -> None:
    lines = line_difference("\n".join(before), "\n".join(after))
    assert [line[2:] for line in lines if line[0] != "+"] == (before or [""])
    assert [line[2:] for line in lines if line[0] != "-"] == (after or [""])
    assert [line for line in changed_lines("\n".join(before), "\n".join(after)) if line[0] != " "] == [
        line for line in lines if line[0] != " "
    ]


def test_a_difference_marks_only_the_lines_that_differ() -> None:
    before = "if a:\n    x\n\nif b:\n    y\n\nif c:\n    z"
    assert line_difference(before, before.replace("    y", "    w\n    y").replace("    x\n", "")) == [
        "  if a:", "-     x", "  ", "  if b:", "+     w", "      y", "  ", "  if c:", "      z"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "hiding",
    ["```python amount=100\nx\n```", "~~~ to=eve\nx\n~~~", "|a|b|\n|-|-|\n|1|2|300|", "9. a\n9. b", "1. a\n\n7. b",
     "007) a", "> " * 150 + "deep", "- " * 150 + "deep", "| a |\n|---|\n| 1 | 2 |\n\n```x\n"],
)  # fmt: skip
def test_what_markdown_would_leave_out_is_shown(hiding: str) -> None:
    shown = plain(render_whole(f"Pay\n\n{hiding}\n"))
    assert _letters(shown) == _letters(f"Pay{hiding}")


_PIECES = [
    "a", "7", " ", "  ", "\n", "\n\n", "    ", "- ", "3. ", "12) ", "> ", "# ", "```", "~~~", "|", "|a|b|\n|-|-|\n",
    "|1|2|3|\n", "*", "**", "_", "`", "~~", "\\", "[x](y)", "<b>", "===\n", "---\n", ":-:", "$5", "\t", "![", "]: ",
]  # fmt: skip


@given(st.lists(st.sampled_from(_PIECES), max_size=40))
def test_a_rendered_text_has_every_letter_and_digit_of_its_source_and_no_others(pieces: list[str]) -> None:
    source = "".join(pieces)
    assert _letters(plain(render_whole(source))) == _letters(source)


def _letters(text: str) -> str:
    """Return the characters that are neither blank nor Markdown marks."""
    return "".join(char for char in text if char.isalnum() or char in "$&.;<")


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
