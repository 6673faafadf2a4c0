"""Of a gate, each renderer shows every character, or counts what it hides and says where the rest is."""

import contextlib
import html
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from standfast.cli.outputs import Output
from standfast.cli.waiting import write_waiting
from standfast.messages import line_difference, visible_json
from standfast.notices import slack_messages, teams_messages

_PIECES = [
    "a",
    "7",
    " ",
    "  ",
    "\n",
    "- ",
    "3. ",
    "> ",
    "```",
    "|",
    "|a|b|\n|-|-|\n",
    "*",
    "<b>",
    "&",
    "\u202e",
    "{",
    '"',
]
_TEXT = st.lists(st.sampled_from(_PIECES), max_size=30).map("".join)
_LONG = st.tuples(st.sampled_from("a7<&\u202e😀"), st.sampled_from([400, 4_000, 30_000])).map(
    lambda one: one[0] * one[1]
)
_WORDS = st.one_of(_TEXT, _TEXT, _LONG)
_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), _WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_TEXT, inner, max_size=3)),
    max_leaves=6,
)
_DEEP = st.integers(20, 60).map(lambda depth: json.loads("[" * depth + "7" + "]" * depth))
_ROWS = st.lists(st.lists(st.one_of(_TEXT, st.integers()), min_size=2, max_size=2), min_size=1, max_size=4)
_SHOWN = st.one_of(
    st.builds(lambda text: {"kind": "text", "text": text}, _WORDS),
    st.builds(lambda text: {"kind": "markdown", "text": text}, _WORDS),
    st.builds(lambda value: {"kind": "json", "value": value}, st.one_of(_JSON, _DEEP)),
    st.builds(lambda rows: {"kind": "table", "columns": ["n", "s"], "rows": rows}, _ROWS),
    st.builds(lambda before, after: {"kind": "diff", "before": before, "after": after}, _WORDS, _WORDS),
    st.just({"kind": "image", "media_type": "image/png", "data": "aGk="}),
)
_LABELLED = st.builds(lambda one, label: {**one, "label": label}, _SHOWN, st.sampled_from(["", "Plan", "The *plan*"]))


@st.composite
def items(draw: st.DrawFn) -> dict[str, Any]:
    item: dict[str, Any] = {
        "workflow_id": "line/1", "kind": "approval", "name": "ok", "message": draw(_WORDS), "digest": "d" * 64,
        "since": "2026-11-28T00:00:00Z",
    }  # fmt: skip
    if draw(st.booleans()):
        item |= {"tool": "pay", "arguments": draw(st.dictionaries(_TEXT, _JSON, max_size=3))}
    return item | {"shown": draw(st.lists(_LABELLED, max_size=draw(st.sampled_from([3, 3, 60]))))}


MANY: dict[str, Any] = {
    "workflow_id": "line/1", "kind": "approval", "name": "ok", "message": "Go on?", "since": "2026-11-28T00:00:00Z",
    "digest": "d" * 64, "shown": [{"kind": "text", "label": f"part {n}", "text": f"value {n}"} for n in range(60)],
}  # fmt: skip


def texts_in(made: Any) -> list[str]:
    """Return the texts of a message, in order."""
    if isinstance(made, list):
        return [text for one in made for text in texts_in(one)]
    if isinstance(made, dict):
        own = [made["text"]] if isinstance(made.get("text"), str) else texts_in(made.get("text"))
        return own + [text for key, one in made.items() if key != "text" for text in texts_in(one)]
    return []


def slack(item: dict[str, Any]) -> str:
    return "".join(texts_in(slack_messages.approval_message("line/1", item, "https://x.example/1")["blocks"]))


def teams(item: dict[str, Any]) -> str:
    return "".join(texts_in(teams_messages.approval_card("line/1", item, "https://x.example/1")["body"]))


def terminal(item: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        write_waiting(Output("text"), item)
    return out.getvalue()


def slack_without_buttons(item: dict[str, Any]) -> str:
    return "".join(texts_in(slack_messages.waiting_message(item, "https://x.example/1", "https://x.example/d")))


def teams_without_buttons(item: dict[str, Any]) -> str:
    return "".join(texts_in(teams_messages.waiting_card(item, "https://x.example/1", "https://x.example/d")))


def parts_of(item: dict[str, Any]) -> list[str]:
    """Return the texts that are decided on; images aside."""
    found = [item["message"], *([json.dumps(item["arguments"])] if "arguments" in item else [])]
    for one in item["shown"]:
        match one["kind"]:
            case "text" | "markdown":
                found.append(one["text"])
            case "json":
                found.append(visible_json(one["value"]))
            case "table":
                found += [visible_json(cell) for row in one["rows"] for cell in row]
            case "diff":
                found += line_difference(one["before"], one["after"])
    return found


@pytest.mark.parametrize("draws", [slack_without_buttons, teams_without_buttons])
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(item=items())
@example(item=MANY)
@example(item={**MANY, "shown": [], "tool": "pay", "arguments": {"text": "a" * 9_000}})
def test_a_message_that_cannot_decide_says_what_it_leaves_out(
    draws: Callable[[dict[str, Any]], str], item: dict[str, Any]
) -> None:
    drawn = draws(item)
    hidden = [part for part in parts_of(item) if letters(part) not in letters(html.unescape(drawn))]
    assert not hidden or "more characters]" in drawn or "not shown here" in drawn, hidden
    assert draws is teams_without_buttons or "<https://x.example/d|approve or reject>" in drawn


def letters(text: str) -> str:
    """Return what is no blank, and neither a sign of Markdown nor of how JSON or a renderer writes a character."""
    plain = text.replace("‹U+202E›", "").replace("\\u202e", "").replace("\\ud83d\\ude00", "😀").replace("\\n", "")
    return "".join(char for char in plain if char.isalnum() or char in "<&😀")


@pytest.mark.parametrize("draws", [slack, teams, terminal])
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(item=items())
@example(item=MANY)
def test_what_is_decided_on_is_shown_or_counted(draws: Callable[[dict[str, Any]], str], item: dict[str, Any]) -> None:
    drawn = draws(item)
    hidden = [part for part in parts_of(item) if letters(part) not in letters(drawn)]
    if draws is terminal:
        assert not hidden
        return
    says = any(said in drawn for said in ("more characters]", "not shown here"))
    assert not hidden or says, hidden
    assert not hidden or "It cannot be approved from here" in drawn
