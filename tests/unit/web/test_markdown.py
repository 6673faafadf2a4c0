"""Models' and people's words are rendered as Markdown, and can do nothing on the page."""

import re

import pytest

from standfast.web.page.rendering import render

ATTACKS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt&colon;alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](vbscript:msgbox)",
    '[x](https://a.example/"onmouseover="alert(1))',
    "![x](https://a.example/track.png)",
    '![x"onerror="alert(1)](x)',
    "<https://a.example/\"onclick='alert(1)'>",
    "`<b onclick=alert(1)>`",
    "```html\n<script>alert(1)</script>\n```",
    '```"><script>\nx\n```',
    "| <script> | b |\n|---|---|\n| <img src=x onerror=alert(1)> | 2 |",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#60;script&#62;",
    "# <iframe src=//a.example>",
    "> " * 500 + "deep",
    "[" * 20_000,
    "*a " * 7_000,
]


@pytest.mark.parametrize("text", ATTACKS, ids=lambda text: text[:30])
def test_nothing_in_a_text_acts_or_is_loaded(text: str) -> None:
    html = str(render(text))
    tags = {tag.lower() for tag in re.findall(r"<\s*/?([a-zA-Z]+)", html)}
    assert tags <= {
        "p",
        "a",
        "code",
        "pre",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "blockquote",
        "em",
        "strong",
        "br",
    }
    assert not re.search(r"<[^>]*\son\w+\s*=", re.sub(r'"[^"]*"', '""', html))
    assert not re.search(r'href="(?!https?:|mailto:)', html)


def test_emphasis_lists_tables_code_and_links_are_shown() -> None:
    html = render("# Plan\n\n**one** `two`\n\n- a\n- b\n\n|x|y|\n|-|-|\n|1|2|\n\n[home](https://example.com/a)")
    assert '<p class="heading">Plan</p>' in html
    for part in ("<strong>one</strong>", "<code>two</code>", "<li>a</li>", "<td>1</td>"):
        assert part in html
    assert (
        '<a href="https://example.com/a" rel="noopener noreferrer nofollow" title="https://example.com/a">home' in html
    )


def test_what_has_no_shape_of_its_own_is_shown() -> None:
    assert "‹U+202E›" in render("pay \u202eevil **\u200bnow**")


def test_the_end_of_a_very_long_text_is_counted_and_not_rendered() -> None:
    assert "[5 more characters]" in render("x" * 20_005)
