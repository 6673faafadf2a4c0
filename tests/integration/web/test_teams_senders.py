"""Microsoft Teams: authorised people, genuine Bot Connector requests, and invalid declarations."""

import base64
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from support.chats import TENANT, clerk, decisions, line, page_for, start_line
from support.pages import CHARGES
from support.teams import APP, KEYS, SECRET, Teams, answered, send, texts
from support.temporal_runs import Temporal, pending, until

from standfast import DefinitionError
from standfast.notices.chat_messages import Mark
from standfast.temporal import TeamsButtons, Webhook
from standfast.testing import ScriptedModel
from standfast.web import Access, Person, TeamsActions
from standfast.web.chats import teams_signatures as signatures

OTHER = "11111111-2222-4333-8444-555555555555"


@pytest.mark.slow
async def test_a_person_who_may_not_decide_is_told_so_alone_and_nothing_is_decided(
    temporal: Temporal, teams: Teams
) -> None:
    wrong = {
        "eve": "You are not known here",
        "vera": "vera has the role viewer",
        "olga": "olga",  # who is not asked
        "tom": "There is no run",  # of another tenant
        "tia": "There is no run",  # sees her own runs alone
        "max": "max may no longer decide, or may only view",
        "old": "old may no longer decide, or may only view",
    }
    async with (
        temporal.worker(agent := clerk(), llm=ScriptedModel([CHARGES, "done"]), webhooks=[teams.webhook()]),
        page_for(temporal, teams=teams.app()) as page,
    ):
        run = await temporal.start(agent)
        await until(lambda: teams.messages)
        before = teams.card
        form = await answered(page, teams, teams.press("Edit…"))
        reasons = await answered(page, teams, teams.press("Reject…"))
        for user, why in wrong.items():
            for press in (
                teams.press("Approve", user),
                teams.press("Edit…", user),
                teams.press("Reject…", user),
                teams.press("Approve", user, card=form),  # in someone else's form
                teams.press("Reject", user, card=reasons),
            ):
                said = await answered(page, teams, press)
                assert why in (said if isinstance(said, str) else texts(said)), (user, said)
        guest = teams.press("Approve")
        guest["from"]["tenantId"] = OTHER  # of another directory, in a shared channel
        assert f'teams = "{OTHER}/' in await answered(page, teams, guest)
        assert teams.card == before
        assert [item["name"] for item in await pending(run)] == ["c1"]
        assert await decisions(temporal, run) == []
        await run.cancel()


@pytest.mark.slow
async def test_what_the_bot_connector_has_not_just_signed_for_this_bot_is_refused(
    temporal: Temporal, teams: Teams, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = line()
    async with (
        temporal.worker(pipelines=[of], webhooks=[teams.webhook()]),
        page_for(temporal, teams=teams.app()) as page,
    ):
        run = await start_line(temporal, of)
        await until(lambda: teams.messages)
        press, now = teams.press("Approve"), int(time.time())
        public = KEYS["first"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        part = [
            base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in ({"alg": "none"}, {})
        ]
        head, body, _ = teams.token().split(".")
        tokens = [
            "", "x", "a.b.c", f"{part[0]}.{part[1]}.", f"{head}.{body}.", f"{head}.{body}.AAAA",
            teams.token(exp=now - 400), teams.token(exp=None), teams.token(nbf=now + 400),
            teams.token(aud=OTHER), teams.token(aud=None), teams.token(iss="https://sts.windows.net/x/"),
            teams.token(iss=None), teams.token(key=KEYS["others"]),  # by another key, under the name of ours
            teams.token("others"), teams.token(serviceurl="https://evil.example/"), teams.token(serviceurl=None),
            teams.token(key=base64.b64encode(public), algorithm="HS256"),
        ]  # fmt: skip
        refused = [await send(page, teams, press, token) for token in tokens]
        refused += [
            await send(page, teams, press, kind="Basic"),
            await send(page, teams, {**press, "channelId": "emulator"}),
            await send(page, teams, {**press, "serviceUrl": "https://evil.example/"}),
            await send(page, teams, teams.press("Approve", tenant=OTHER)),
            await send(
                page, teams, {name: press[name] for name in press if name not in ("channelData", "conversation")}
            ),
        ]
        assert [one.status_code for one in refused] == [403] * len(refused)
        assert teams.asked == 1  # the key that is not known was looked for once, with the first
        for broken in (b"[" * 50_000, b"\xff", b"[]", b"{"):
            assert (await send(page, teams, broken)).status_code in (400, 403)
        assert (await send(page, teams, {**press, "value": {}})).status_code == 400
        assert (await send(page, teams, {**press, "more": "x" * 300_000})).status_code == 413
        assert (await page.get("/teams/messages")).status_code == 405
        assert [item["name"] for item in await pending(run)] == ["ok"]
        # The keys of tomorrow are asked for, and what is signed for another channel is not Teams'.
        monkeypatch.setattr(signatures, "_UNKNOWN", -1.0)
        teams.kids, teams.endorsements = ["second"], ["webchat"]
        assert (await send(page, teams, press, teams.token("second"))).status_code == 403
        teams.kids, teams.endorsements = ["first", "second"], ["msteams", "webchat"]
        await send(page, teams, press, teams.token("others"))  # makes the page look again
        assert "Approved by ada" in texts((await send(page, teams, press, teams.token("second"))).json()["value"])
    assert await decisions(temporal, run) == [("approve", "ada", None)]


async def test_wrong_tokens_of_others_do_not_keep_the_bot_connector_out(temporal: Temporal, teams: Teams) -> None:
    async with page_for(temporal, teams=teams.app()) as page:
        for _ in range(8):
            assert (await send(page, teams, {}, "wrong")).status_code == 403
        note = {"type": "message", "channelId": "msteams", "serviceUrl": teams.service, "text": "hello"}
        told = await send(page, teams, {**note, "channelData": {"tenant": {"id": TENANT}}})
        assert (told.status_code, told.content) == (200, b"")


async def test_without_the_keys_nobody_decides_and_the_bot_connector_may_ask_again(
    temporal: Temporal, teams: Teams, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = TeamsActions(app_id=APP, tenant_id=TENANT, openid=f"{teams.address}/none")
    async with page_for(temporal, teams=app) as page:
        assert (await send(page, teams, {})).status_code == 503


async def test_the_log_says_where_the_bot_is(
    temporal: Temporal, teams: Teams, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "standfast.web")
    said = {
        "type": "conversationUpdate",
        "channelId": "msteams",
        "serviceUrl": teams.service,
        "conversation": {"id": "19:x@thread.tacv2;messageid=1"},
        "channelData": {"tenant": {"id": TENANT}},
    }
    async with page_for(temporal, teams=teams.app()) as page:
        assert (await send(page, teams, said)).status_code == 200
    assert f"{teams.service}v3/conversations/19:x@thread.tacv2/activities" in caplog.text


@pytest.mark.slow
async def test_a_button_is_not_for_what_a_gate_asks_another_time(temporal: Temporal, teams: Teams) -> None:
    of = line()
    async with (
        temporal.worker(pipelines=[of], webhooks=[teams.webhook()]),
        page_for(temporal, teams=teams.app()) as page,
    ):
        run = await start_line(temporal, of)
        await until(lambda: teams.messages)
        press = teams.press("Approve")
        mark = Mark.read(press["value"]["action"]["data"]["mark"])

        def marked(written: Any) -> dict[str, Any]:
            return {**press, "value": {"action": {**press["value"]["action"], "data": {"mark": written}}}}

        for other in (
            mark._replace(since="2020-01-01T00:00:00+00:00"), mark._replace(digest="0" * 64),
            mark._replace(gate="other"), mark._replace(workflow_id="line/nobody"),
        ):  # fmt: skip
            assert "no longer waiting" in texts(await answered(page, teams, marked(other.write())))
        for written in ("", "none", "W10=", mark.write()[:-8], None, {}):
            assert (
                await answered(page, teams, marked(written)) == "Nothing was decided: This button is not from standfast"
            )
        assert [item["name"] for item in await pending(run)] == ["ok"]
        await run.cancel()


BOT: dict[str, Any] = {"app_id": APP, "app_secret": SECRET, "tenant_id": TENANT}
PLACE = "https://smba.trafficmanager.net/teams/v3/conversations/19:x@thread.tacv2/activities"


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: TeamsButtons(**BOT | {"app_id": "bot"}), "teams_buttons.app_id must be an id"),
        (lambda: TeamsButtons(**BOT | {"tenant_id": ""}), "teams_buttons.tenant_id must be an id"),
        (lambda: TeamsButtons(**BOT | {"app_secret": "a\n"}), "must be the value of a client secret"),
        (lambda: TeamsButtons(**BOT, login="http://login.example"), "must be an https address"),
        (lambda: Webhook(url=PLACE, teams_buttons=TeamsButtons(**BOT)), 'needs format="teams"'),
        (lambda: Webhook(url=PLACE, format="teams"), "a bot's conversation"),
        (lambda: Webhook(url="https://x/", format="teams", teams_buttons=TeamsButtons(**BOT)), "a bot's conversation"),
        (lambda: TeamsActions(app_id="x", tenant_id=TENANT), "teams.app_id must be an id"),
        (lambda: TeamsActions(app_id=APP, tenant_id=TENANT, openid="http://x.example/"), "must be an https address"),
        (lambda: Person(name="ada", teams=OTHER), "teams must be the ids of a directory and a user"),
        (
            lambda: Access(people=[Person(name=name, teams=f"{OTHER}/{OTHER}") for name in ("ada", "bob")]),
            "two have the same teams",
        ),
    ],
)
def test_what_could_not_be_used_with_teams_is_refused(make: Callable[[], Any], rule: str) -> None:
    with pytest.raises(DefinitionError, match=rule):
        make()


def test_the_secret_of_the_bot_is_not_shown() -> None:
    assert SECRET not in repr(TeamsButtons(**BOT))
