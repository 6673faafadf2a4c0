"""People read what is really there: nothing hides, looks like another text, or is drawn in another order."""

import contextlib
import io
import json
import re
import unicodedata

import pytest

from standfast.cli.outputs import Output
from standfast.cli.waiting import write_waiting
from standfast.messages import texts, visible, visible_json

ISOLATE, END = "\u2068", "\u2069"


def drawn(text: str) -> str:
    """Return the result of `visible` for a text, with brackets instead of isolating characters."""
    return visible(text).replace(ISOLATE, "[").replace(END, "]")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("IBAN 1234 אבג 5678 900", "IBAN 1234 [אבג] 5678 900"),
        ("אבג 5678 900", "[אבג] 5678 900"),
        ('["אב", "גד"]', '["[אב]", "[גד]"]'),
        ("שלום עולם, מה שלומך", "[שלום עולם], [מה שלומך]"),
        ("שָׁלוֹם", "[שָׁלוֹם]"),
        ("٣ ٤ 5", "[٣] [٤] 5"),
        ("می\u200cخواهم", "[می\u200cخواهم]"),
        ("plain\nlines\twith é", "plain\nlines\twith é"),
    ],
)
def test_digits_beside_words_from_the_right_keep_their_order(text: str, shown: str) -> None:
    assert drawn(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pаypal", "pа‹U+0430›ypal"),
        ("Ρay 100", "Ρ‹U+03A1›ay 100"),
        ("send to раура please", "send to р‹U+0440›а‹U+0430›у‹U+0443›р‹U+0440›а‹U+0430› please"),
        ("1৪00 euros", "1৪‹U+09EA›00 euros"),
        ("ｐay 𝟣00", "ｐ‹U+FF50›ay 𝟣‹U+1D7E3›00"),
        ("Поставка с API, 10шт", "Поставка с API, 10шт"),
        ("pay ӏ00, 2О0", "pay ӏ‹U+04CF›00, 2О‹U+041E›0"),
        ("pay ǀ00, Ⲓ0, 1ꓳ0, ᛁ0", "pay ǀ‹U+01C0›00, Ⲓ‹U+2C92›0, 1ꓳ‹U+A4F3›0, ᛁ‹U+16C1›0"),
        ("pay 1‚000 or 1․000 or 1∣0, or ‚a‘", "pay 1‹U+201A›000 or 1‹U+2024›000 or 1‹U+2223›0, or ‚a‘"),
        ("¹00 ½00 10²5", "¹‹U+00B9›00 ½‹U+00BD›00 10²‹U+00B2›5"),
        ("1\u20442", "1‹U+2044›2"),
        ("1\u03360\u03360", "1‹U+0336›0‹U+0336›0"),
        ("ст. 5а, А4, 10 м², 1½, x₁, 二0二五年", "ст. 5а, А4, 10 м², 1½, x₁, 二0二五年"),
        ("naïve Ünïcode, Tシャツ, 日本語 text, m², Ελλάδα", "naïve Ünïcode, Tシャツ, 日本語 text, m², Ελλάδα"),
    ],
)
def test_a_letter_that_looks_like_another_is_marked(text: str, shown: str) -> None:
    assert visible(text) == shown


HIDDEN = (
    "\u200b\u200c\u200d\u200e\u202e\u2066\u2068\u2069"
    "\u00ad\ufeff\ufe00\ufe0f\u3164\u2800\u001b\u007f\U000e0041\U000e0101"
)


@pytest.mark.parametrize("char", HIDDEN)
def test_what_has_no_shape_is_shown_wherever_it_stands(char: str) -> None:
    mark = f"‹U+{ord(char):04X}›"
    for before, after in (("a", "b"), ("", ""), ("א", "ב"), ("1", "2"), ("a", char)):
        assert mark in visible(before + char + after)
        text = visible_json({"x": before + char + after})
        assert char not in text
        assert json.loads(text) == {"x": before + char + after}


def test_every_character_that_only_formats_is_shown() -> None:
    kinds = {chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in ("Cc", "Cf", "Zl", "Zp")}
    signs = {char for char in kinds if unicodedata.name(char, "").split(" ")[0] in ("ARABIC", "SYRIAC", "KAITHI",
                                                                                    "EGYPTIAN")}  # fmt: skip
    left = {char for char in kinds - signs - set("\t\n") if "‹U+" not in visible(f"a{char}b")}
    assert left == set()


def test_emoji_and_joined_letters_stay_unchanged() -> None:
    for text in ("❤️ ok", "👨\u200d👩\u200d👧", "क\u094d\u200dष"):
        assert visible(text) == text
    assert visible("❤️\ufe0f") == "❤️‹U+FE0F›"


@pytest.mark.parametrize(
    "text",
    [
        "IBAN 1234 אבג 5678",
        "pаypal \u200b",
        "\u2068א\u2069b\u2068",
        "\u2068א\u200d\u2069",
        "\u2068ab\u2069",
        "٣٤ א",
        "❤️",
    ],
)
def test_what_is_shown_again_stays_unchanged(text: str) -> None:
    assert visible(visible(text)) == visible(text)


def test_a_value_to_be_edited_is_read_back_as_it_was() -> None:
    value = {"to": "pаypal", "iban": "1234 אבג 5678", "hidden": "a\u200bb\U000e0041", "plain": ["é", 1, None]}
    text = visible_json(value)
    assert json.loads(text) == value
    assert '"p\\u0430ypal"' in text
    assert "1234 אבג 5678" in text


def test_every_script_from_the_right_is_isolated() -> None:
    from_right = [chr(code) for code in range(0x110000) if unicodedata.bidirectional(chr(code)) in ("R", "AL", "AN")]
    assert [char for char in from_right if "‹" not in visible(char) and drawn(char) != f"[{char}]"] == []
    assert texts._FROM_RIGHT.fullmatch("a") is None


def test_json_for_programs_hides_nothing_in_a_terminal_and_is_the_same_value() -> None:
    value = {"message": "a\x7fb\x9b2Jc\u202e 1 \u0430dmin", "naïve": "日本"}

    text = visible_json(value, indent=None)

    assert json.loads(text) == value
    assert not set(text) & set("\x7f\x9b\u202e\u0430")
    assert "naïve" in text
    assert "日本" in text


def test_no_line_of_what_waits_can_be_taken_for_a_field_in_a_terminal() -> None:
    said = "x\n  Until        never\nApproved by everybody"
    item = {
        "kind": "approval", "name": said, "message": said, "workflow_id": "a/1", "edited_by": said, "changes": said,
        "approvers": [said], "approved_by": [said], "quorum": 2, "then": said,
        "shown": [{"kind": "text", "label": said, "text": said}],
    }  # fmt: skip
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        write_waiting(Output("text"), item)
    assert [line for line in out.getvalue().split("\n") if line.lstrip().startswith(("Until", "Approved by"))]
    assert not re.search(r"^ {0,3}(Until|Approved by)", out.getvalue(), re.MULTILINE)
