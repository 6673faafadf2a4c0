"""Slack: authorised people, and genuine requests."""

import json
import time

import pytest
from support.chats import TEAM, clerk, decisions, line, page_for, start_line
from support.pages import CHARGES
from support.slack import SIGNING, Slack, send
from support.temporal_runs import Temporal, pending, until

from standfast.testing import ScriptedModel
from standfast.web.chats.slack import slack_signature


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("user", "team", "why"),
    [
        ("U0EVE", TEAM, 'slack = "T0CAG/U0EVE"'),
        ("U0ADA", "T0OTHER", 'slack = "T0OTHER/U0ADA"'),
        ("U0VERA", TEAM, "vera has the role viewer"),
        ("U0OLGA", TEAM, "olga"),  # who is not asked
        ("U0TOM", TEAM, "There is no run"),  # of another tenant
        ("U0TIA", TEAM, "There is no run"),  # sees her own runs alone
        ("U0MAX", TEAM, "max may no longer decide, or may only view"),
        ("U0OLD", TEAM, "old may no longer decide, or may only view"),
    ],
)
async def test_a_person_who_may_not_decide_is_told_so_alone_and_nothing_is_decided(
    temporal: Temporal, slack: Slack, user: str, team: str, why: str
) -> None:
    async with (
        temporal.worker(agent := clerk(), llm=ScriptedModel([CHARGES, "done"]), webhooks=[slack.webhook()]),
        page_for(temporal, slack=slack.app()) as page,
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
        answer = (await send(page, slack.fill(user, team))).json()  # in someone else's form
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


@pytest.mark.slow
async def test_what_slack_has_not_just_signed_is_refused(temporal: Temporal, slack: Slack) -> None:
    of = line()
    async with (
        temporal.worker(pipelines=[of], webhooks=[slack.webhook()]),
        page_for(temporal, slack=slack.app()) as page,
    ):
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
