"""A run's description in Temporal Web: Markdown in which only our own words are markup."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from standfast.pipeline_loop import Done
from standfast.temporal.wire.run_state import Progress
from standfast.temporal.workflows.board.visibility import details, pipeline_details
from standfast.temporal.workflows.board.waiting_items import Waiting
from standfast.temporal.workflows.run.agent_run_state import RunState

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def waits(kind: str = "approval", name: str = "c1", message: str = "Pay?", **more: Any) -> Waiting:
    return Waiting(kind, name, message, NOON, **more)


def shown(*waiting: Waiting, refused: Any = ()) -> str:
    run = RunState(progress=Progress(opened={"session": "s"}))
    return details(run, "waiting", waiting, refused)


def test_an_approval_shows_what_is_approved_who_is_asked_and_what_to_send() -> None:
    arguments = {"amount": 5, "note": "```\n# paid"}
    assert shown(waits(tool="charge", arguments=arguments, approvers=("ada",), deadline=NOON)) == (
        """**waiting** · session `s`

#### Waits for the approval of `c1`

> Pay?

The tool `charge` with

    {
      "amount": 5,
      "note": "```\\n# paid"
    }

since 2026-11-21 12:00 UTC · until 2026-11-21 12:00 UTC · asks ada

Send the update `decide`, which returns whether it counts, with

    {
      "gate": "c1",
      "decision": "approve",
      "by": "ada"
    }

or `"reject"`; or the signal `approve` or `reject` with

    {
      "gate": "c1",
      "by": "ada"
    }
"""
    )


@pytest.mark.parametrize("line", ["- 5", "+ 5", "7) a", "---", "- - -", "+", "9. b"])
def test_no_line_of_a_message_becomes_a_bullet_a_rule_or_another_number(line: str) -> None:
    (quoted,) = [one[2:] for one in shown(waits(message=f"Pay\n{line}")).splitlines() if one[2:3] == line[0]]
    assert quoted.replace("\u00a0", " ").replace("\\", "").rstrip() == line
    assert not re.match(r"([-+]|[0-9]+[.)])( |$)|[- ]+$", quoted)


@pytest.mark.parametrize(
    "more",
    [{"message": "a" * 2_001}, {"tool": "pay", "arguments": {}, "shown": [{"kind": "text", "text": "a" * 4_001}]}],
    ids=["message", "shown beside arguments"],
)
def test_what_is_not_shown_whole_is_not_approved_from_here(more: dict[str, Any]) -> None:
    text = shown(waits(digest="d", **more))
    assert "This is the beginning" in text
    assert '"decision"' not in text


def test_a_long_name_says_how_much_is_missing() -> None:
    assert f"`{'a' * 200}` (50 more characters)" in shown(waits(name="a" * 250))


@pytest.mark.parametrize(
    ("more", "who"),
    [
        ({}, "no deadline\n"),
        ({"approvers": ("ada", "bob")}, "no deadline · asks ada, bob\n"),
        ({"quorum": 2}, "no deadline · 2 must approve\n"),
        (
            {"approvers": ("ada", "bob"), "quorum": 2, "approved_by": ("ada",)},
            "no deadline · asks ada, bob · 2 must approve · approved by ada\n",
        ),
    ],
)
def test_an_approval_says_whom_it_asks_how_many_must_and_who_has(more: dict[str, Any], who: str) -> None:
    assert who in shown(waits(**more))


def test_a_name_to_send_is_filled_in_where_only_one_is_left_to_approve() -> None:
    assert '"by": "your name"' in shown(waits(approvers=("ada", "bob"), quorum=2))
    assert '"by": "bob"' in shown(waits(approvers=("ada", "bob"), quorum=2, approved_by=("ada",)))


def test_words_of_a_model_are_not_markup_and_hide_nothing() -> None:
    said = "# *now* [here](https://x.example) <b>|\n\n    `code`\n```\n\u202eevil"
    quoted = [
        r"\# \*now\* \[here\](https\://x\.example) \<b\>\|",
        r"\`code\`",
        r"\`\`\`",
        "‹U+202E›evil",
    ]
    assert "\n\n> " + "\n>\n> ".join(quoted) + "\n\n" in shown(waits("question", message=said))


def test_a_name_stays_in_its_code_and_what_is_cut_says_so() -> None:
    assert "Waits for an answer to `a' **b**`\n" in shown(waits("question", "a`\n**b**"))
    assert r"> \[cut\: 2,000 of 9,000 bytes\]" in shown(waits(message="x" * 9000))
    assert "    [cut: 4,000 of" in shown(waits(tool="charge", arguments={"note": "x" * 9000}))


def test_the_first_ten_of_what_waits_are_shown_and_the_others_counted() -> None:
    text = shown(*(waits(name=f"c{number}") for number in range(1234)))
    assert text.count("Waits for") == 10
    assert text.endswith("1,224 more are waiting; the query `pending` has all.")


def test_why_the_last_message_did_not_count_is_said() -> None:
    refused = [{"name": "approve", "reason": reason, "at": NOON.isoformat()} for reason in ("first", "no gate *x*")]
    assert shown(refused=refused).endswith("Last refused, 2026-11-21 12:00 UTC: no gate \\*x\\*")


def test_a_pipeline_lists_its_steps_and_which_of_them_wait_for_people() -> None:
    done = {"notes": Done("x"), "check": Done(None, "step-failed", "down"), "notes?": Done(True)}
    text = pipeline_details(done, ["ok", "more"], "waiting", [waits(name="ok")], ())
    assert text.startswith("**waiting**\n\n- `notes` done\n- `check` failed\n- `ok` waits\n- `more` runs\n\n#### Waits")
