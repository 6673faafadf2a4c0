"""Every act on the page is on the audit trail before it is done, even if the page dies."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.commands import data, done, refused
from support.pages import BOB, browser, csrf_of, fields, send
from support.questions import ask_user
from support.temporal_runs import Run, Temporal, pending, result, status, until, waiting
from support.transcripts import asks_for, call
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from standfast import Agent, StoreError
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel
from standfast.web import Access

ASKS = asks_for(call("ask_user", "c1", question="Which account?"))
UNKNOWN = "unknown whether it counted"
clerk = Agent("clerk", tools=[ask_user])
APPLICATION = """
import asyncio, os
from pathlib import Path
from uuid import uuid4
from weakref import WeakKeyDictionary

from standfast import Agent
from standfast.stores import SQLiteStore


class Stopping(SQLiteStore):
    rows = WeakKeyDictionary()  # of each request

    async def record_decision(self, record):
        request = asyncio.current_task()
        self.rows[request] = number = self.rows.get(request, 0) + 1
        await self.stop_at(f"before {number}")
        await super().record_decision(record)
        await self.stop_at(f"after {number}")

    async def stop_at(self, place):
        if place == os.environ["STOP"]:
            Path(os.environ["STOPPED"], uuid4().hex).touch()
            await asyncio.Event().wait()


store = Stopping(os.environ["STORE"])
clerk = Agent("clerk")
"""


@contextmanager
def page_that_stops(temporal: Temporal, folder: Path, stop: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Serve the page by a separate process, which stops at a place of each request."""
    (folder / "shop.py").write_text(APPLICATION)
    (folder / "stopped").mkdir()
    given = {"STOP": stop, "STOPPED": str(folder / "stopped"), "STORE": str(folder / "standfast.db")}
    address = temporal.client.service_client.config.target_host
    words = ("--address", address, "--task-queue", temporal.name, "--app", str(folder / "shop.py"), "--port", "0")
    command = [Path(sys.executable).with_name("standfast"), "web", *words]
    with (folder / "page.log").open("w") as log:
        page = subprocess.Popen(command, stderr=log, env={**os.environ, "STANDFAST_USER": "ada"} | given)
        try:
            yield page
        finally:
            page.kill()
            page.wait()


async def address_of(page: "subprocess.Popen[bytes]", folder: Path) -> str:
    """Return where a page is, as soon as it is there."""

    def found() -> str | None:
        told = (folder / "page.log").read_text()
        assert page.poll() is None, f"the page has ended: {told}"
        at = re.search(r"(http://\S+)\n", told)
        return at and at[1]

    return str(await until(found))


@dataclass
class Sent:
    """Forms that were sent to a page which died with them in its hands."""

    answered: Run
    cancelled: Run
    forms: list[tuple[str, dict[str, str]]]

    async def again(self, client: httpx.AsyncClient) -> list[httpx.Response]:
        """Send the very same forms to another page, as a browser does that is told to."""
        csrf = await csrf_of(client)
        return [await client.post(path, data=form | {"csrf": csrf}) for path, form in self.forms]


async def sent_to_a_page_that_is_killed(temporal: Temporal, folder: Path, stop: str) -> Sent:
    """Answer, cancel and start with a page that is killed at the same place of all three."""
    answered, cancelled = await temporal.start(clerk), await temporal.start(clerk, session="other")
    await asyncio.gather(pending(answered), pending(cancelled))
    with page_that_stops(temporal, folder, stop) as page:
        at = await address_of(page, folder)
        async with httpx.AsyncClient(base_url=at, headers={"Accept": "text/html"}, timeout=60) as client:
            shown = {run.id: (await client.get(f"/runs/{run.id}")).text for run in (answered, cancelled)}
            start = (await client.get("/start/clerk")).text
            new = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', start.split("<main")[1]))
            forms = [
                (path := f"/runs/{answered.id}/answer", fields(shown[answered.id], path) | {"text": "The red one"}),
                (path := f"/runs/{cancelled.id}/cancel", fields(shown[cancelled.id], path)),
                ("/start/clerk", new | {"message": "go", "session": temporal.session("new")}),
            ]
            sending = [asyncio.ensure_future(client.post(path, data=form)) for path, form in forms]

            def all_stopped() -> bool:
                assert not any(one.done() for one in sending), [one.result() for one in sending if one.done()]
                return len(list((folder / "stopped").iterdir())) == len(forms)

            await until(all_stopped)
            page.kill()
            await asyncio.gather(*sending, return_exceptions=True)
    return Sent(answered, cancelled, forms)


async def trail(temporal: Temporal, run_id: str) -> list[tuple[str, str, str, Any]]:
    """Return what the command shows of a run, with the outcome of each act."""
    shown = await data(temporal, "show", run_id, "--audit", "--store", str(temporal.store._path))
    return [(row["by"], row["decision"], row["outcome"], row.get("comment")) for row in shown["audit"]]


async def is_cancelled(run: Run) -> bool:
    return (await run.describe()).status is WorkflowExecutionStatus.CANCELED


async def test_a_page_killed_before_it_acts_has_said_what_it_was_about_to_do(
    temporal: Temporal, tmp_path: Path
) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(asks_once)):
        sent = await sent_to_a_page_that_is_killed(temporal, tmp_path, "after 1")
        new = f"clerk/{temporal.session('new')}"
        assert [item["name"] for item in await waiting(sent.answered)] == ["c1"]
        assert (await status(sent.cancelled))["status"] == "waiting"
        with pytest.raises(RPCError, match="not found"):
            await temporal.people.run(new).describe()
        assert await trail(temporal, sent.answered.id) == [("ada", "answer", "intended", "The red one")]
        assert await trail(temporal, sent.cancelled.id) == [("ada", "cancel", "intended", None)]
        assert await trail(temporal, new) == [("ada", "start", "intended", "go")]
        told = await done(temporal, "show", sent.answered.id, "--audit", "--store", str(temporal.store._path))
        assert UNKNOWN in told
        async with browser(temporal) as client:
            assert UNKNOWN in (await client.get(f"/runs/{sent.answered.id}")).text
            assert UNKNOWN in (await client.get(f"/runs/{new}")).text
        async with browser(temporal, agents=[clerk], task_queue=temporal.name) as client:
            assert [one.status_code for one in await sent.again(client)] == [303, 303, 303]
        assert (await result(sent.answered))["status"] == "complete"
        assert await trail(temporal, sent.answered.id) == [("ada", "answer", "done", "The red one")]
        assert await trail(temporal, sent.cancelled.id) == [("ada", "cancel", "done", None)]
        assert await trail(temporal, new) == [("ada", "start", "done", "go")]


async def test_a_page_killed_after_it_acted_leaves_a_row_that_says_that_the_outcome_is_unknown(
    temporal: Temporal, tmp_path: Path
) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(asks_once)):
        sent = await sent_to_a_page_that_is_killed(temporal, tmp_path, "before 2")
        new = f"clerk/{temporal.session('new')}"
        assert (await result(sent.answered))["status"] == "complete"
        await until(lambda: is_cancelled(sent.cancelled))
        assert (await temporal.people.run(new).describe()).id == new
        for run_id, act in ((sent.answered.id, "answer"), (sent.cancelled.id, "cancel"), (new, "start")):
            assert [row[1:3] for row in await trail(temporal, run_id)] == [(act, "intended")]
        async with browser(temporal, agents=[clerk], task_queue=temporal.name) as client:
            answer, cancel, start = await sent.again(client)  # which counts for nothing that it has not counted for
            assert answer.headers["Location"].endswith("?said=answer")
            assert cancel.headers["Location"].endswith("?said=cancel")
            assert start.headers["Location"].endswith("?said=started")
        assert [row[1:3] for row in await trail(temporal, sent.answered.id)] == [("answer", "done")]
        assert [row[1:3] for row in await trail(temporal, sent.cancelled.id)] == [("cancel", "done")]
        assert [row[1:3] for row in await trail(temporal, new)] == [("start", "done")]


def asks_once(messages: Any, tools: Any = None) -> Any:
    return "done" if any(message.role == "tool" for message in messages) else ASKS


class Refusing(SQLiteStore):
    """A store whose audit trail takes nothing."""

    async def record_decision(self, record: Any) -> None:
        raise StoreError("database or disk is full")


async def test_what_cannot_be_put_on_record_is_not_done_and_the_page_says_why(
    temporal: Temporal, tmp_path: Path
) -> None:
    broken = replace(temporal, store=Refusing(tmp_path / "standfast.db"))
    options: Any = {"agents": [clerk], "task_queue": temporal.name}
    async with temporal.worker(clerk, llm=ScriptedModel(asks_once)), browser(broken, **options) as client:
        run = await temporal.start(clerk)
        await pending(run)
        page, new = f"/runs/{run.id}", f"clerk/{temporal.session('new')}"
        form = (await client.get("/start/clerk")).text.split("<main")[1]
        hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form))
        answers = [
            await send(client, page, run.id, "answer", text="The red one"),
            await send(client, page, run.id, "message", text="And hurry"),
            await send(client, page, run.id, "cancel"),
            await client.post("/start/clerk", data=hidden | {"message": "go", "session": temporal.session("new")}),
        ]
        for answer in answers:
            assert answer.status_code == 503
            assert "Nothing was sent" in answer.text
            assert "database or disk is full" in answer.text
        state = await status(run)
        assert (state["status"], state.get("unheard", []), len(await waiting(run))) == ("waiting", [], 1)
        with pytest.raises(RPCError, match="not found"):
            await temporal.people.run(new).describe()
    await broken.store.close()


async def test_a_command_does_nothing_that_it_cannot_put_on_record(temporal: Temporal, tmp_path: Path) -> None:
    (tmp_path / "trail.db").write_text("this is not a database, and nothing can be put on record in it")
    trail = ("--store", str(tmp_path / "trail.db"))
    async with temporal.worker(clerk, llm=ScriptedModel(asks_once)):
        run = await temporal.start(clerk)
        await pending(run)
        started = ("start", "clerk", "-m", "go", "-s", temporal.session("new"), "--task-queue", temporal.name)
        for words in (("cancel", run.id), ("answer", run.id, "red"), ("message", run.id, "hurry"), started):
            assert "Nothing was sent" in await refused(temporal, *words, *trail)
        assert len(await waiting(run)) == 1
        with pytest.raises(RPCError, match="not found"):
            await temporal.people.run(f"clerk/{temporal.session('new')}").describe()


async def test_a_form_that_is_sent_twice_says_it_once_and_is_one_row(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(asks_once)), browser(temporal) as client:
        run = await temporal.start(clerk)
        await pending(run)
        page, action = f"/runs/{run.id}", f"/runs/{run.id}/message"
        form = fields((await client.get(page)).text, action) | {"text": "And hurry"}
        twice = await asyncio.gather(*(client.post(action, data=form) for _ in range(2)))  # a double click
        later = await client.post(action, data=form)  # by the button of the browser that goes back
        assert [one.headers.get("Location") for one in (*twice, later)] == [f"{page}?said=message"] * 3
        other = await client.post(action, data=form | {"text": "No, take your time"})
        assert other.status_code == 303
        await send(client, page, run.id, "answer", text="red")
        await result(run)
        said = [message.content for message in await temporal.messages() if message.role == "user"]
        assert said == ["go", "And hurry", "No, take your time"]
        assert [row[1:] for row in await trail(temporal, run.id)] == [
            ("message", "done", "And hurry"), ("message", "done", "No, take your time"), ("answer", "done", "red"),
        ]  # fmt: skip


async def test_a_form_that_cannot_be_read_leaves_no_row_and_one_that_the_run_refuses_says_so(
    temporal: Temporal,
) -> None:
    access = Access(people=[BOB])
    async with temporal.worker(clerk, llm=ScriptedModel(asks_once)), browser(temporal, access) as client:
        client.headers["Authorization"] = f"Bearer {BOB.token}"
        run = await temporal.start(clerk)
        await pending(run)
        wrong: list[tuple[str, dict[str, str]]] = [
            ("answer", {"text": " "}), ("message", {}), ("resume", {"action": "explode"}),
            ("resume", {"action": "skip"}), ("resolve", {"call": "c1", "decision": "perhaps"}),
            ("resolve", {"decision": "leave"}),
        ]  # fmt: skip
        for act, form in wrong:
            assert (await client.post(f"/runs/{run.id}/{act}", data=form)).status_code == 409, act
        assert await trail(temporal, run.id) == []
        late = await client.post(f"/runs/{run.id}/answer", data={"text": "red", "call": "c9"})
        assert late.status_code == 409
        assert await trail(temporal, run.id) == [("bob", "answer", "refused", "red")]
        shown = (await client.get(f"/runs/{run.id}")).text
        assert "did not count: answer: call c9 does not ask anything" in shown
