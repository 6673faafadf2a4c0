"""The page: its contents and actions."""

import html
import re
from dataclasses import replace
from typing import Any

import pytest
from support.pages import (
    BOB,
    CHARGES,
    PEOPLE,
    TOKENS,
    XSS,
    browser,
    charge,
    csrf_of,
    fields,
    send,
    shows,
)
from support.questions import ask_user
from support.temporal_runs import Temporal, ask_models_once, pending, result, until
from support.transcripts import asks_for, call
from temporalio import workflow
from temporalio.client import WorkflowFailureError
from temporalio.worker import Worker

from standfast import Agent, Approval, ModelError, pipeline, tool
from standfast.temporal import start_pipeline
from standfast.temporal.client import clients
from standfast.testing import ScriptedModel
from standfast.web import Access

# --- what people do ---


@tool(safe_to_retry=True)
async def count() -> int:
    return 1


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


async def test_what_nobody_has_edited_is_approved_unchanged(temporal: Temporal) -> None:
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
        ({"decision": "approve", "digest": "another"}, "has changed"),
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
        assert "not read yet" in page.text
        assert "Wait, &lt;b&gt;not&lt;/b&gt; that one" in page.text
        await temporal.people.decide(run.id, "c1", "approve", by="ada")
        await result(run)
        page = await client.get(f"/runs/{run.id}")
        assert "not read yet" not in page.text


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_what_a_run_has_not_heard_when_it_ended_is_seen_until_the_next_one_hears_it(
    temporal: Temporal, how: str
) -> None:
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(agent, llm=ScriptedModel([CHARGES, "done", "done"])), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        await temporal.people.message(run.id, "Wait, <b>not</b> that one")
        await (run.cancel() if how == "cancel" else run.terminate())
        with pytest.raises(WorkflowFailureError):
            await result(run)
        page = await client.get(f"/runs/{run.id}")
        assert "not read yet" in page.text
        assert "Wait, &lt;b&gt;not&lt;/b&gt; that one" in page.text
        again = await temporal.start(agent, None)
        if how == "terminate":  # it still waits for the decision
            await pending(again)
            await temporal.people.decide(again.id, "c1", "reject", by="ada")
        await result(again)
        page = await client.get(f"/runs/{again.id}")
        assert "not read yet" not in page.text
        assert "Wait, &lt;b&gt;not&lt;/b&gt; that one" in page.text


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
        sent = clients.send
        monkeypatch.setattr(
            clients, "send", lambda client, run, signal, *more: sent(client, run, replace(signal, seconds=0.5), *more)
        )
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
        assert "Message sent." in (await send(client, f"/runs/{run.id}", run.id, "message", text="hurry")).text
        assert "Answered." in (await send(client, f"/runs/{run.id}", run.id, "answer", text="savings")).text
        await result(run)
    assert [message.content for message in await temporal.messages()][2:4] == ["savings", "hurry"]


async def test_a_paused_run_continues_and_another_is_cancelled(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_models_once(monkeypatch)
    agent = Agent("clerk")
    model = ScriptedModel(
        [
            ModelError("down", transient=True),
            "done",
            ModelError("down", transient=True),
        ]
    )
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
        late = await client.post(f"/runs/{other.id}/cancel", data={"csrf": await csrf_of(client)})
        assert (late.status_code, "has already ended" in late.text) == (409, True)


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
        assert (run.id in others, "Nothing is waiting for you in this group." in others) == (False, True)
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
            for page in (f"/runs/{run.id}", f"/items/{run.id}?name=c1", *(["/"] if may else [])):
                shown = (await client.get(page)).text
                card = shown.split(f'aria-labelledby="{run.id}-c1-title"')[1].split("</article>")[0]
                assert ("Charge the customer?" in card, "&#34;amount&#34;: 5" in card) == (True, True)
                assert ("<form" in card, f"You are {name}" in card) == (may, not may)
            inbox = (await client.get("/")).text
            line = f'href="/items/{run.id}?name=c1">Charge the customer?</a>'
            before, at, _ = inbox.partition(f'aria-labelledby="{run.id}-c1-title"' if may else line)
            assert at
            assert ("Waiting for others" in before) == (not may)
        await run.cancel()


async def test_a_run_that_could_not_say_how_it_ended_is_found_by_that(temporal: Temporal) -> None:
    async with browser(temporal) as client:
        run = await temporal.start("clerk")
        await run.terminate()
        await until(lambda: shows(client, "/runs?status=terminated", run.id))


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


async def test_the_runs_of_others_and_odd_filters_are_no_trouble(temporal: Temporal) -> None:
    async with browser(temporal) as client:
        async with Worker(temporal.client, task_queue=temporal.name, workflows=[Foreign]):
            run = await temporal.client.start_workflow("Foreign", id=temporal.session(), task_queue=temporal.name)
            assert [(await client.get(f"{below}/runs/{run.id}")).status_code for below in ("", "/api/v1")] == [404, 404]
            await run.signal("stop")
            await run.result()
            assert (await client.get(f"/runs/{run.id}")).status_code == 404
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
