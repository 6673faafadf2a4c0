"""Slack: Slack, the worker or the board is unavailable, and invalid declarations are refused."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.chats import line, on_board, page_for, start_line
from support.pages import TOKENS, shows
from support.slack import SIGNING, Slack, buttons, send, texts
from support.temporal_runs import Temporal, result, until

from standfast import DefinitionError
from standfast.temporal import SlackButtons, StandfastClient, Webhook, start_pipeline
from standfast.testing import Fault, Reply
from standfast.web import Access, Person, SlackActions


async def test_without_a_worker_a_decision_is_sent_and_the_message_says_that_nobody_has_confirmed_it(
    temporal: Temporal, slack: Slack
) -> None:
    of = line()
    async with page_for(temporal, slack=slack.app()) as page:
        async with temporal.worker(pipelines=[of], webhooks=[slack.webhook()]):
            run = await start_line(temporal, of)
            await until(lambda: slack.messages)
            people = StandfastClient(temporal.client, store=temporal.store)
            await until(lambda: on_board(people, run))
        press = slack.press("Approve")
        assert (await send(page, press)).status_code == 200
        await until(lambda: "Approved by ada: sent, not confirmed" in texts(slack.message))
        assert "Approve" in buttons(slack.message)
        async with temporal.worker(pipelines=[of]):
            assert (await result(run))["status"] == "complete"
        await send(page, press)
        await until(lambda: "no longer waiting: Approved by ada" in texts(slack.message))


async def test_a_button_counts_though_the_board_does_not_have_its_gate(
    temporal: Temporal, slack: Slack, tmp_path: Path
) -> None:
    of = line()
    async with (
        temporal.worker(pipelines=[of], webhooks=[slack.webhook()]),
        page_for(temporal, slack=slack.app()) as page,
    ):
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        people = StandfastClient(temporal.client, store=temporal.store)
        await until(lambda: on_board(people, run))
        with closing(sqlite3.connect(tmp_path / "standfast.db")) as database, database:
            database.execute("DELETE FROM waits")
        assert await people.pending(run.id) == []
        await send(page, slack.press("Approve"))
        assert (await result(run))["status"] == "complete"
        await until(lambda: "Approved by ada, 20" in texts(slack.message))


async def test_a_decision_counts_though_slack_is_away_and_the_message_follows(temporal: Temporal, slack: Slack) -> None:
    of = line()
    async with (
        temporal.worker(pipelines=[of], webhooks=[slack.webhook()]),
        page_for(temporal, slack=slack.app()) as page,
    ):
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        press = slack.press("Approve")
        slack.faults = [Reply(b"oh", 503), Reply(end="reset")]
        await send(page, press)
        await result(run)
        await until(lambda: "Approved by ada" in texts(slack.message))


async def test_an_address_of_somebody_else_is_not_answered(temporal: Temporal, slack: Slack) -> None:
    of = line()
    async with (
        Slack() as other,
        temporal.worker(pipelines=[of], webhooks=[slack.webhook()]),
        page_for(temporal, slack=slack.app()) as page,
    ):
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        press = slack.press("Approve")
        ours = press["response_url"]
        there = ours.replace(slack.address, other.address)
        await send(page, press | {"response_url": there})
        await result(run)
        await until(lambda: "Approved by ada" in texts(slack.message))  # by chat.update
        for wrong in (there, ours.replace("http://", "http://x@"), "file:///etc/passwd", "http://[", None):
            slack.messages[max(slack.messages)]["blocks"] = []
            await send(page, press | {"response_url": wrong})
            await until(lambda: "no longer waiting" in texts(slack.message))
        assert other.requests == []
        assert not any("/actions/" in request.path for request in slack.requests)


async def test_a_form_that_cannot_be_opened_is_said_to_the_person(temporal: Temporal, slack: Slack) -> None:
    of = line()
    async with (
        temporal.worker(pipelines=[of], webhooks=[slack.webhook()]),
        page_for(temporal, slack=slack.app()) as page,
    ):
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        press = slack.press("Reject")
        slack.faults = [Reply({"ok": False, "error": "expired_trigger_id"})]
        await send(page, press)
        await until(lambda: slack.told)
        assert "expired_trigger_id" in slack.told[0][1]
        await run.cancel()


async def test_a_message_that_slack_does_not_take_is_sent_again_only_if_that_may_help(
    temporal: Temporal, slack: Slack, caplog: pytest.LogCaptureFixture
) -> None:
    of = line()
    slack.faults = [Reply({"ok": False, "error": "ratelimited"}), Reply({"ok": False, "error": "service_unavailable"})]
    async with temporal.worker(pipelines=[of], webhooks=[slack.webhook()]):
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        await run.cancel()
        # Otherwise the next worker changes the first message, and the fault meets that request.
        await until(lambda: any(request.path.endswith("chat.update") for request in slack.requests))
    slack.faults = [Reply({"ok": False, "error": "channel_not_found"})]
    before = len(slack.requests)
    async with temporal.worker(pipelines=[of], webhooks=[slack.webhook()]):
        run = await start_pipeline(temporal.client, of, task_queue=temporal.name, run_key=temporal.session("other"))
        await until(lambda: any("channel_not_found" in record.getMessage() for record in caplog.records))
        await run.cancel()
    assert len(slack.requests) == before + 1


async def test_the_page_says_that_a_message_may_not_have_arrived(
    temporal: Temporal, slack: Slack, caplog: pytest.LogCaptureFixture
) -> None:
    of = line()
    slack.faults = [Fault(end="reset")]
    async with (
        temporal.worker(pipelines=[of], webhooks=[slack.webhook()]),
        page_for(temporal, slack=slack.app()) as page,
    ):
        run = await start_line(temporal, of)
        said = "slack may not have been notified of approval ok"
        await until(lambda: any(said in record.getMessage() for record in caplog.records))
        page.headers["Authorization"] = f"Bearer {TOKENS['vera']}"
        await until(lambda: shows(page, f"/runs/{run.id}", said))
        await run.cancel()
    assert len(slack.requests) == 1


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: SlackButtons(token="xoxb-1"), "token and channel go together"),
        (lambda: SlackButtons(channel="C1"), "token and channel go together"),
        (lambda: SlackButtons(token="x\n", channel="C1"), "must be a bot token"),
        (lambda: Webhook(url="https://x/", slack_buttons=SlackButtons()), 'needs format="slack"'),
        (
            lambda: Webhook(url="https://slack.com/api/chat.postMessage", format="slack", slack_buttons=SlackButtons()),
            "chat.postMessage needs a token",
        ),
        (lambda: SlackActions(signing_secret="short"), "signing_secret must have at least 16"),
        (lambda: SlackActions(signing_secret=SIGNING, token="a b\n"), "slack.token must be a bot token"),
        (lambda: SlackActions(signing_secret=SIGNING, api="http://slack.example/api"), "must be an https address"),
        (lambda: Person(name="ada", slack="U0ADA"), "slack must be the ids of a team and a user"),
        (
            lambda: Access(people=[Person(name=name, slack="T0A/U0A") for name in ("ada", "bob")]),
            "two have the same slack",
        ),
    ],
)
def test_what_could_not_be_used_with_slack_is_refused(make: Any, rule: str) -> None:
    with pytest.raises(DefinitionError, match=rule):
        make()


def test_secrets_of_slack_are_not_shown() -> None:
    shown = repr([SlackButtons(token="xoxb-1", channel="C1"), SlackActions(signing_secret=SIGNING, token="xoxb-1")])
    assert "xoxb-1" not in shown
    assert SIGNING not in shown
