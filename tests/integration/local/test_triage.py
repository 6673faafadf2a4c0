"""The triage agent in process, with real tools and the scripted model; its effects are counted at their targets."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from support.application import application, sinks_in_a_process, use
from support.transcripts import DURABILITY, kind_of, tool_results

from activities import get_issue, list_issues
from activities.issues import Issue
from examples.sinks import Sinks
from standfast import Message, RunResult, assert_complete, is_interrupted, resume, run, sqlite_store
from standfast.stores import SQLiteStore
from standfast.testing import crash_after_tool_results, crash_everywhere
from workflows import AGENTS, PIPELINES
from workflows.scripted import SIGNATURE, ScriptedTriage, next_move
from workflows.triage import triage

DUPLICATE, INJECTION, LOST_HIGHLIGHTS, LOGIN, SPAM = "ISSUE-120", "ISSUE-124", "ISSUE-119", "ISSUE-121", "ISSUE-140"


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sinks]:
    async with application(tmp_path, monkeypatch) as listening:
        yield listening


async def triaged(store: SQLiteStore, issue_id: str) -> RunResult:
    message = f"{issue_id} came in"
    return assert_complete(await run(triage, message=message, session_id=issue_id, store=store, llm=ScriptedTriage()))


def all_issues() -> dict[str, Issue]:
    return {issue.id: get_issue(issue.id) for issue in list_issues(state="all", limit=50)}


def called(messages: Sequence[Message]) -> list[str]:
    return [call.name for message in messages for call in message.tool_calls or ()]


def test_the_application_offers_its_agents_and_pipelines() -> None:
    assert [agent.name for agent in AGENTS] == ["triage", "researcher", "writer", "editor", "reviewer"]
    assert [made.name for made in PIPELINES] == ["content", "review"]


async def test_a_severe_issue_is_labelled_commented_posted_and_mailed_once(world: Sinks, store: SQLiteStore) -> None:
    result = await triaged(store, LOST_HIGHLIGHTS)
    issue = get_issue(LOST_HIGHLIGHTS)
    assert issue.labels == ["bug", "severe"]
    assert [comment.author for comment in issue.comments] == ["triage"]
    (post,), (mail,) = world.posts(), world.mails()
    assert post["channel"] == "#triage"
    assert post["text"].startswith(f"{LOST_HIGHLIGHTS} Highlights are gone")
    assert mail["to"] == ["on-call@saltmarsh.example"]
    assert mail["subject"] == f"Severe: {LOST_HIGHLIGHTS} Highlights are gone after the upgrade to 2.5.0"
    assert result.response.endswith(SIGNATURE)


async def test_a_duplicate_points_to_its_original_and_wakes_nobody(world: Sinks, store: SQLiteStore) -> None:
    await triaged(store, DUPLICATE)
    issue = get_issue(DUPLICATE)
    assert issue.labels == ["bug", "duplicate"]
    assert [LOST_HIGHLIGHTS in comment.body for comment in issue.comments] == [True]
    assert (len(world.posts()), world.mails()) == (1, [])


@pytest.mark.parametrize(
    ("answer", "severity", "mails"),
    [
        ("Severe: no login works on the hosted plan", "severe", 1),
        ("yes", "severe", 1),
        ("not severe, it hits two accounts", "normal", 0),
        ("No.", "normal", 0),
        ("I do not know", "unclear", 0),
        ('{"error": "nobody may be asked, however high it is"}', "unclear", 0),
    ],
)
async def test_what_the_rules_cannot_tell_waits_for_the_team_and_continues_in_another_process(
    world: Sinks, tmp_path: Path, answer: str, severity: str, mails: int
) -> None:
    async with sqlite_store(tmp_path / "runs.db") as store:
        asked = await run(triage, message=LOGIN, session_id="s", store=store, llm=ScriptedTriage())
    assert is_interrupted(asked)
    assert LOGIN in asked.question
    assert (world.posts(), get_issue(LOGIN).labels) == ([], [])

    async with sqlite_store(tmp_path / "runs.db") as store:
        assert_complete(await resume(triage, asked.checkpoint, answer, store=store, llm=ScriptedTriage()))
    assert get_issue(LOGIN).labels == (["bug", "severe"] if severity == "severe" else ["bug"])
    assert [post["text"].rpartition(": ")[2] for post in world.posts()] == [severity]
    assert len(world.mails()) == mails


async def test_orders_in_an_issue_are_data(world: Sinks, store: SQLiteStore) -> None:
    before = all_issues()
    await triaged(store, INJECTION)
    after = all_issues()
    assert [issue_id for issue_id, issue in after.items() if issue != before[issue_id]] == [INJECTION]
    assert after[INJECTION].labels == ["bug", "suspicious"]
    assert [post["channel"] for post in world.posts()] == ["#triage"]
    assert world.mails() == []


async def test_spam_gets_no_comment(world: Sinks, store: SQLiteStore) -> None:
    await triaged(store, SPAM)
    assert (get_issue(SPAM).labels, get_issue(SPAM).comments) == (["spam"], [])


async def test_every_issue_of_the_feed_is_triaged_and_posted_once(world: Sinks, store: SQLiteStore) -> None:
    for issue_id in all_issues():
        result = await run(triage, message=issue_id, session_id=issue_id, store=store, llm=ScriptedTriage())
        if is_interrupted(result):
            result = await resume(triage, result.checkpoint, "not severe", store=store, llm=ScriptedTriage())
        messages = assert_complete(result).messages
        assert [message.content for message in tool_results(messages) if message.status != "completed"] == []
    assert [post["text"].split()[0] for post in world.posts()] == list(all_issues())


async def test_without_an_issue_the_newest_are_shown(world: Sinks, store: SQLiteStore) -> None:
    result = assert_complete(await run(triage, message="Hello", session_id="s", store=store, llm=ScriptedTriage()))
    assert "ISSUE-140 Best online casino" in result.response
    assert called(result.messages) == ["list_issues"]


async def test_an_issue_that_does_not_exist_ends_the_run_with_the_reason(world: Sinks, store: SQLiteStore) -> None:
    result = await triaged(store, "ISSUE-999")
    assert result.response == f"I could not read ISSUE-999: There is no issue ISSUE-999\n{SIGNATURE}"


async def test_a_post_that_was_lost_in_flight_is_not_repeated_and_the_answer_says_so(
    world: Sinks, store: SQLiteStore
) -> None:
    # Writes: the calls and the results of get_issue, search_issues, label_issue, comment_on_issue, post_message.
    crashing = crash_after_tool_results(store, 10)
    with pytest.raises(RuntimeError, match="simulated crash"):
        await run(triage, message=LOST_HIGHLIGHTS, session_id="s", store=crashing, llm=ScriptedTriage())
    assert len(world.posts()) == 1

    result = assert_complete(await run(triage, session_id="s", store=store, llm=ScriptedTriage()))
    (post,) = (message for message in result.messages if message.tool_name == "post_message")
    assert kind_of(result.messages, str(post.tool_call_id)) == DURABILITY
    assert (len(world.posts()), len(world.mails())) == (1, 1)
    assert "post_message: may or may not have taken effect" in result.response


async def test_what_failed_is_told_and_the_rest_is_done(
    world: Sinks, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STANDFAST_WEBHOOK_URL")
    result = await triaged(store, LOST_HIGHLIGHTS)
    assert "post_message: failed. STANDFAST_WEBHOOK_URL is not set." in result.response
    assert len(world.mails()) == 1


async def test_the_scripted_model_answers_by_the_transcript_alone(world: Sinks, store: SQLiteStore) -> None:
    messages = (await triaged(store, LOST_HIGHLIGHTS)).messages
    for at, message in enumerate(messages):
        if message.role == "assistant":
            move = next_move(messages[:at])
            made = [(call.name, call.arguments) for call in message.tool_calls or ()]
            assert made == ([move] if isinstance(move, tuple) else [])


async def test_an_issue_named_later_is_triaged_on_its_own(world: Sinks, store: SQLiteStore) -> None:
    for issue_id in (DUPLICATE, SPAM):
        await run(triage, message=issue_id, session_id="s", store=store, llm=ScriptedTriage())
    assert [post["text"].split()[0] for post in world.posts()] == [DUPLICATE, SPAM]


@pytest.mark.slow
async def test_wherever_a_triage_dies_nothing_is_posted_mailed_or_commented_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: Sinks
) -> None:
    model = ScriptedTriage()
    # The harness calls plain functions on the loop, where they would keep sinks of the same loop from answering.
    async with sinks_in_a_process(tmp_path / "sinks") as (settings, sinks):
        use(settings, monkeypatch)
        report = await crash_everywhere(
            triage, message=LOGIN, model=model.chat, store=lambda name: sqlite_store(tmp_path / f"crash{name}.db")
        )
        assert (report.double_executions, report.lost_messages, report.unfinished) == ([], [], [])
        for effects, key in ((sinks.posts(), "idempotency_key"), (sinks.mails(), "message_id")):
            assert len({effect[key] for effect in effects}) == len(effects) > len(report.runs) / 2
        assert len(get_issue(LOGIN).comments) == len(report.runs)
