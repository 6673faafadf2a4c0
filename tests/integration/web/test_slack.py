"""Slack: people decide by the buttons of messages, on what these show whole, and the messages say what was decided.

The payloads are those of Slack's reference; see `support.slack`.
"""

import json
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.pages import CHARGES, PEOPLE, charge, served
from support.slack import SIGNING, TEAM, Slack, buttons, send, texts
from support.temporal_runs import Temporal, pending, result, until
from support.transcripts import asks_for, call

from standfast import Agent, Approval, DefinitionError, Markdown, pipeline, tool
from standfast.temporal import SlackButtons, StandfastClient, Webhook, start_pipeline
from standfast.testing import Reply, ScriptedModel
from standfast.web import Access, Person, SlackActions, create_app
from standfast.web.slack import slack_signature

BOUNDED = (
    Person(name="tom", role="operator", tenants=["other"], slack=f"{TEAM}/U0TOM"),
    Person(name="tia", role="operator", only_own=True, slack=f"{TEAM}/U0TIA"),
    Person(name="max", role="operator", scopes=["read"], slack=f"{TEAM}/U0MAX"),
    Person(name="old", role="operator", expires=datetime(2026, 1, 1, tzinfo=UTC), slack=f"{TEAM}/U0OLD"),
)
ACCESS = Access(people=[*(replace(one, slack=f"{TEAM}/U0{one.name.upper()}") for one in PEOPLE), *BOUNDED])
HOSTILE = "<!channel> <@U0ADA> *bold* <https://evil.example|harmless> :tada: `code` &lt;"


@asynccontextmanager
async def page_for(temporal: Temporal, app: SlackActions, access: Access = ACCESS) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the page at a port of its own; yields a client as Slack is one."""
    page = create_app(temporal.client, access=access, store=temporal.store, slack=app)
    async with served(page) as address, httpx.AsyncClient(base_url=address, timeout=60) as client:
        yield client


@pytest.fixture
async def slack() -> AsyncIterator[Slack]:
    async with Slack() as server:
        yield server


def clerk(*tools: Any) -> Agent:
    return Agent("clerk", tools=list(tools) or [charge])


def line(**gate: Any) -> Any:
    return pipeline("line").step("ok", approval=Approval(**{"message": "Go on?"} | gate)).build()


async def start_line(temporal: Temporal, of: Any) -> Any:
    return await start_pipeline(temporal.client, of, task_queue=temporal.name, run_key=temporal.session())


async def decisions(temporal: Temporal, run: Any) -> list[tuple[str, str | None, str | None]]:
    rows = await temporal.store.load_decisions(run.first_execution_run_id or "")
    return [(row.decision, row.by, row.comment) for row in rows if row.refused is None]


# --- deciding ---


async def test_a_button_approves_what_the_message_shows_and_the_message_says_who_did(
    temporal: Temporal, slack: Slack
) -> None:
    hook = slack.webhook(link="https://x.example/runs/{workflow_id}?a=1&b=2")
    model = ScriptedModel([CHARGES, "done"])
    async with temporal.worker(agent := clerk(), llm=model, webhooks=[hook]), page_for(temporal, slack.app()) as page:
        run = await temporal.start(agent)
        await until(lambda: slack.messages)
        assert list(buttons(slack.message)) == ["Approve", "Edit…", "Reject", "Open"]
        for part in ("Charge the customer?", '{\n  "amount": 5\n}', run.id, "Tool: charge", "For: ada"):
            assert part in texts(slack.message)
        assert (await send(page, slack.press("Open"))).status_code == 200  # Slack tells of links, too
        assert (await send(page, slack.press("Approve"))).content == b""
        assert (await result(run))["status"] == "complete"
        await until(lambda: buttons(slack.message) == {})
    assert "Approved by ada, 20" in texts(slack.message)
    assert '{\n  "amount": 5\n}' in texts(slack.message)
    assert await decisions(temporal, run) == [("approve", "ada", None)]
    assert slack.told == []


async def test_without_a_token_messages_of_an_incoming_webhook_decide_too(temporal: Temporal, slack: Slack) -> None:
    of = line(on_reject="end")
    async with (
        temporal.worker(pipelines=[of], webhooks=[slack.incoming()]),
        page_for(temporal, slack.app(None)) as page,
    ):
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        assert list(buttons(slack.message)) == ["Approve", "Reject"]
        await send(page, slack.press("Reject"))
        await until(lambda: "Rejected by ada" in texts(slack.message))
        assert await decisions(temporal, run) == [("reject", "ada", None)]


@tool(approval=Approval(message="Post it?"))
async def post(text: str, times: int, loud: bool, tags: list[str]) -> str:
    return json.dumps([text, times, loud, tags])


POSTS = asks_for(call("post", "p1", text="a < b & c", times=2, loud=False, tags=["x"]))


async def test_a_form_has_a_field_for_each_argument_and_what_was_typed_is_what_runs(
    temporal: Temporal, slack: Slack
) -> None:
    model = ScriptedModel([POSTS, "done"])
    async with (
        temporal.worker(agent := clerk(post), llm=model, webhooks=[slack.webhook()]),
        page_for(temporal, slack.app()) as page,
    ):
        run = await temporal.start(agent)
        await until(lambda: slack.messages)
        await send(page, slack.press("Edit…"))
        kinds = [block["element"]["type"] for block in slack.views[0]["blocks"]]
        assert kinds == ["plain_text_input", "number_input", "static_select", *["plain_text_input"] * 2]
        typed = slack.fill(times="3", loud="true", tags='["x", "y"]', Comment="louder")
        assert (await send(page, typed)).content == b""
        await result(run)
    said = next(one.content for one in await temporal.messages() if one.role == "tool")
    assert json.loads(said)["result"] == ["a < b & c", 3, True, ["x", "y"]]
    (row,) = await temporal.store.load_decisions(run.first_execution_run_id or "")
    assert row.edit == {"text": "a < b & c", "times": 3, "loud": True, "tags": ["x", "y"]}
    assert await decisions(temporal, run) == [("approve", "ada", "louder")]
    assert '"times": 3' in texts(slack.message)
    assert "Comment: louder" in texts(slack.message)


async def test_a_form_that_was_not_changed_edits_nothing(temporal: Temporal, slack: Slack) -> None:
    async with (
        temporal.worker(agent := clerk(post), llm=ScriptedModel([POSTS, "done"]), webhooks=[slack.webhook()]),
        page_for(temporal, slack.app()) as page,
    ):
        run = await temporal.start(agent)
        await until(lambda: slack.messages)
        await send(page, slack.press("Edit…"))
        await send(page, slack.fill())
        await result(run)
    (row,) = await temporal.store.load_decisions(run.first_execution_run_id or "")
    assert row.edit is None


async def test_what_cannot_be_used_stays_in_the_form_with_the_reason(temporal: Temporal, slack: Slack) -> None:
    async with (
        temporal.worker(agent := clerk(post), llm=ScriptedModel([POSTS, "done"]), webhooks=[slack.webhook()]),
        page_for(temporal, slack.app()) as page,
    ):
        run = await temporal.start(agent)
        await until(lambda: slack.messages)
        await send(page, slack.press("Edit…"))
        for tags, block, why in (
            ("[", "field-3", "not valid JSON"),
            ('{"a": 1, "a": 2}', "field-3", "a key twice"),
            ('"no list"', "comment", "tags"),  # the run says so
        ):
            answer = (await send(page, slack.fill(tags=tags))).json()
            assert answer["response_action"] == "errors"
            assert why in answer["errors"][block]
        assert [item["name"] for item in await pending(run)] == ["p1"]
        assert (await send(page, slack.fill(tags="[]"))).content == b""
        await result(run)


async def test_a_rejection_has_a_comment_which_the_model_reads(temporal: Temporal, slack: Slack) -> None:
    model = ScriptedModel([CHARGES, "done"])
    async with (
        temporal.worker(agent := clerk(), llm=model, webhooks=[slack.webhook()]),
        page_for(temporal, slack.app()) as page,
    ):
        run = await temporal.start(agent)
        await until(lambda: slack.messages)
        await send(page, slack.press("Reject"))
        assert (await send(page, slack.fill(Comment="too much"))).content == b""
        await result(run)
        assert any("too much" in one.content for one in await temporal.messages())
    assert "Rejected by ada" in texts(slack.message)


async def test_while_others_must_approve_too_the_buttons_stay(temporal: Temporal, slack: Slack) -> None:
    of = line(quorum=2, approvers=["ada", "olga"])
    async with temporal.worker(pipelines=[of], webhooks=[slack.webhook()]), page_for(temporal, slack.app()) as page:
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        await send(page, slack.press("Approve"))
        await until(lambda: "Approved by ada, 1 of 2" in texts(slack.message))
        assert "Approve" in buttons(slack.message)
        await until(lambda: approved(temporal, run, ["ada"]))
        await send(page, slack.press("Approve", "U0OLGA"))
        await result(run)
        await until(lambda: "Approved by ada, olga, 20" in texts(slack.message))
    assert buttons(slack.message) == {}


async def approved(temporal: Temporal, run: Any, by: Sequence[str]) -> bool:
    people = StandfastClient(temporal.client, store=temporal.store)
    return [item["approved_by"] for item in await people.pending(run.id)] == [by]


# --- who ---


@pytest.mark.parametrize(
    ("user", "team", "why"),
    [
        ("U0EVE", TEAM, 'slack = "T0CAG/U0EVE"'),
        ("U0ADA", "T0OTHER", 'slack = "T0OTHER/U0ADA"'),
        ("U0VERA", TEAM, "vera has the role viewer"),
        ("U0OLGA", TEAM, "olga"),  # who is not asked
        ("U0TOM", TEAM, "There is no run"),  # of another tenant
        ("U0TIA", TEAM, "There is no run"),  # sees her own runs alone
        ("U0MAX", TEAM, "max may not decide any more, or only look"),
        ("U0OLD", TEAM, "old may not decide any more, or only look"),
    ],
)
async def test_whoever_may_not_decide_is_told_so_alone_and_nothing_is_decided(
    temporal: Temporal, slack: Slack, user: str, team: str, why: str
) -> None:
    async with (
        temporal.worker(agent := clerk(), llm=ScriptedModel([CHARGES, "done"]), webhooks=[slack.webhook()]),
        page_for(temporal, slack.app()) as page,
    ):
        run = await temporal.start(agent)
        await until(lambda: slack.messages)
        before = slack.message
        for button in ("Approve", "Edit…", "Reject"):
            assert (await send(page, slack.press(button, user, team))).status_code == 200
        await until(lambda: len(slack.told) == 3)
        assert {one for one, _ in slack.told} == {user}
        assert all(why in text.replace("&quot;", '"') for _, text in slack.told)
        assert (slack.message, slack.views) == (before, [])
        await send(page, slack.press("Edit…"))
        answer = (await send(page, slack.fill(user, team))).json()  # in somebody else's form
        assert why in answer["errors"]["comment"]
        assert [item["name"] for item in await pending(run)] == ["c1"]
        assert await decisions(temporal, run) == []
        await run.cancel()


def test_slacks_own_example_has_this_signature() -> None:
    """It stands in https://docs.slack.dev/authentication/verifying-requests-from-slack."""
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&"
        b"channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&"
        b"response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&"
        b"trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    expected = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    assert slack_signature(SIGNING, "1531420618", body) == expected


async def test_what_slack_has_not_just_signed_is_refused(temporal: Temporal, slack: Slack) -> None:
    of = line()
    async with temporal.worker(pipelines=[of], webhooks=[slack.webhook()]), page_for(temporal, slack.app()) as page:
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        press = slack.press("Approve")
        now = time.time()
        refused = [
            await send(page, press, secret="another secret of another app"),
            await send(page, press, at=now - 400),
            await send(page, press, at=now + 400),
            await send(page, press, signed=b""),
            await send(page, press, signed=b"v0=" + b"0" * 64),
            await send(page, press, signed=b"v0=\xe4"),
            await page.post("/slack/actions", data={"payload": json.dumps(press)}),
            await page.post("/slack/actions", headers={b"X-Slack-Request-Timestamp": b"\xb2"}),
        ]
        assert [one.status_code for one in refused] == [401] * len(refused)
        assert (await send(page, "[" * 50_000)).status_code == 400
        assert (await send(page, {"type": "block_actions"})).status_code == 400
        assert (await send(page, {**press, "response_url": "x" * 300_000})).status_code == 413
        assert (await page.get("/slack/actions")).status_code == 405
        assert [item["name"] for item in await pending(run)] == ["ok"]
        await run.cancel()


# --- once, in time, on what was shown ---


async def test_a_button_that_is_pressed_twice_or_sent_again_counts_once(temporal: Temporal, slack: Slack) -> None:
    of = pipeline("line").step("ok", approval=Approval(message="1?")).step("sure", approval=Approval(message="2?"))
    built = of.build()
    async with temporal.worker(pipelines=[built], webhooks=[slack.webhook()]), page_for(temporal, slack.app()) as page:
        run = await start_line(temporal, built)
        await until(lambda: slack.messages)
        first, again = slack.press("Approve"), slack.press("Approve", "U0OLGA")
        await send(page, first)
        await until(lambda: len(slack.messages) == 2)  # of the next gate
        (ts, _), _ = sorted(slack.messages.items())
        for press in (first, first, again):
            await send(page, press)
            await until(lambda: "not waiting any more: Approved by ada" in texts(slack.messages[ts]))
        assert buttons(slack.messages[ts]) == {}
        assert await decisions(temporal, run) == [("approve", "ada", None)]
        assert [item["name"] for item in await pending(run)] == ["sure"]
        await run.cancel()


async def test_a_message_says_what_was_decided_elsewhere_when_its_button_is_pressed(
    temporal: Temporal, slack: Slack
) -> None:
    model = ScriptedModel([CHARGES, "done"])
    async with (
        temporal.worker(agent := clerk(), llm=model, webhooks=[slack.webhook()]),
        page_for(temporal, slack.app()) as page,
    ):
        run = await temporal.start(agent)
        await until(lambda: slack.messages)
        await send(page, slack.press("Edit…"))
        presses = [slack.press(button) for button in ("Approve", "Edit…", "Reject")]
        await temporal.people.decide(run.id, "c1", "reject", by="ada")
        await result(run)
        for press in presses:
            await send(page, press)
            await until(lambda: "not waiting any more: Rejected by ada" in texts(slack.message))
        answer = (await send(page, slack.fill(amount="7"))).json()
        assert "not waiting any more: Rejected by ada" in answer["errors"]["comment"]


async def test_after_the_deadline_a_button_decides_nothing(temporal: Temporal, slack: Slack) -> None:
    of = line(timeout="1s", on_timeout="reject")
    async with temporal.worker(pipelines=[of], webhooks=[slack.webhook()]), page_for(temporal, slack.app()) as page:
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        press = slack.press("Approve")
        await result(run)
        await send(page, press)
        await until(lambda: "not waiting any more" in texts(slack.message))
    assert buttons(slack.message) == {}
    assert await decisions(temporal, run) == []


async def test_a_button_is_not_for_what_a_gate_asks_another_time(temporal: Temporal, slack: Slack) -> None:
    from standfast.temporal.activities.slack_messages import Mark

    of = line()
    async with temporal.worker(pipelines=[of], webhooks=[slack.webhook()]), page_for(temporal, slack.app()) as page:
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        press, before = slack.press("Approve"), slack.message
        mark = Mark.read(press["actions"][0]["value"])
        others = [
            mark._replace(since="2020-01-01T00:00:00+00:00"), mark._replace(digest="0" * 64),
            mark._replace(gate="other"), mark._replace(workflow_id="line/nobody"),
        ]  # fmt: skip
        for other in others:
            slack.messages[max(slack.messages)] = before
            await send(page, {**press, "actions": [{**press["actions"][0], "value": other.write()}]})
            await until(lambda: "not waiting any more" in texts(slack.message))
        for value in ("", "none", "W10=", mark.write()[:-8]):
            await send(page, {**press, "actions": [{**press["actions"][0], "value": value}]})
        await until(
            lambda: [text for _, text in slack.told] == ["Nothing was decided: This button is none of ours"] * 4
        )
        assert [item["name"] for item in await pending(run)] == ["ok"]
        await run.cancel()


@pytest.mark.parametrize("length", [9_100, 20_000, 400_000])
async def test_what_a_message_cannot_show_whole_is_not_approved_from_it(
    temporal: Temporal, slack: Slack, length: int
) -> None:
    long = asks_for(call("post", "p1", text="<&\U0001f600" * (length // 3), times=2, loud=False, tags=[]))
    hook = slack.webhook(link="https://x.example/{workflow_id}")
    async with (
        temporal.worker(agent := clerk(post), llm=ScriptedModel([long, "done"]), webhooks=[hook]),
        page_for(temporal, slack.app()) as page,
    ):
        run = await temporal.start(agent)
        await until(lambda: slack.messages)
        assert list(buttons(slack.message)) == ["Reject", "Open"]
        assert "cannot be approved from here" in texts(slack.message)
        reject = slack.press("Reject")
        for other in ("approve", "edit"):  # as only somebody with the app's token could post it
            forged = {**reject["actions"][0], "action_id": f"standfast.{other}"}
            await send(page, {**reject, "actions": [forged]})
        await until(lambda: len(slack.told) == 2)
        assert all("does not show all of this" in text for _, text in slack.told)
        assert [item["name"] for item in await pending(run)] == ["p1"]
        await send(page, slack.press("Reject"))
        await send(page, slack.fill())
        await result(run)
    assert await decisions(temporal, run) == [("reject", "ada", None)]


async def test_what_a_pipelines_gate_shows_is_in_the_message_and_no_picture_is_approved_unseen(
    temporal: Temporal, slack: Slack
) -> None:
    from standfast import Diff, Image, Table

    seen = line(show={"a": Markdown(HOSTILE), "b": Table([[1, "x"]], ["n", "s"]), "c": Diff("old", "new"), "d": [1]})
    picture = Image(data="aGk=", media_type="image/png")
    unseen = pipeline("unseen").step("ok", approval=Approval(message="Go?", show={"p": picture})).build()
    async with temporal.worker(pipelines=[seen, unseen], webhooks=[slack.webhook()]):
        run = await start_line(temporal, seen)
        await until(lambda: slack.messages)
        for part in (HOSTILE, '["n", "s"]\n[1, "x"]', "- old\n+ new", "[\n  1\n]"):
            assert part in texts(slack.message)
        assert list(buttons(slack.message)) == ["Approve", "Reject"]
        other = await start_line(temporal, unseen)
        await until(lambda: len(slack.messages) == 2)
        assert list(buttons(slack.message)) == ["Reject"]
        await run.cancel()
        await other.cancel()


async def test_hostile_words_call_nobody_and_follow_no_link(temporal: Temporal, slack: Slack) -> None:
    of = line(message=HOSTILE, show={HOSTILE: HOSTILE})
    async with temporal.worker(pipelines=[of], webhooks=[slack.webhook()]):
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        await run.cancel()
    sent = json.dumps(slack.message["blocks"])
    assert '"mrkdwn"' not in sent
    assert '"emoji": true' not in sent
    assert "<" not in slack.message["text"]
    assert (slack.message["unfurl_links"], slack.message["unfurl_media"]) == (False, False)


# --- what fails ---


async def test_without_a_worker_a_decision_is_sent_and_the_message_says_that_nobody_has_confirmed_it(
    temporal: Temporal, slack: Slack
) -> None:
    of = line()
    async with page_for(temporal, slack.app()) as page:
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
        await until(lambda: "not waiting any more: Approved by ada" in texts(slack.message))


async def test_a_button_counts_though_the_board_does_not_have_its_gate(
    temporal: Temporal, slack: Slack, tmp_path: Path
) -> None:
    of = line()
    async with temporal.worker(pipelines=[of], webhooks=[slack.webhook()]), page_for(temporal, slack.app()) as page:
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


async def on_board(people: StandfastClient, run: Any) -> bool:
    return any(item["workflow_id"] == run.id for item in await people.waiting())


async def test_a_decision_counts_though_slack_is_away_and_the_message_follows(temporal: Temporal, slack: Slack) -> None:
    of = line()
    async with temporal.worker(pipelines=[of], webhooks=[slack.webhook()]), page_for(temporal, slack.app()) as page:
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
        page_for(temporal, slack.app()) as page,
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
            await until(lambda: "not waiting any more" in texts(slack.message))
        assert other.requests == []
        assert not any("/actions/" in request.path for request in slack.requests)


async def test_a_form_that_cannot_be_opened_is_said_to_the_person(temporal: Temporal, slack: Slack) -> None:
    of = line()
    async with temporal.worker(pipelines=[of], webhooks=[slack.webhook()]), page_for(temporal, slack.app()) as page:
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
    slack.faults = [Reply({"ok": False, "error": "ratelimited"}), Reply(b"<html>")]
    async with temporal.worker(pipelines=[of], webhooks=[slack.webhook()]):
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        await run.cancel()
    slack.faults = [Reply({"ok": False, "error": "channel_not_found"})]
    before = len(slack.requests)
    async with temporal.worker(pipelines=[of], webhooks=[slack.webhook()]):
        run = await start_pipeline(temporal.client, of, task_queue=temporal.name, run_key=temporal.session("other"))
        await until(lambda: any("channel_not_found" in record.getMessage() for record in caplog.records))
        await run.cancel()
    assert len(slack.requests) == before + 1


# --- declarations ---


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
        (lambda: SlackActions(signing_secret=SIGNING, api="http://slack.example/api"), "must be an address of https"),
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
