"""What a client of a chat is sent of an answer: each word once, thoughts and text apart, also after a lost attempt."""

from functools import partial
from typing import Any

import pytest

from standfast.events import AnswerDelta, ReasoningDelta, TextDelta, TurnEnded, TurnStarted
from standfast.web.api.ag_ui import _Translation as AGUI
from standfast.web.api.ai_sdk import _Translation as AISDK
from standfast.web.api.conversations import Answer, Piece


def thought(text: str, offset: int = 0) -> AnswerDelta:
    return ReasoningDelta(text, 1, offset)


def word(text: str, offset: int = 0) -> AnswerDelta:
    return TextDelta(text, 1, offset)


CUT = "x" * 300 + "…"  # without a store, a turn has the beginning of its thoughts

CASES: dict[str, tuple[list[AnswerDelta], TurnEnded, list[Piece]]] = {
    "nothing streamed": ([], TurnEnded(1, "Yes", thoughts="Hm"), [Piece("thoughts", "Hm"), Piece("text", "Yes")]),
    "all streamed": (
        [thought("Hm"), word("Yes")],
        TurnEnded(1, "Yes", thoughts="Hm"),
        [Piece("thoughts", "Hm"), Piece("text", "Yes")],
    ),
    "the rest at the end": (
        [thought("H"), word("Y")],
        TurnEnded(1, "Yes", thoughts="Hm"),
        [Piece("thoughts", "H"), Piece("text", "Y"), Piece("thoughts", "m"), Piece("text", "es")],
    ),
    "between the words": (
        [thought("Hm"), word("Yes"), thought("\n\nSo", 2), word(", it", 3)],
        TurnEnded(1, "Yes, it", thoughts="Hm\n\nSo"),
        [Piece("thoughts", "Hm"), Piece("text", "Yes"), Piece("thoughts", "\n\nSo"), Piece("text", ", it")],
    ),
    "another attempt thinks the same": (
        [thought("Hm, so"), thought("Hm"), thought(", so that", 2)],
        TurnEnded(1, "Yes", thoughts="Hm, so that"),
        [Piece("thoughts", "Hm, so"), Piece("thoughts", " that"), Piece("text", "Yes")],
    ),
    "another attempt thinks something else": (
        [thought("Hm"), word("Y"), thought("No"), word("")],
        TurnEnded(1, "No", thoughts="No"),
        [Piece("thoughts", "Hm"), Piece("text", "Y"), Piece("thoughts", "No", True), Piece("text", "No", True)],
    ),
    "another attempt does not think": (
        [thought("Hm"), thought("")],
        TurnEnded(1, "Yes"),
        [Piece("thoughts", "Hm"), Piece("text", "Yes")],
    ),
    "all of long thoughts streamed, and their beginning kept": (
        [thought("x" * 400)],
        TurnEnded(1, "Yes", thoughts=CUT),
        [Piece("thoughts", "x" * 400), Piece("text", "Yes")],
    ),
    "long thoughts that were not streamed": (
        [],
        TurnEnded(1, "Yes", thoughts=CUT),
        [Piece("thoughts", CUT), Piece("text", "Yes")],
    ),
    "a few words of long thoughts streamed, and their beginning kept": (
        [thought("xx")],
        TurnEnded(1, "Yes", thoughts=CUT),
        [Piece("thoughts", "xx"), Piece("thoughts", CUT[2:]), Piece("text", "Yes")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_word_is_sent_once(case: str) -> None:
    deltas, end, wanted = CASES[case]
    answer = Answer(1)
    assert [piece for event in (*deltas, end) for piece in answer.more(event)] == wanted


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("translation", [partial(AGUI, "run"), AISDK], ids=["AG-UI", "AI SDK"])
def test_what_is_begun_is_ended_before_something_else_begins(case: str, translation: Any) -> None:
    deltas, end, pieces = CASES[case]
    translated, is_open, said = translation(), "", {"text": "", "thoughts": ""}
    for told in [one for event in (*deltas, end) for one in translated.of(event)]:
        kind = "thoughts" if "REASONING" in told["type"].upper() else "text"
        match told["type"].upper().replace("_", "-").rpartition("-")[2]:
            case "START":
                assert is_open in ("", told.get("id") or told["messageId"])
                is_open = told.get("id") or told["messageId"]
            case "CONTENT" | "DELTA":
                assert is_open == (told.get("id") or told["messageId"])
                said[kind] += told["delta"]
            case "END":
                assert is_open == (told.get("id") or told["messageId"])
                is_open = is_open if told["type"] == "REASONING_MESSAGE_END" else ""
    assert is_open == ""
    assert said == {kind: "".join(one.words for one in pieces if one.kind == kind) for kind in said}


@pytest.mark.parametrize("translation", [partial(AGUI, "run"), AISDK], ids=["AG-UI", "AI SDK"])
@pytest.mark.parametrize("delta", [thought("Hm"), word("Y")], ids=["thoughts", "text"])
def test_words_of_a_turn_that_another_follows_end_under_their_own_id(translation: Any, delta: AnswerDelta) -> None:
    translated = translation()
    told = [one for event in (TurnStarted(1), delta, TurnStarted(2)) for one in translated.of(event)]
    marked = [one.get("id") or one.get("messageId") for one in told if "step" not in one["type"]]
    assert len(marked) >= 3
    assert len(set(marked)) == 1
