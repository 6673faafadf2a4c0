"""The page: identities and permissions, and the limits of strangers and other sites."""

import asyncio
import os
import re
import string
import subprocess
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from support.pages import (
    CHARGES,
    HOST,
    LOCAL,
    PEOPLE,
    TOKENS,
    browser,
    charge,
    csrf_of,
    served,
)
from support.temporal_runs import Temporal, pending, result

from standfast import Agent, DefinitionError
from standfast.testing import ScriptedModel
from standfast.web import Access, Person, create_app
from standfast.web.identity.people import COOKIE

# --- who may ---


async def test_strangers_see_nothing(temporal: Temporal) -> None:
    async with browser(temporal, Access(people=PEOPLE)) as client:
        for page in ("/", "/runs", "/runs/clerk/s"):
            answer = await client.get(page)
            assert (answer.status_code, answer.headers["Location"]) == (303, f"/login?to={quote(page, safe='')}")
        sought = await client.get("/runs?session=a%26b")
        assert sought.headers["Location"] == "/login?to=%2Fruns%3Fsession%3Da%2526b"  # all of it is there afterwards
        assert (await client.get("/changes?of=/", headers={"Accept": "text/event-stream"})).status_code == 401
        assert (await client.post("/runs/clerk/s/cancel")).headers["Location"] == "/login?to=%2F"
        assert (await client.post("/runs/clerk/s/cancel", headers={"Accept": "*/*"})).status_code == 401
        for token in ("", "wrong", TOKENS["ada"][:-1]):
            wrong = await client.get("/", headers={"Authorization": f"Bearer {token}"})
            assert (wrong.status_code, wrong.headers["WWW-Authenticate"]) == (401, "Bearer")


async def test_what_is_said_on_the_page_is_ours(temporal: Temporal) -> None:
    async with browser(temporal, Access(people=PEOPLE)) as client:
        assert "evil.example" not in (await client.get("/login?said=Send+your+token+to+evil.example")).text


async def test_people_of_any_name_sign_in_and_are_out_when_they_say_so(temporal: Temporal) -> None:
    people = [Person(name="李雷", role="operator", token="a token of Li Lei's own")]
    async with browser(temporal, Access(people=people)) as client:
        signed = await client.post("/login", data={"csrf": await csrf_of(client), "token": people[0].token})
        assert signed.status_code == 303
        assert "李雷 · operator" in (await client.get("/runs")).text
        cookie = client.cookies[COOKIE]
        csrf = re.findall(r'name="csrf" value="(\w+)"', (await client.get("/runs")).text)[0]
        await client.post("/logout", data={"csrf": csrf})
        letters = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
        for kept in (cookie, cookie[:-1] + letters[letters.index(cookie[-1]) ^ 1]):  # two ways to write one signature
            client.cookies.clear()
            client.cookies.set(COOKIE, kept)
            assert (await client.get("/runs")).status_code == 303


async def test_a_session_ends_with_the_token_that_began_it(temporal: Temporal) -> None:
    secret = "of the page, over its restarts"
    old, new = (Person(name="ada", token=f"the {age} token of ada's") for age in ("old", "new"))
    async with browser(temporal, Access(people=[old], secret=secret)) as client:
        await client.post("/login", data={"csrf": await csrf_of(client), "token": old.token})
        cookie = client.cookies[COOKIE]
    async with browser(temporal, Access(people=[new], secret=secret)) as client:
        client.cookies.set(COOKIE, cookie)
        assert (await client.get("/runs")).status_code == 303


async def test_a_name_that_stands_beside_the_proxys_own_is_not_believed(temporal: Temporal) -> None:
    access = Access(people=PEOPLE, proxy_header="X-Forwarded-User", proxies=[HOST])
    async with browser(temporal, access) as client:
        both = [("X-Forwarded-User", "olga"), ("X-Forwarded-User", "vera")]
        assert "identifies you as olga, vera, who may not" in (await client.get("/runs", headers=both)).text


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs another user of this machine")
async def test_another_user_of_this_machine_is_a_stranger(temporal: Temporal) -> None:
    asks = f"GET /runs HTTP/1.0\\r\\nHost: {HOST}\\r\\n\\r\\n"
    async with served(create_app(temporal.client, access=LOCAL)) as address:
        shell = f"exec 3<>/dev/tcp/{HOST}/{address.rpartition(':')[2]}; printf '{asks}' >&3; head -1 <&3"
        run = partial(subprocess.run, ["bash", "-c", shell], capture_output=True, text=True, timeout=30)
        answers = [await asyncio.to_thread(run, user=user) for user in (65_534, 0)]
        assert [answer.stdout.split()[1] for answer in answers] == ["401", "200"]
        reader, writer = await asyncio.open_connection(HOST, int(address.rpartition(":")[2]))
        writer.write(asks.replace("\\r", "\r").replace("\\n", "\n").encode())
        writer.write_eof()  # of such a connection the kernel says less
        assert b" 200 " not in await reader.readline()
        writer.close()


async def test_more_than_people_type_is_refused(temporal: Temporal) -> None:
    async with browser(temporal, Access(people=PEOPLE)) as client:
        assert (await client.post("/login", data={"token": "x" * 2_000_000})).status_code == 413


async def test_people_sign_in_with_their_token_and_out_again(temporal: Temporal) -> None:
    async with browser(temporal, Access(people=PEOPLE, https=False)) as client:
        form = {"csrf": await csrf_of(client), "token": TOKENS["vera"], "to": "/runs"}
        assert (await client.post("/login", data={**form, "token": "wrong"})).status_code == 401
        answer = await client.post("/login", data=form)
        assert (answer.status_code, answer.headers["Location"]) == (303, "/runs")
        cookie = answer.headers["Set-Cookie"]
        assert all(word in cookie for word in ("HttpOnly", "SameSite=lax", "Max-Age=43200")), cookie
        assert "vera · viewer" in (await client.get("/runs")).text
        client.cookies.set(COOKIE, client.cookies[COOKIE][:-2] + "xx")
        assert (await client.get("/runs")).status_code == 303
        client.cookies.clear()
        form["csrf"] = await csrf_of(client)
        await client.post("/login", data=form)
        csrf = re.findall(r'name="csrf" value="(\w+)"', (await client.get("/runs")).text)[0]
        assert (await client.post("/logout", data={"csrf": csrf})).status_code == 303
        assert (await client.get("/runs")).status_code == 303


@pytest.mark.parametrize(
    "to", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "\n/"]
)
async def test_signing_in_leads_nowhere_else(temporal: Temporal, to: str) -> None:
    async with browser(temporal, Access(people=PEOPLE)) as client:
        form = {"csrf": await csrf_of(client), "token": TOKENS["vera"], "to": to}
        assert (await client.post("/login", data=form)).headers["Location"] == "/"


ACTS = {"decide": "approver", "answer": "approver", "resume": "operator", "resolve": "operator", "message": "operator",
        "cancel": "operator"}  # fmt: skip


@pytest.mark.parametrize("act", ACTS)
async def test_each_act_needs_its_role(temporal: Temporal, act: str) -> None:
    async with browser(temporal, Access(people=PEOPLE)) as client:
        for name, role in (("vera", "viewer"), ("ada", "approver")):
            headers = {"Authorization": f"Bearer {TOKENS[name]}"}
            typed = {"text": "x", "gate": "g", "decision": "approve", "digest": "d", "action": "retry", "call": "c"}
            answer = await client.post(f"/runs/clerk/nobody/{act}", headers=headers, data=typed)
            is_allowed = role == ACTS[act]
            assert (answer.status_code != 403) is is_allowed, answer.text
            if is_allowed:
                assert (answer.status_code, "nobody" in answer.text) == (404, True)


async def test_a_program_decides_with_its_token_as_who_it_is(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[charge])
    access = Access(people=PEOPLE)
    async with temporal.worker(agent, llm=ScriptedModel([CHARGES, "done"])), browser(temporal, access) as client:
        run = await temporal.start(agent)
        (item,) = await pending(run)
        data = {"gate": "c1", "decision": "approve", "digest": item["digest"], "by": "ada"}
        url = f"/runs/{run.id}/decide"
        refused = await client.post(url, data=data, headers={"Authorization": f"Bearer {TOKENS['olga']}"})
        assert (refused.status_code, "olga may not decide it" in refused.text) == (409, True)  # whatever the form says
        done = await client.post(url, data=data, headers={"Authorization": f"Bearer {TOKENS['ada']}"})
        assert done.status_code == 303
        assert (await result(run))["status"] == "complete"


async def test_a_proxy_says_who_it_is_and_nobody_else(temporal: Temporal) -> None:
    said = {"X-Forwarded-User": "vera"}
    access = Access(people=PEOPLE, proxy_header="X-Forwarded-User", proxies=[HOST])
    async with browser(temporal, access) as client:
        assert "vera · viewer" in (await client.get("/runs", headers=said)).text
        stranger = await client.get("/runs", headers={"X-Forwarded-User": "mallory"})
        assert (stranger.status_code, "identifies you as mallory, who may not" in stranger.text) == (403, True)
        assert (await client.get("/runs")).status_code == 403
    elsewhere = Access(people=PEOPLE, proxy_header="X-Forwarded-User", proxies=["10.0.0.1"])
    async with browser(temporal, elsewhere) as client:
        assert (await client.get("/runs", headers=said)).status_code == 303
    async with browser(temporal, Access(people=PEOPLE)) as client:
        assert (await client.get("/runs", headers=said)).status_code == 303


# --- other sites ---


FORGED: list[dict[str, str]] = [
    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.example"},
    {"Origin": "null"},
]  # fmt: skip


@pytest.mark.parametrize("headers", FORGED, ids=str)
async def test_what_another_site_sends_is_refused(temporal: Temporal, headers: dict[str, str]) -> None:
    async with browser(temporal) as client:
        data = {"csrf": await csrf_of(client), "text": "x"}
        answer = await client.post("/runs/clerk/s/message", data=data, headers=headers)
        assert (answer.status_code, "does not belong to your session" in answer.text) == (403, True)
        ours = await client.post("/runs/clerk/s/message", data=data, headers={"Sec-Fetch-Site": "same-origin",
                                                                              "Origin": f"http://{HOST}"})  # fmt: skip
        assert ours.status_code == 404  # an unknown run


@pytest.mark.parametrize("csrf", [None, "", "0" * 64, "ü"])
async def test_a_form_without_the_sessions_token_is_refused(temporal: Temporal, csrf: str | None) -> None:
    async with browser(temporal) as client:
        data = {"text": "x"} | ({} if csrf is None else {"csrf": csrf})
        assert (await client.post("/runs/clerk/s/message", data=data)).status_code == 403


async def test_the_token_of_one_session_is_not_that_of_another(temporal: Temporal) -> None:
    access = Access(people=PEOPLE)
    async with browser(temporal, access) as one, browser(temporal, access) as two:
        tokens = []
        for client in (one, two):
            await client.post("/login", data={"csrf": await csrf_of(client), "token": TOKENS["olga"], "to": "/"})
            tokens.append(re.findall(r'name="csrf" value="(\w+)"', (await client.get("/runs")).text)[0])
        assert tokens[0] != tokens[1]
        assert (await two.post("/runs/a/b/message", data={"csrf": tokens[0], "text": "x"})).status_code == 403


async def test_a_name_that_a_stranger_may_have_is_refused(temporal: Temporal) -> None:
    async with browser(temporal) as client:
        assert (await client.get("/", headers={"Host": "evil.example"})).status_code == 400
    access = Access(people=PEOPLE, https=True)
    async with browser(temporal, access, host="0.0.0.0", names=["runs.example.com"]) as client:
        assert (await client.get("/login", headers={"Host": "runs.example.com"})).status_code == 200
        assert (await client.get("/login", headers={"Host": "evil.example"})).status_code == 400


async def test_every_answer_says_what_a_browser_may_do_with_it(temporal: Temporal) -> None:
    async with browser(temporal) as client:
        for page in ("/", "/runs", "/runs/no/body", "/nowhere", "/login", "/static/page.css", "/static/nothing"):
            headers = (await client.get(page)).headers
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cache-Control"] == "no-store"
        page_ = (await client.get("/")).text
        assert " style=" not in page_
        assert not re.search(r"<script(?![^>]* src=)", page_)
        assert not re.search(r"\son\w+=", page_)


async def test_without_people_it_listens_on_this_machine_alone(temporal: Temporal) -> None:
    with pytest.raises(DefinitionError, match=r"anyone who reaches it could decide. Define who may"):
        create_app(temporal.client, access=LOCAL, host="0.0.0.0")
    with pytest.raises(DefinitionError, match=r"would listen at 127.0.0.1, runs"):
        create_app(temporal.client, access=LOCAL, names=["runs.example.com"])
    app = create_app(temporal.client, access=LOCAL)
    transport = httpx.ASGITransport(app=app, client=("10.0.0.7", 4711))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
        assert (await client.get("/")).status_code == 401
    async with browser(temporal) as client:  # on this machine, but passed on for someone else
        assert (await client.get("/", headers={"X-Forwarded-For": "203.0.113.9"})).status_code == 303


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: Person(name=""), "person.name must be text"),
        (lambda: Person(name="a", role="boss"), "person a: role must be"),  # type: ignore[arg-type]
        (lambda: Person(name="a", token="short"), "a token has at least 20 characters"),
        (lambda: Access(people=[PEOPLE[0], PEOPLE[0]]), "two have the same name"),
        (lambda: Access(people=[PEOPLE[0], Person(name="x", token=PEOPLE[0].token)]), "two have the same token"),
        (lambda: Access(people=PEOPLE, local=PEOPLE[0]), "everyone must sign in"),
        (lambda: Access(secret="short"), "access.secret must have"),
        (lambda: Access(link_secret="short"), "access.link_secret must have"),
    ],
)
def test_rules_that_do_not_go_together_are_refused(make: Any, rule: str) -> None:
    with pytest.raises(DefinitionError, match=rule):
        make()
