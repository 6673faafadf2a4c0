"""Webhooks notify the approvers: signed, retried until delivered, and once."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import ssl
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.doubles import echo
from support.questions import ask_user
from support.slack import Slack
from support.temporal_runs import Temporal, ask_models_once, check_healthy, pending, result, until
from support.transcripts import asks_for, call
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Worker

from integration.temporal.test_temporal_approvals import Release
from standfast import Agent, Approval, DefinitionError, ModelError, StandfastError, pipeline, tool
from standfast.notices.posts import load_untold, request
from standfast.stores import SQLiteStore, sqlite_store
from standfast.temporal import SlackButtons, StandfastPlugin, Webhook, start_pipeline
from standfast.temporal.activities.gates import webhooks
from standfast.temporal.activities.gates.posted_messages import PostedMessages
from standfast.temporal.activities.gates.webhooks import NoticeActivities, bots_of
from standfast.temporal.workflows.run import agent_workflows
from standfast.testing import Fault, ModelServer, Reply, Request, ScriptedModel
from standfast.tls import tls_context
from standfast.web import SlackActions
from standfast.web.chats.slack_api import SlackApi

OK = Reply(b"ok")


@tool(approval=Approval(message="Charge <the> customer & go?", approvers=["ada"], remind_every="1s"))
async def charge(amount: int) -> str:
    return f"charged {amount}"


def clerk(**options: Any) -> Agent:
    return Agent("clerk", tools=[ask_user, charge, echo], **options)


def asked(server: ModelServer) -> list[tuple[str, str]]:
    return [(request.body["data"]["kind"], request.body["data"]["name"]) for request in server.requests]


async def test_people_are_told_of_what_waits_with_all_that_they_decide_on(temporal: Temporal) -> None:
    model = ScriptedModel(
        [asks_for(call("charge", "c1", amount=5)), asks_for(call("ask_user", "c2", question="Which?")), "done"]
    )
    async with ModelServer(lambda request: OK) as server:
        hook = Webhook(url=f"http://{server.address}/hook", link="https://x.example/{workflow_id}?run={run_id}")
        async with temporal.worker(agent := clerk(), llm=model, webhooks=[hook]):
            run = await temporal.start(agent)
            (shown,) = await pending(run)
            await until(lambda: server.requests)
            await temporal.people.decide(run.id, "c1", "approve", by="ada")
            await until(lambda: ("question", "c2") in asked(server))
            await temporal.people.answer(run.id, "this")
            await result(run)
            await check_healthy(run)
    told = server.requests[0].body
    assert server.requests[0].path == "/hook"
    assert (told["type"], told["timestamp"][-1]) == ("run.waiting", "Z")
    assert {name: told["data"][name] for name in shown} == shown
    assert (told["data"]["workflow_id"], told["data"]["arguments"], told["data"]["tool"]) == (
        run.id,
        {"amount": 5},
        "charge",
    )
    assert told["data"]["url"].startswith(f"https://x.example/clerk%2F{temporal.session()}?run=")
    ids = [request.headers["webhook-id"] for request in server.requests]
    assert len(set(ids)) == len(ids)


async def test_people_are_reminded_as_often_as_the_gate_says(temporal: Temporal) -> None:
    model = ScriptedModel([asks_for(call("charge", "c1", amount=5)), "done"])
    async with ModelServer(lambda request: OK) as server:
        hook = Webhook(url=server.url, format="slack")
        async with temporal.worker(agent := clerk(), llm=model, webhooks=[hook]):
            run = await temporal.start(agent)
            await until(lambda: len(server.requests) >= 3)
            await temporal.people.decide(run.id, "c1", "approve", by="ada")
            await result(run)
    texts = [request.body["text"] for request in server.requests]
    assert texts[0] == "Waiting for approval: Charge &lt;the&gt; customer &amp; go?"
    assert texts[1] == texts[0].replace("Waiting", "Still waiting")
    fields = server.requests[0].body["blocks"][1]["text"]["text"].splitlines()
    assert fields[:4] == [f"*Run:* {run.id}", "*Name:* c1", "*Tool:* charge", "*Approvers:* ada"]
    assert fields[-1] == '*Arguments:* {"amount": 5}'


async def test_a_pipeline_tells_of_its_gates_and_each_webhook_of_what_it_wants_to_know(temporal: Temporal) -> None:
    agent = clerk()
    line = pipeline("line").step("ok", approval=Approval(message="Go on?")).step("say", agent=agent).build()
    model = ScriptedModel([asks_for(call("ask_user", "c1", question="Which?")), "done"])
    async with ModelServer(lambda request: OK) as gates, ModelServer(lambda request: OK) as questions:
        hooks = [
            Webhook(url=gates.url, name="gates", kinds=["approval"]),
            Webhook(url=questions.url, name="questions", kinds=["question", "pause"]),
        ]
        async with temporal.worker(agent, pipelines=[line], llm=model, webhooks=hooks):
            run = await start_pipeline(temporal.client, "line", task_queue=temporal.name, run_key=temporal.session())
            await until(lambda: gates.requests)
            await temporal.people.decide(run.id, "ok", "approve")
            child = temporal.people.run(f"{run.id}/say")
            await until(lambda: questions.requests)
            await temporal.people.answer(child.id, "this")
            await result(run)
    assert asked(gates) == [("approval", "ok")]
    assert asked(questions) == [("question", "c1")]
    assert questions.requests[0].body["data"]["workflow_id"] == child.id


async def test_a_workflow_of_the_users_tells_of_its_gates(temporal: Temporal) -> None:
    async with ModelServer(lambda request: OK) as server:
        plugin = StandfastPlugin(store=temporal.store, webhooks=[Webhook(url=server.url)])
        async with Worker(temporal.client, task_queue=temporal.name, workflows=[Release], plugins=[plugin]):
            run = await temporal.client.start_workflow("Release", id=temporal.session(), task_queue=temporal.name)
            await until(lambda: asked(server) == [("approval", "test")])
            await temporal.people.decide(run.id, "test", "approve", by="bob")
            await until(lambda: asked(server) == [("approval", "test"), ("approval", "ship")])
            await temporal.people.decide(run.id, "ship", "approve", by="eve")
            await result(run)
            await check_healthy(run)
    assert server.requests[0].body["data"]["approvers"] == ["ada", "bob"]


async def test_people_are_told_that_a_run_waits_for_a_worker_before_it_has_begun(temporal: Temporal) -> None:
    async with ModelServer(lambda request: OK) as server:
        hooks = [Webhook(url=server.url, kinds=["worker"])]
        async with temporal.worker(Agent("other"), llm=ScriptedModel([]), webhooks=hooks):
            run = await temporal.start("clerk")
            await until(lambda: asked(server) == [("worker", "clerk")])
            assert "no agent 'clerk'" in server.requests[0].body["data"]["message"]
            await run.cancel()


async def test_of_a_pause_they_are_told_what_could_not_be_done(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_models_once(monkeypatch)
    down = ScriptedModel([ModelError("overloaded", transient=True), "done"])
    agent = clerk()
    async with (
        ModelServer(lambda request: OK) as server,
        temporal.worker(agent, llm=down, webhooks=[Webhook(url=server.url)]),
    ):
        run = await temporal.start(agent)
        await until(lambda: server.requests)
        await temporal.people.resume(run.id)
        await result(run)
    assert (asked(server), server.requests[0].body["data"]["message"]) == ([("pause", "model")], "overloaded")


# --- delivery ---


@pytest.mark.parametrize("secret", ["a plain secret", "whsec_" + base64.b64encode(b"0123456789").decode()])
async def test_a_notice_is_signed_as_the_specification_has_it(temporal: Temporal, secret: str) -> None:
    model = ScriptedModel([asks_for(call("ask_user", "c1", question="Which — ü?")), "done"])
    async with ModelServer(lambda request: OK) as server:
        hook = Webhook(url=server.url, secret=secret)
        async with temporal.worker(agent := clerk(), llm=model, webhooks=[hook]):
            run = await temporal.start(agent)
            await until(lambda: server.requests)
            await temporal.people.answer(run.id, "this")
            await result(run)
    request = server.requests[0]
    body = json.dumps(request.body, ensure_ascii=False).encode()
    key = base64.b64decode(secret[6:]) if secret.startswith("whsec_") else secret.encode()
    signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert request.headers["webhook-signature"] == f"v1,{expected}"


async def test_a_notice_is_sent_again_until_it_is_taken_and_the_run_does_not_wait_for_that(temporal: Temporal) -> None:
    model = ScriptedModel([asks_for(call("ask_user", "c1", question="Which?")), "done"])
    script = [Fault(503), Fault(429, retry_after=0.1), Fault(end="reset"), OK]
    async with (
        ModelServer(*script) as server,
        temporal.worker(agent := clerk(), llm=model, webhooks=[Webhook(url=server.url)]),
    ):
        run = await temporal.start(agent)
        await until(lambda: len(server.requests) == 4)
        await temporal.people.answer(run.id, "this")
        await result(run)
        await check_healthy(run)
    assert (
        len({request.headers["webhook-id"] for request in server.requests}) == 1
    )  # by which it is known to be the same


async def test_a_webhook_that_is_gone_does_not_keep_a_run(temporal: Temporal, caplog: pytest.LogCaptureFixture) -> None:
    model = ScriptedModel([asks_for(call("ask_user", "c1", question="Which?")), "done"])
    async with ModelServer(*[Fault(410, words="gone")] * 3) as server:
        hook = Webhook(url=f"{server.url}/secret-path")
        async with temporal.worker(agent := clerk(), llm=model, webhooks=[hook]):
            run = await temporal.start(agent)
            await until(lambda: any("No one was notified" in record.getMessage() for record in caplog.records))
            await temporal.people.answer(run.id, "this")
            assert (await result(run))["status"] == "complete"
    assert len(server.requests) == 1
    assert "secret-path" not in caplog.text


async def test_of_an_endless_answer_only_the_beginning_is_read() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        answer = await request("POST", f"http://127.0.0.1:{port}/", b"{}", {})
        assert (answer.status, len(answer.content)) == (200, 2**20)


async def test_certificate_authorities_are_read_once_for_all_posts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading them blocks the event loop."""
    loaded: list[object] = []
    load = ssl.SSLContext.load_verify_locations

    def counted(self: ssl.SSLContext, *given: Any, **named: Any) -> None:
        loaded.append(self)
        load(self, *given, **named)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", counted)
    tls_context.cache_clear()
    async with ModelServer(lambda request: OK) as server:
        url = f"http://{server.address}/"
        for _ in range(3):
            await request("POST", url, b"{}", {})
        slack = SlackApi(SlackActions(signing_secret="s" * 32, token="xoxb-1", api=url))
        with pytest.raises(StandfastError):
            await slack.open("trigger", {})
    assert len(server.requests) == 4
    assert len(set(map(id, loaded))) <= 1


AT = datetime(2026, 11, 27, 12, tzinfo=UTC)
RUN = "01234567-89ab-cdef-0123-456789abcdef"


async def attempted(store: SQLiteStore, number: int, hook: Webhook) -> None:
    """Make one of the attempts to send a notice of a gate."""
    activities = NoticeActivities([hook], PostedMessages(store, bots_of([hook])), store)
    asks = {"kind": "approval", "name": "ok", "message": "Go on?", "since": AT.isoformat(), "digest": "d"}
    environment = ActivityEnvironment()
    environment.info = replace(
        ActivityEnvironment.default_info(),
        attempt=number, current_attempt_scheduled_time=AT + timedelta(seconds=30 * number),
    )  # fmt: skip
    await environment.run(activities.notify, {"item": asks, "run": RUN})


async def test_an_attempt_that_is_late_sends_nothing_any_more(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "store.db")
    attempt = partial(attempted, store)
    async with Slack() as slack, ModelServer(Fault(503), OK) as server:
        for hook, sent in ((slack.webhook(), slack.requests), (Webhook(url=server.url), server.requests)):
            if hook.slack_buttons is not None:
                slack.faults.append(Reply({"ok": False, "error": "ratelimited"}))
            with pytest.raises(ApplicationError):
                await attempt(2, hook)
            await attempt(1, hook)
            assert len(sent) == 1  # of the second attempt, whose notice was not taken
            await attempt(3, hook)
            await attempt(1, hook)
            await attempt(4, hook)
            assert len(sent) == 2
    await store.close()


LOST = {
    "the connection breaks": Fault(end="reset"),
    "a gateway gives up": Fault(504),
    "Slack fails": Reply({"ok": False, "error": "internal_error"}),
    "an answer of something else": Reply(b"<html>"),
}


@pytest.mark.parametrize("lost", LOST)
async def test_a_chat_gets_no_second_message_if_the_first_may_have_arrived(tmp_path: Path, lost: str) -> None:
    store = sqlite_store(tmp_path / "store.db")
    async with Slack() as slack:
        slack.faults = [LOST[lost]]
        for number in (1, 2):
            with pytest.raises(ApplicationError, match="It may have been sent, so it is not sent again") as failed:
                await attempted(store, number, slack.webhook())
            assert failed.value.non_retryable
        assert len(slack.requests) == 1
    (said,) = await load_untold(store, RUN)
    assert said.startswith("slack may not have been notified of approval ok: ")
    await store.close()


@pytest.mark.parametrize("kind", ["bot", "incoming", "JSON"])
async def test_of_two_attempts_that_meet_one_posts_and_after_a_death_none_does(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = sqlite_store(tmp_path / "store.db")
    answers, arrived = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> Reply:
        arrived.set()
        await answers.wait()
        return Reply({"ok": True, "ts": "1"})

    async with ModelServer(slow) as server:
        url, buttons = f"http://{server.address}/api/chat.postMessage", SlackButtons(token="xoxb-1", channel="C1")
        hook = {
            "bot": Webhook(url=url, format="slack", slack_buttons=buttons),
            "incoming": Webhook(url=server.url, format="slack"),
            "JSON": Webhook(url=server.url),
        }[kind]
        first = asyncio.create_task(attempted(store, 1, hook))
        await arrived.wait()
        if kind != "JSON":
            with pytest.raises(ApplicationError, match="may be sending it now") as meets:
                await attempted(store, 2, hook)
            assert not meets.value.non_retryable
        first.cancel()  # as if its worker had died
        await asyncio.gather(first, return_exceptions=True)
        answers.set()
        monkeypatch.setattr(webhooks, "_IN_FLIGHT", timedelta())
        if kind == "JSON":  # a receiver recognises a second copy by its id
            await attempted(store, 3, hook)
            assert len({request.headers["webhook-id"] for request in server.requests}) == 1
        else:
            with pytest.raises(ApplicationError, match="was lost"):
                await attempted(store, 3, hook)
        assert len(server.requests) == (2 if kind == "JSON" else 1)
    await store.close()


@pytest.mark.usefixtures("short_runs")
async def test_a_run_that_continues_as_new_tells_nobody_twice(temporal: Temporal) -> None:
    turns: Sequence[Any] = [asks_for(call("echo", f"e{n}", text="x")) for n in range(4)]
    model = ScriptedModel([*turns, asks_for(call("ask_user", "c1", question="Which?")), *turns, "done"])
    async with (
        ModelServer(lambda request: OK) as server,
        temporal.worker(agent := clerk(), llm=model, webhooks=[Webhook(url=server.url)]),
    ):
        run = await temporal.start(agent)
        await until(lambda: server.requests)
        await temporal.people.answer(run.id, "this")
        await result(run)
    assert asked(server) == [("question", "c1")]


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_workflows, "STEPS", 2)


# --- declarations ---


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"url": "http://example.com/hook"}, "webhook.url must be like"),
        ({"url": "example.com"}, "webhook.url must be like"),
        ({"url": "https:///x"}, "webhook.url must be like"),
        ({"url": "https://x/", "format": "xml"}, "webhook.format must be"),
        ({"url": "https://x/", "kinds": ["approvals"]}, "webhook.kinds must be"),
        ({"url": "https://x/", "secret": "whsec_!"}, "webhook.secret: what follows whsec_ must be base64"),
    ],
    ids=str,
)
def test_a_webhook_that_could_not_be_used_is_refused(options: Any, rule: str) -> None:
    with pytest.raises(DefinitionError, match=rule):
        Webhook(**options)


async def test_a_value_that_is_not_a_webhook_is_refused(temporal: Temporal) -> None:
    with pytest.raises(DefinitionError, match="webhooks must be Webhooks, got str"):
        async with temporal.worker(Agent("clerk"), llm=ScriptedModel([]), webhooks=["https://x/"]):
            pass
