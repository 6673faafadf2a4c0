"""The page: what people see and do on it, who they are, and what strangers and other sites cannot do."""

import asyncio
import html
import os
import re
import string
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

import httpx
import pytest
from temporalio import workflow
from temporalio.worker import Worker

from holdfast import Agent, Approval, DefinitionError, Loop, ModelError, RetryPolicy, pipeline, tool
from holdfast.temporal import start_pipeline
from holdfast.testing import ScriptedModel
from holdfast.web import Access, Person, create_app
from holdfast.web.access import COOKIE
from integration.pages import served
from integration.questions import ask_user
from integration.temporal_runs import Temporal, pending, result, until
from integration.transcripts import asks_for, call

HOST = "127.0.0.1"
XSS = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
TOKENS = {name: f"{name}-token-that-is-long-enough" for name in ("vera", "ada", "olga")}
PEOPLE = [
    Person(name="vera", role="viewer", token=TOKENS["vera"]),
    Person(name="ada", role="approver", token=TOKENS["ada"]),
    Person(name="olga", role="operator", token=TOKENS["olga"]),
]
BOB = Person(name="bob", role="operator", token="bob-token-that-is-long-enough")
LOCAL = Access(local=Person(name="ada", role="operator"))


@tool(approval=Approval(message="Charge the customer?", approvers=["ada"]))
async def charge(amount: int) -> str:
    return f"charged {amount}"


@tool(safe_to_retry=True)
async def count() -> int:
    return 1


CHARGES = asks_for(call("charge", "c1", amount=5), tokens=1_200)


@asynccontextmanager
async def browser(temporal: Temporal, access: Access = LOCAL, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(temporal.client, access=access, store=temporal.store, **options)
    transport = httpx.ASGITransport(app=app, client=(HOST, 4711))
    headers = {"Accept": "text/html"}  # as a browser asks for pages
    ours = patch(
        "holdfast.web.access._user_of", return_value=os.getuid()
    )  # there is no connection that could be looked at
    with ours:
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", headers=headers) as client:
            yield client


def fields(page: str, action: str) -> dict[str, str]:
    """Return the hidden fields of a form, as a browser sends them."""
    form = page.split(f'action="{action}"')[1].split("</form>")[0]
    found = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form)
    return {name: html.unescape(value) for name, value in found}


async def send(client: httpx.AsyncClient, page: str, run: str, act: str, **typed: str) -> httpx.Response:
    """Fill in the form of a page, and send it."""
    action = f"/runs/{run}/{act}"
    shown = (await client.get(page)).text
    return await client.post(action, data={**fields(shown, action), **typed}, follow_redirects=True)


# --- what people do ---


async def test_a_call_is_approved_with_what_was_edited(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(agent, llm=ScriptedModel([CHARGES, "done"])), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        await until(lambda: shows(client, "/", run.id))
        page = await send(client, "/", run.id, "decide", decision="approve", edit='{"amount": 7}', comment="less")
        assert page.status_code == 200
        assert "Approved." in page.text
        await result(run)
        shown = (await client.get(f"/runs/{run.id}")).text
    assert "charged 7" in (await temporal.messages())[2].content
    assert "approve, edited" in shown  # the audit trail
    assert "less" in shown


async def test_what_nobody_has_edited_is_approved_as_it_is(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(agent, llm=ScriptedModel([CHARGES, "done"])), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        await send(client, f"/runs/{run.id}", run.id, "decide", decision="approve", edit='{ "amount":5 }')
        await result(run)
    assert (await temporal.messages())[2].content == "charged 5"


async def test_a_call_is_rejected(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(agent, llm=ScriptedModel([CHARGES, "done"])), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        typed = {"decision": "reject", "comment": "too much", "edit": "{oops"}
        await send(client, f"/runs/{run.id}", run.id, "decide", **typed)
        await result(run)
    assert "rejected by ada: too much" in (await temporal.messages())[2].content


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ({"decision": "approve", "edit": "{oops"}, "Arguments: not valid JSON"),
        ({"decision": "approve", "digest": "another"}, "shows something else now"),
        ({"decision": "perhaps"}, "Decision must be approve or reject"),
        ({"decision": "approve", "gate": "c9"}, "no gate c9 is open"),
        ({"decision": "approve", "edit": '{"amount": "x"}'}, "amount"),
        ({"decision": "approve", "edit": " "}, "Arguments: not valid JSON"),
        ({"decision": "approve", "edit": "null"}, "Arguments: a JSON null instead of an object"),
        ({"decision": "approve", "edit": '{"amount": 5, "amount": 5000}'}, "an object has a key twice"),
        ({"decision": "approve", "edit": "[" * 100_000}, "Arguments: not valid JSON"),
        ({"decision": "approve", "edit": '{"amount": "\\ud800"}'}, "Arguments: "),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_a_decision_that_does_not_count_says_why(temporal: Temporal, typed: dict[str, str], says: str) -> None:
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(agent, llm=ScriptedModel([CHARGES, "done"])), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        page = await send(client, f"/runs/{run.id}", run.id, "decide", **typed)
        assert page.status_code == 409
        assert says in html.unescape(page.text)
        assert len(await pending(run)) == 1


@pytest.mark.parametrize("edit", ["true", "1.0"])
async def test_an_edit_that_python_takes_for_the_same_is_an_edit(temporal: Temporal, edit: str) -> None:
    """`1 == True == 1.0`; a tool may make a difference."""

    @tool(approval=Approval(message="Really?"))
    async def press(value: bool | int | float) -> str:
        return f"pressed {value}"

    agent = Agent("clerk", tools=[press])
    model = ScriptedModel([asks_for(call("press", "c1", value=1)), "done"])
    async with temporal.worker(agent, llm=model), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        page = f"/runs/{run.id}"
        assert (await send(client, page, run.id, "decide", decision="approve", edit=f'{{"value": {edit}}}')).is_success
        await result(run)
    assert 'pressed 1"' not in (await temporal.messages())[2].content


async def test_what_is_said_is_seen_until_it_is_heard(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(agent, llm=ScriptedModel([CHARGES, "done"])), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        page = await send(client, f"/runs/{run.id}", run.id, "message", text="Wait, <b>not</b> that one")
        assert "not heard yet" in page.text
        assert "Wait, &lt;b&gt;not&lt;/b&gt; that one" in page.text
        await temporal.people.decide(run.id, "c1", "approve", by="ada")
        await result(run)
        page = await client.get(f"/runs/{run.id}")
        assert "not heard yet" not in page.text


async def test_what_is_refused_is_not_lost(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(agent, llm=ScriptedModel([CHARGES, "done"])), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        typed = {"decision": "approve", "edit": '{"amount": 6,}', "comment": "one\r\ntwo 👨\u200d👩"}
        page = await send(client, f"/runs/{run.id}", run.id, "decide", **typed)
        assert '{"amount": 6,}' in html.unescape(page.text)
        assert "one\ntwo 👨\u200d👩" in page.text
        await run.cancel()


async def test_what_is_typed_stays_when_no_worker_answers(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent("clerk", tools=[charge])
    async with browser(temporal) as client:
        async with temporal.worker(agent, llm=ScriptedModel([CHARGES])):
            run = await temporal.start(agent)
            await pending(run)
            form = fields((await client.get(f"/runs/{run.id}")).text, f"/runs/{run.id}/decide")
        monkeypatch.setattr("holdfast.temporal.client._CONFIRMED", 0.5)
        typed = {"decision": "approve", "comment": "as we said"}
        page = await client.post(f"/runs/{run.id}/decide", data=form | typed)
        assert (page.status_code, "as we said" in page.text, "may count" in page.text) == (504, True, True)
        await run.terminate()


async def test_nothing_that_is_approved_is_hidden(temporal: Temporal) -> None:
    @tool(approval=Approval(message="Send?"))
    async def mail(text: str) -> str:
        return text

    agent = Agent("clerk", tools=[mail])
    hidden = "a\U000e0041\u3164\u00ad\u061c\u2028b"
    model = ScriptedModel([asks_for(call("mail", "c1", text=hidden)), "done"])
    async with temporal.worker(agent, llm=model), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        page = html.unescape((await client.get(f"/runs/{run.id}")).text)
        assert r"a\udb40\udc41\u3164\u00ad\u061c\u2028b" in page
        shown = await send(client, f"/runs/{run.id}", run.id, "decide", decision="approve")
        assert shown.is_success
        await result(run)
    assert hidden in (await temporal.messages())[2].content


async def test_a_question_is_answered_and_the_run_told_something(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask_user])
    model = ScriptedModel([asks_for(call("ask_user", "c1", question="Which?")), "done"])
    async with temporal.worker(agent, llm=model), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        assert "Said." in (await send(client, f"/runs/{run.id}", run.id, "message", text="hurry")).text
        assert "Answered." in (await send(client, f"/runs/{run.id}", run.id, "answer", text="savings")).text
        await result(run)
    assert [message.content for message in await temporal.messages()][2:4] == ["savings", "hurry"]


async def test_a_paused_run_goes_on_and_another_is_cancelled(temporal: Temporal) -> None:
    soon = Loop(model_retry=RetryPolicy(initial_interval=0.01, maximum_attempts=1))
    agent = Agent("clerk", loop=soon)
    model = ScriptedModel([ModelError("down", transient=True), "done", ModelError("down", transient=True)])
    async with temporal.worker(agent, llm=model), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        await send(client, f"/runs/{run.id}", run.id, "resume", action="retry")
        assert (await result(run))["response"] == "done"
        assert "done" in (await client.get(f"/runs/{run.id}")).text
        other = await temporal.start(agent, session="other")
        await pending(other)
        await send(client, f"/runs/{other.id}", other.id, "cancel")
        await until(lambda: shows(client, f"/runs/{other.id}", 'class="status cancelled"'))
        late = await client.post(f"/runs/{other.id}/cancel", data={"csrf": await _csrf(client)})
        assert (late.status_code, "has ended already" in late.text) == (409, True)


async def test_a_run_shows_how_far_it_is_what_was_said_and_what_it_used(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[charge])
    line = pipeline("line").step("first", run=count, input=lambda ctx: {}).step("say", agent=agent).build()
    async with (
        temporal.worker(agent, pipelines=[line], llm=ScriptedModel([CHARGES, "done"])),
        browser(temporal, temporal_ui="http://ui.example") as client,
    ):
        run = await start_pipeline(temporal.client, "line", task_queue=temporal.name, run_key=temporal.session())
        child = f"{run.id}/say"
        await until(lambda: shows(client, f"/runs/{child}", "Charge the customer?"))
        shown = (await client.get(f"/runs/{child}")).text
        assert "1,200 tokens in, 0 out" in shown
        assert "Turn</dt><dd>1 of at most 20" in shown
        assert f"http://ui.example/namespaces/default/workflows/{child.replace('/', '%2F')}/" in shown
        listed = (await client.get("/runs", params={"type": "clerk", "session": child.replace("/", ".")})).text
        assert "No runs." in listed or child in listed
        await run.cancel()


async def test_the_inbox_shows_what_waits_for_a_group_of_approvers(temporal: Temporal) -> None:
    editors = Approval(message="Publish?", approvers=["editors"], groups={"editors": ["ada"]})
    line = pipeline("line").step("ok", approval=editors).build()
    async with temporal.worker(pipelines=[line]), browser(temporal) as client:
        run = await start_pipeline(temporal.client, "line", task_queue=temporal.name, run_key=temporal.session())
        await until(lambda: shows(client, "/?group=editors", run.id))
        others = (await client.get("/?group=lawyers' OR 'a' = 'a")).text
        assert (run.id in others, "Nothing waits for you in this group." in others) == (False, True)
        await run.cancel()


async def test_forms_are_for_those_who_may_and_the_others_see_what_waits(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[charge])
    async with (
        temporal.worker(agent, llm=ScriptedModel([CHARGES])),
        browser(temporal, Access(people=[*PEOPLE, BOB])) as client,
    ):
        run = await temporal.start(agent)
        await pending(run)
        for name, token, may in (
            ("ada", TOKENS["ada"], True),
            ("vera", TOKENS["vera"], False),
            ("bob", BOB.token, False),
        ):
            client.headers["Authorization"] = f"Bearer {token}"
            for page in (f"/runs/{run.id}", "/"):
                shown = (await client.get(page)).text
                card = shown.split(f'aria-labelledby="{run.id}-c1-title"')[1].split("</article>")[0]
                assert ("Charge the customer?" in card, "&#34;amount&#34;: 5" in card) == (True, True)
                assert ("<form" in card, f"You are {name}" in card) == (may, not may)
            before, _, _ = (await client.get("/")).text.partition(card)
            assert ("Waits for others" in before) == (not may)
        await run.cancel()


async def test_a_run_that_could_not_say_how_it_ended_is_found_by_that(temporal: Temporal) -> None:
    async with browser(temporal) as client:
        run = await temporal.start("clerk")
        await run.terminate()
        await until(lambda: shows(client, "/runs?status=terminated", run.id))


async def shows(client: httpx.AsyncClient, page: str, text: str) -> bool:
    return text in (await client.get(page)).text


async def _csrf(client: httpx.AsyncClient) -> str:
    return re.findall(r'name="csrf" value="(\w+)"', (await client.get("/login")).text)[0]


async def test_what_models_and_strangers_wrote_is_text_on_the_page(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask_user])
    model = ScriptedModel([asks_for(call("ask_user", "c1", question=XSS), text=XSS), XSS])
    async with temporal.worker(agent, llm=model), browser(temporal) as client:
        run = await temporal.start(agent, XSS)
        await pending(run)
        pages = [(await client.get(page)).text for page in ("/", f"/runs/{run.id}", f"/runs/{run.id}?said={XSS}")]
        pages.append((await client.get("/runs", params={"status": XSS})).text)
        pages.append((await client.get("/login", params={"to": XSS})).text)
        await send(client, f"/runs/{run.id}", run.id, "answer", text=XSS)
        await result(run)
        pages.append((await client.get(f"/runs/{run.id}")).text)
    for page in pages:
        assert "<script>alert" not in page
        assert "<img src=x" not in page
    assert "&lt;script&gt;" in pages[-1]


async def test_nothing_that_is_approved_reads_otherwise_than_it_is(temporal: Temporal) -> None:
    """Marks of direction are shown, and survive the form: what was not edited is not changed."""
    sent: list[str] = []

    @tool(approval=Approval(message="Pay \u202eevil\u202c?"))
    async def pay(to: str) -> str:
        sent.append(to)
        return "paid"

    hidden = "ada\u202e\u200bnosilla \x1b[31m"
    model = ScriptedModel([asks_for(call("pay", "c1", to=hidden)), "done"])
    async with temporal.worker(agent := Agent("clerk", tools=[pay]), llm=model), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        page = (await client.get(f"/runs/{run.id}")).text
        assert not re.search("[\u200b\u202e\x1b]", page)
        assert "ada\\u202e\\u200bnosilla \\u001b[31m" in html.unescape(page)
        shown = html.unescape(re.findall(r"<textarea[^>]*name=.edit.[^>]*>(.*?)</textarea>", page, re.DOTALL)[0])
        await send(client, f"/runs/{run.id}", run.id, "decide", decision="approve", edit=shown)
        await result(run)
    assert sent == [hidden]
    assert (await temporal.messages())[2].content == "paid"  # without a word of an edit


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
        signed = await client.post("/login", data={"csrf": await _csrf(client), "token": people[0].token})
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
        await client.post("/login", data={"csrf": await _csrf(client), "token": old.token})
        cookie = client.cookies[COOKIE]
    async with browser(temporal, Access(people=[new], secret=secret)) as client:
        client.cookies.set(COOKIE, cookie)
        assert (await client.get("/runs")).status_code == 303


async def test_a_name_that_stands_beside_the_proxys_own_is_not_believed(temporal: Temporal) -> None:
    async with browser(temporal, Access(people=PEOPLE, proxy_header="X-Forwarded-User")) as client:
        both = [("X-Forwarded-User", "olga"), ("X-Forwarded-User", "vera")]
        assert "you are olga, vera, who is not" in (await client.get("/runs", headers=both)).text


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


async def test_the_runs_of_others_and_odd_filters_are_no_trouble(temporal: Temporal) -> None:
    async with browser(temporal) as client:
        async with Worker(temporal.client, task_queue=temporal.name, workflows=[Foreign]):
            run = await temporal.client.start_workflow("Foreign", id=temporal.session(), task_queue=temporal.name)
            assert (await client.get(f"/runs/{run.id}")).status_code == 200
            await run.signal("stop")
            await run.result()
            assert (await client.get(f"/runs/{run.id}")).status_code == 200
        for odd in ("/runs?status=%00", "/?group=%00"):
            assert (await client.get(odd)).status_code == 409


@workflow.defn(sandboxed=False)
class Foreign:
    """A workflow that says of itself what it likes."""

    def __init__(self) -> None:
        self._stopped = False

    @workflow.run
    async def run(self) -> Any:
        await workflow.wait_condition(lambda: self._stopped)
        return {"usage": 5, "status": ["odd"]}

    @workflow.query
    def status(self) -> Any:
        return {"waiting": [{"kind": "approval"}], "usage": 5}

    @workflow.signal
    def stop(self) -> None:
        self._stopped = True


async def test_people_sign_in_with_their_token_and_out_again(temporal: Temporal) -> None:
    async with browser(temporal, Access(people=PEOPLE, https=False)) as client:
        form = {"csrf": await _csrf(client), "token": TOKENS["vera"], "to": "/runs"}
        assert (await client.post("/login", data={**form, "token": "wrong"})).status_code == 401
        answer = await client.post("/login", data=form)
        assert (answer.status_code, answer.headers["Location"]) == (303, "/runs")
        cookie = answer.headers["Set-Cookie"]
        assert all(word in cookie for word in ("HttpOnly", "SameSite=lax", "Max-Age=43200")), cookie
        assert "vera · viewer" in (await client.get("/runs")).text
        client.cookies.set(COOKIE, client.cookies[COOKIE][:-2] + "xx")
        assert (await client.get("/runs")).status_code == 303
        client.cookies.clear()
        form["csrf"] = await _csrf(client)
        await client.post("/login", data=form)
        csrf = re.findall(r'name="csrf" value="(\w+)"', (await client.get("/runs")).text)[0]
        assert (await client.post("/logout", data={"csrf": csrf})).status_code == 303
        assert (await client.get("/runs")).status_code == 303


@pytest.mark.parametrize(
    "to", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "\n/"]
)
async def test_signing_in_leads_nowhere_else(temporal: Temporal, to: str) -> None:
    async with browser(temporal, Access(people=PEOPLE)) as client:
        form = {"csrf": await _csrf(client), "token": TOKENS["vera"], "to": to}
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
                assert (answer.status_code, "nobody" in answer.text) == (409, True)


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
    access = Access(people=PEOPLE, proxy_header="X-Forwarded-User")
    async with browser(temporal, access) as client:
        assert "vera · viewer" in (await client.get("/runs", headers=said)).text
        stranger = await client.get("/runs", headers={"X-Forwarded-User": "mallory"})
        assert (stranger.status_code, "you are mallory, who is not among those" in stranger.text) == (403, True)
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
        data = {"csrf": await _csrf(client), "text": "x"}
        answer = await client.post("/runs/clerk/s/message", data=data, headers=headers)
        assert (answer.status_code, "not of your session" in answer.text) == (403, True)
        ours = await client.post("/runs/clerk/s/message", data=data, headers={"Sec-Fetch-Site": "same-origin",
                                                                              "Origin": f"http://{HOST}"})  # fmt: skip
        assert ours.status_code == 409  # there is no such run


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
            await client.post("/login", data={"csrf": await _csrf(client), "token": TOKENS["olga"], "to": "/"})
            tokens.append(re.findall(r'name="csrf" value="(\w+)"', (await client.get("/runs")).text)[0])
        assert tokens[0] != tokens[1]
        assert (await two.post("/runs/a/b/message", data={"csrf": tokens[0], "text": "x"})).status_code == 403


async def test_a_name_that_a_stranger_may_have_is_refused(temporal: Temporal) -> None:
    async with browser(temporal) as client:
        assert (await client.get("/", headers={"Host": "evil.example"})).status_code == 400
    async with browser(temporal, Access(people=PEOPLE), host="0.0.0.0", names=["runs.example.com"]) as client:
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
    with pytest.raises(DefinitionError, match="anybody could decide: say who may"):
        create_app(temporal.client, access=LOCAL, host="0.0.0.0")
    with pytest.raises(DefinitionError, match=r"would listen at 127.0.0.1, runs"):
        create_app(temporal.client, access=LOCAL, names=["runs.example.com"])
    app = create_app(temporal.client, access=LOCAL)
    transport = httpx.ASGITransport(app=app, client=("10.0.0.7", 4711))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
        assert (await client.get("/")).status_code == 401
    async with browser(temporal) as client:  # on this machine, but passed on for somebody else
        assert (await client.get("/", headers={"X-Forwarded-For": "203.0.113.9"})).status_code == 303


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: Person(name=""), "person.name must be text"),
        (lambda: Person(name="a", role="boss"), "person a: role must be"),  # type: ignore[arg-type]
        (lambda: Person(name="a", token="short"), "a token has at least 20 characters"),
        (lambda: Access(people=[PEOPLE[0], PEOPLE[0]]), "two have one name"),
        (lambda: Access(people=[PEOPLE[0], Person(name="x", token=PEOPLE[0].token)]), "two have one token"),
        (lambda: Access(people=PEOPLE, local=PEOPLE[0]), "everybody signs in"),
        (lambda: Access(secret="short"), "access.secret must have"),
        (lambda: Access(link_secret="short"), "access.link_secret must have"),
    ],
)
def test_rules_that_do_not_go_together_are_refused(make: Any, rule: str) -> None:
    with pytest.raises(DefinitionError, match=rule):
        make()
