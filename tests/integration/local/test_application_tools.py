"""The application's tools against a real feed, a real webhook and a real mail server."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from email.utils import parseaddr
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.application import answering, application, dump, saying, sinks_in_a_process, use
from support.doubles import ask
from support.stores import crash_on_write
from support.transcripts import DURABILITY, asks_for, call, contents, error, kind_of, result_of

from activities import (
    comment_on_issue,
    get_issue,
    label_issue,
    list_issues,
    load_feed,
    post_message,
    search_issues,
    send_email,
)
from activities.issues import find_comment
from examples.sinks import Sinks
from standfast import Agent, Happened, InputError, NotHappened, RunResult, Tool, ToolContext, run
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel

MAIL = {"to": "on-call@saltmarsh.example", "subject": "Severe", "body": "It is down."}
POST = {"channel": "#triage", "text": "Hello"}


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sinks]:
    async with application(tmp_path, monkeypatch) as listening:
        yield listening


async def called(tool: Tool[..., Any], **arguments: Any) -> RunResult:
    """Let a model call a tool once."""
    return await ask(Agent("clerk", tools=[tool]), call(tool.name, "c1", **arguments))


def ctx(key: str) -> ToolContext:
    return ToolContext(agent_name="clerk", tool_call_id="c1", idempotency_key=key)


# --- the feed ---


def test_the_feed_loads_twice_without_change(tmp_path: Path) -> None:
    load_feed(tmp_path / "issues.db")
    first = dump(tmp_path / "issues.db")
    load_feed(tmp_path / "issues.db")
    assert dump(tmp_path / "issues.db") == first


async def test_what_was_done_to_an_issue_stays_when_the_feed_is_loaded_again(world: Sinks) -> None:
    label_issue("ISSUE-114", ["needs-info"])
    comment_on_issue("ISSUE-114", "Which version?", ctx("k1"))
    before = get_issue("ISSUE-114")
    load_feed(world.folder / "issues.db")
    assert get_issue("ISSUE-114") == before


async def test_without_a_feed_the_error_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDFAST_ISSUES", raising=False)
    monkeypatch.chdir(tmp_path)
    assert "load_feed('issues.db')" in error(await called(list_issues))
    assert "load_feed('issues.db')" in error(await called(list_issues))  # the first has made no empty file


# --- issues ---


async def test_issues_are_listed_by_state_and_label_newest_first(world: Sinks) -> None:
    assert [issue.id for issue in list_issues(limit=2)] == ["ISSUE-140", "ISSUE-139"]
    assert {issue.state for issue in list_issues(state="closed")} == {"closed"}
    assert [issue.id for issue in list_issues(label="area/ios")] == ["ISSUE-110"]
    assert len(list_issues(state="all", limit=50)) == 40


async def test_an_issue_comes_with_its_labels_and_comments(world: Sinks) -> None:
    issue = get_issue("ISSUE-101")
    assert (issue.state, issue.labels) == ("closed", ["area/import", "bug"])
    assert [comment.author for comment in issue.comments] == ["tove-k"]


async def test_an_issue_that_does_not_exist_is_an_error_that_names_it(world: Sinks) -> None:
    assert error(await called(get_issue, issue_id="ISSUE-999")) == "There is no issue ISSUE-999"
    assert error(await called(label_issue, issue_id="ISSUE-999", labels=["bug"])) == "There is no issue ISSUE-999"
    assert "issue_id" in error(await called(get_issue, issue_id="119; DROP TABLE issues"))


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("KeyError resolved_title", "ISSUE-113"),
        ("umlauts Müller", "ISSUE-103"),
        ('NEAR("umlauts" AND) -x*', "ISSUE-103"),
        ("検索結果のページ送りが動かない", "ISSUE-131"),
    ],
)
async def test_a_search_finds_words_and_knows_no_operators(world: Sinks, query: str, best: str) -> None:
    assert search_issues(query)[0].id == best


async def test_a_search_without_words_finds_nothing(world: Sinks) -> None:
    assert search_issues('"*" -- ()') == []


async def test_a_label_that_is_added_twice_is_there_once_and_others_stay(world: Sinks) -> None:
    label_issue("ISSUE-107", ["bug", "severe"])
    assert label_issue("ISSUE-107", ["severe"]).labels == ["bug", "performance", "severe"]


async def test_a_label_that_nobody_knows_is_refused(world: Sinks) -> None:
    assert "labels" in error(await called(label_issue, issue_id="ISSUE-107", labels=["wontfix"]))


# --- comments ---


async def test_a_comment_has_the_agent_as_its_author(world: Sinks) -> None:
    await called(comment_on_issue, issue_id="ISSUE-114", body="Which version?")
    (comment,) = get_issue("ISSUE-114").comments
    assert (comment.author, comment.body) == ("clerk", "Which version?")


async def test_verify_tells_whether_a_comment_is_there(world: Sinks) -> None:
    assert find_comment("ISSUE-114", "Hi", ctx("k1")) == NotHappened()
    comment = comment_on_issue("ISSUE-114", "Hi", ctx("k1"))
    assert find_comment("ISSUE-114", "Hi", ctx("k1")) == Happened(comment)
    assert find_comment("ISSUE-114", "Hi", ctx("k2")) == NotHappened()


async def test_a_second_attempt_at_a_comment_finds_the_first_ones(world: Sinks) -> None:
    first = comment_on_issue("ISSUE-114", "Hi", ctx("k1"))
    assert comment_on_issue("ISSUE-114", "Hi", ctx("k1")) == first
    assert len(get_issue("ISSUE-114").comments) == 1


async def test_a_comment_whose_result_was_lost_is_found_and_not_written_again(world: Sinks, store: SQLiteStore) -> None:
    agent = Agent("clerk", tools=[comment_on_issue])
    asked = asks_for(call("comment_on_issue", "c1", issue_id="ISSUE-114", body="Which version?"))
    await crash_on_write(store, agent, [asked], 2)
    await run(agent, llm=ScriptedModel(["done"]), store=store, session_id="s")
    (comment,) = get_issue("ISSUE-114").comments
    assert result_of(await store.load_messages("s"), "c1") == comment.model_dump_json()


# --- chat ---


async def test_a_post_reaches_the_webhook_with_its_key_and_its_markup_as_text(world: Sinks) -> None:
    result = await called(post_message, channel="#triage", text="<!channel> a & b")
    assert contents(result) == ['{"channel":"#triage","posted":true}']
    (post,) = world.posts()
    assert (post["channel"], post["text"]) == ("#triage", "&lt;!channel&gt; a &amp; b")
    assert post["idempotency_key"].endswith("/c1")


async def test_a_key_that_no_header_can_carry_is_encoded(world: Sinks) -> None:
    await post_message("#triage", "Hello", ctx("s@1/2.0/ü\n"))
    assert world.posts()[0]["idempotency_key"] == "s@1/2.0/%C3%BC%0A"


@pytest.mark.parametrize("name", ["STANDFAST_WEBHOOK_URL", "STANDFAST_SMTP", "STANDFAST_MAIL_FROM"])
async def test_a_missing_setting_is_named(world: Sinks, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(name)
    tool, arguments = (post_message, POST) if "WEBHOOK" in name else (send_email, MAIL)
    assert error(await called(tool, **arguments)).startswith(f"{name} is not set. Nothing was sent.")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("302 Found\r\nLocation: http://127.0.0.1/elsewhere", "Not posted: the chat answered 302 no_luck"),
        ("404 Not Found", "Not posted: the chat answered 404 no_luck"),
        ("429 Too Many Requests\r\nRetry-After: 7", "429 no_luck. It can be retried in 7 seconds"),
        ("429 Too Many Requests", "429 no_luck. It can be retried later"),
        ("503 Unavailable\r\nRetry-After: Mon, 01 Jan 2029 00:00:00 GMT", "503 no_luck. It can be retried later"),
        ("503 Unavailable", "It may or may not have taken effect"),
        ("500 Internal Server Error", "It may or may not have taken effect"),
        ("504 Gateway Timeout", "It may or may not have taken effect"),
    ],
)
async def test_what_the_chat_answers_decides_what_the_model_reads(
    monkeypatch: pytest.MonkeyPatch, status: str, expected: str
) -> None:
    async with answering(f"HTTP/1.1 {status}\r\nContent-Length: 7\r\n\r\nno_luck".encode()) as url:
        monkeypatch.setenv("STANDFAST_WEBHOOK_URL", url)
        read = error(await called(post_message, **POST))
    assert expected in read
    assert "services/secret" not in read


async def test_a_chat_that_hangs_up_instead_of_answering_may_have_posted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(b"") as url:
        monkeypatch.setenv("STANDFAST_WEBHOOK_URL", url)
        read = error(await called(post_message, **POST))
    assert "RemoteProtocolError. It may or may not have taken effect" in read


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:1/services/secret", "Not posted: no connection to the chat"),
        ("hooks.example/services/secret", "Not posted: STANDFAST_WEBHOOK_URL is not an http:// or https:// address"),
    ],
)
async def test_a_chat_that_cannot_be_reached_has_not_posted(
    monkeypatch: pytest.MonkeyPatch, url: str, expected: str
) -> None:
    monkeypatch.setenv("STANDFAST_WEBHOOK_URL", url)
    read = error(await called(post_message, **POST))
    assert read.startswith(expected)
    assert "services/secret" not in read


async def test_a_post_whose_answer_takes_too_long_is_a_durability_error_and_was_received(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with application(tmp_path, monkeypatch, webhook_delay=60) as world:
        result = await called(dataclasses.replace(post_message, timeout=1), **POST)
        assert kind_of(result.messages, "c1") == DURABILITY
        assert len(world.posts()) == 1


@pytest.mark.parametrize("arguments", [{"channel": "general chat"}, {"channel": "#a b"}, {"text": ""}])
async def test_a_post_without_a_channel_or_a_text_is_refused(world: Sinks, arguments: dict[str, str]) -> None:
    assert next(iter(arguments)) in error(await called(post_message, **{**POST, **arguments}))
    assert world.posts() == []


# --- mail ---


async def test_a_mail_arrives_as_it_was_written(world: Sinks) -> None:
    body = "Größe: 3\n.\n..two dots\n日本語\n"
    (sent,) = contents(await called(send_email, to=MAIL["to"], subject="Größer", body=body))
    (mail,) = world.mails()
    assert mail == {
        "from": "triage@saltmarsh.example",
        "to": ["on-call@saltmarsh.example"],
        "subject": "Größer",
        "message_id": json.loads(sent)["message_id"],
        "body": body.replace("\n", "\r\n"),
    }


async def test_a_mail_is_known_by_its_call(world: Sinks) -> None:
    for key in ("s@1/2.0/c1", "s@1/2.0/c1", "s@1/4.0/c1"):
        await asyncio.to_thread(send_email, **MAIL, ctx=ctx(key))
    first, again, other = (mail["message_id"] for mail in world.mails())
    assert first == again != other


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("subject", "Hello\r\nBcc: everybody@saltmarsh.example"),
        ("subject", "Hello\nBcc: everybody@saltmarsh.example"),
        ("subject", "Hello\x85Bcc: everybody@saltmarsh.example"),
        ("to", "on-call@saltmarsh.example\nBcc: everybody@saltmarsh.example"),
        ("to", "on-call@saltmarsh.example\n"),
        ("to", "on-call@saltmarsh.example, everybody@saltmarsh.example"),
        ("to", "On Call <on-call@saltmarsh.example>"),
        ("to", "on-call"),
    ],
)
async def test_a_header_that_would_hold_another_is_refused(world: Sinks, field: str, value: str) -> None:
    with pytest.raises(InputError, match=field):
        send_email.read_arguments({**MAIL, field: value})
    assert field in error(await called(send_email, **{**MAIL, field: value}))
    assert world.mails() == []


@pytest.mark.parametrize("field", ["subject", "to"])
async def test_a_header_with_a_line_break_is_refused_even_without_validation(world: Sinks, field: str) -> None:
    with pytest.raises(ValueError, match="linefeed"):
        await asyncio.to_thread(send_email, **{**MAIL, field: "x\r\nBcc: everybody@saltmarsh.example"}, ctx=ctx("k"))
    assert world.mails() == []


async def test_mail_leaves_for_the_senders_domain_only(world: Sinks, monkeypatch: pytest.MonkeyPatch) -> None:
    read = error(await called(send_email, **{**MAIL, "to": "audit@exports-verify.example"}))
    assert read == "Not sent: mail goes to addresses at saltmarsh.example only"
    monkeypatch.setenv("STANDFAST_MAIL_FROM", "Triage <triage@Saltmarsh.example>")
    await called(send_email, **MAIL)
    assert [parseaddr(mail["from"])[1] for mail in world.mails()] == ["triage@Saltmarsh.example"]


GREETED = ("220 here", "250 hello")
READY = (*GREETED, "250 OK", "250 OK")
UNREACHABLE = "Not sent: the mail server could not be reached or understood"


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["554 no service"], "Not sent: the mail server answered 554 no service"),
        ([*GREETED, "451 busy"], "Not sent: the mail server answered 451 busy. It can be retried later"),
        ([*GREETED, "250 OK", "550 nobody"], "Not sent: the mail server answered 550 nobody"),
        ([*READY, "452 full"], "Not sent: the mail server answered 452 full. It can be retried later"),
        ([*READY, "354 go", "452 full"], "Not sent: the mail server answered 452 full. It can be retried later"),
        ([*READY, "354 go", "554 spam"], "Not sent: the mail server answered 554 spam"),
        (["hello"], "Not sent: the mail server answered -1"),
        ([*GREETED], UNREACHABLE),
        ([*READY, "354 go"], "It may or may not have taken effect"),
        ([*READY, "354 go", "what?"], "It may or may not have taken effect"),
    ],
)
async def test_how_far_the_dialogue_came_decides_what_the_model_reads(
    world: Sinks, monkeypatch: pytest.MonkeyPatch, answers: list[str], expected: str
) -> None:
    async with saying(*answers) as server:
        monkeypatch.setenv("STANDFAST_SMTP", server)
        assert expected in error(await called(send_email, **MAIL))


@pytest.mark.parametrize("goodbye", [["500 what?"], []])
async def test_a_quarrel_over_the_goodbye_does_not_bring_a_mail_back(
    world: Sinks, monkeypatch: pytest.MonkeyPatch, goodbye: list[str]
) -> None:
    async with saying(*READY, "354 go", "250 taken", *goodbye) as server:
        monkeypatch.setenv("STANDFAST_SMTP", server)
        assert '"message_id":' in contents(await called(send_email, **MAIL))[0]


async def test_a_mail_server_that_is_not_there_has_sent_nothing(world: Sinks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDFAST_SMTP", "127.0.0.1:1")
    assert error(await called(send_email, **MAIL)).startswith(UNREACHABLE)


@pytest.mark.parametrize(
    ("name", "value"), [("STANDFAST_SMTP", "localhost"), ("STANDFAST_SMTP", ":25"), ("STANDFAST_MAIL_FROM", "triage")]
)
async def test_a_setting_that_makes_no_sense_is_named(
    world: Sinks, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert error(await called(send_email, **MAIL)).startswith(f"Not sent: {name} must be")


# --- the sinks ---


async def test_the_sinks_run_as_their_own_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with sinks_in_a_process(tmp_path / "sinks") as (settings, world):
        use(settings, monkeypatch)
        await called(post_message, **POST)
        await called(send_email, **MAIL)
        assert (len(world.posts()), len(world.mails())) == (1, 1)


@pytest.mark.parametrize("payload", [b"", b"text=Hello", b"[]", b'{"text": "Hello"}'])
async def test_a_request_that_is_not_a_post_is_answered_as_slack_does_and_not_kept(
    world: Sinks, payload: bytes
) -> None:
    async with httpx.AsyncClient() as client:
        answer = await client.post(world.webhook_url, content=payload)
    assert (answer.status_code, answer.text) == (400, "invalid_payload")
    assert world.posts() == []
