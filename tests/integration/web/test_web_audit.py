"""The audit trail has the person behind each answer, message, resume, cancel and start, as for decisions."""

import base64
import re
from pathlib import Path
from typing import Any

import pytest
from support.commands import data, done
from support.pages import CHARGES, browser, charge, send
from support.questions import ask_user
from support.temporal_runs import Run, Temporal, ask_models_once, pending, result, until
from support.transcripts import asks_for, call
from temporalio.api.enums.v1 import EventType

from standfast import Agent, ModelError, sqlite_store
from standfast.stores import DecisionRecord
from standfast.temporal import OnRecord, UserClient
from standfast.temporal.client.history.audits import load_acts
from standfast.testing import ScriptedModel

ASKS = asks_for(call("ask_user", "c1", question="Which account?"))


async def acts(temporal: Temporal, run: Run) -> list[tuple[str, str | None, str, str | None]]:
    rows = await load_acts(temporal.store, [str(run.first_execution_run_id)], run.id)
    return [(row.decision, row.by, row.gate, row.comment) for row in rows]


async def test_a_person_who_answers_says_and_cancels_on_the_page_is_on_record(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask_user])
    async with temporal.worker(agent, llm=ScriptedModel([ASKS, "done", ASKS])), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        page = f"/runs/{run.id}"
        await send(client, page, run.id, "message", text="And hurry")
        await send(client, page, run.id, "answer", text="The red one")
        assert (await result(run))["status"] == "complete"
        assert await acts(temporal, run) == [
            ("message", "ada", "", "And hurry"),
            ("answer", "ada", "c1", "The red one"),
        ]
        shown = (await client.get(page)).text
        assert "Who did what" in shown
        assert "<td>ada</td><td>answer</td>" in shown
        other = await temporal.start(agent, session="other")
        await pending(other)
        await send(client, f"/runs/{other.id}", other.id, "cancel")
        assert await acts(temporal, other) == [("cancel", "ada", "", None)]
        events = [event async for event in other.fetch_history_events()]
        asked = [
            event for event in events if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED
        ]
        assert asked[0].workflow_execution_cancel_requested_event_attributes.cause == "cancelled by ada"


async def test_a_person_who_resumes_a_paused_run_is_on_record(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_models_once(monkeypatch)
    agent = Agent("clerk", model="first")
    down: Any = ModelError("down", transient=True)
    async with temporal.worker(agent, llm=ScriptedModel([down, "done"])), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        await send(client, f"/runs/{run.id}", run.id, "resume", action="retry", model="second")
        await result(run)
        assert await acts(temporal, run) == [("resume", "ada", "model", "with the model second")]


async def test_a_person_who_starts_a_run_on_the_page_is_on_record(temporal: Temporal) -> None:
    agent = Agent("clerk")
    options: Any = {"agents": [agent], "task_queue": temporal.name}
    async with temporal.worker(agent, llm=ScriptedModel(["done"])), browser(temporal, **options) as client:
        form = {"csrf": (await client.get("/start/clerk")).text.split('name="csrf" value="')[1].split('"')[0]}
        typed = {**form, "message": "go", "session": temporal.session()}
        await client.post("/start/clerk", data=typed)
        run: Run = temporal.people.run(f"clerk/{temporal.session()}")
        first = (await run.describe()).raw_info.first_run_id
        rows = await load_acts(temporal.store, [first], run.id)
        assert [(row.decision, row.by) for row in rows] == [("start", "ada")]


async def test_without_a_store_the_history_says_who_it_was(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask_user])
    async with temporal.worker(agent, llm=ScriptedModel([ASKS, "done"])):
        run = await temporal.start(agent)
        await pending(run)
        await temporal.people.message(run.id, "hello", by="bob")
        await temporal.people.answer(run.id, "red", by="bob")
        await result(run)
        history = (await run.fetch_history()).to_json()
        sent = [base64.b64decode(one).decode() for one in re.findall(r'"data": ?"([\w+/=]+)"', history)]
        assert sum('"by":"bob"' in one for one in sent) >= 2


async def test_an_answer_decides_nothing_at_the_gate_of_the_same_call(temporal: Temporal) -> None:
    """The audit trail has verdicts and other acts; only verdicts count at gates."""
    from datetime import UTC, datetime

    from standfast.runtime.pipeline_results import Kept

    row = DecisionRecord(journal_key="r", gate="c1", at=datetime.now(UTC), decision="resolve", by="ada")
    await temporal.store.record_decision(row)
    assert await Kept("r", temporal.store).decisions("c1") == []
    assert [one.decision for one in await temporal.store.load_decisions("r")] == ["resolve"]


async def test_commands_put_on_record_who_it_was_and_show_it(temporal: Temporal, tmp_path: Path) -> None:
    agent = Agent("clerk", tools=[ask_user, charge])
    trail = ("--store", str(tmp_path / "standfast.db"))
    async with temporal.worker(agent, llm=ScriptedModel([ASKS, CHARGES, "done"])):
        words = ("start", "clerk", "-m", "go", "--session", temporal.session(), "--task-queue", temporal.name)
        run_id = (await data(temporal, *words, *trail))["workflow_id"]
        run: Run = temporal.people.run(run_id)
        await pending(run)
        await done(temporal, "export", run_id, "--file", str(tmp_path / "run.json"))
        await done(temporal, "answer", run_id, "red", *trail, "--by", "grace")
        await until(lambda: _asks(run, "approval"))
        await done(temporal, "message", run_id, "go on", *trail)
        await done(temporal, "approve", run_id, "--yes")
        await result(run)
        shown = await data(temporal, "show", run_id, "--audit", *trail)
        assert [(row["decision"], row["by"]) for row in shown["audit"]] == [
            ("start", "ada"), ("answer", "grace"), ("message", "ada"), ("approve", "ada"),
        ]  # fmt: skip
        assert "grace: answer: red" in await done(temporal, "show", run_id, "--audit", *trail)
        moved = ("--session", temporal.session("moved"), "--task-queue", temporal.name)
        imported = (await data(temporal, "import", "clerk", str(tmp_path / "run.json"), *moved, *trail))["workflow_id"]
        rows = (await data(temporal, "show", imported, "--audit", *trail))["audit"]
        assert [(row["decision"], row["outcome"]) for row in rows] == [("start", "done")]


async def _asks(run: Run, kind: str) -> bool:
    return any(item["kind"] == kind for item in await run.query("pending"))


async def test_what_is_said_and_answered_in_a_chat_is_on_record(temporal: Temporal, tmp_path: Path) -> None:
    agent = Agent("clerk", tools=[ask_user])
    trail = ("--store", str(tmp_path / "standfast.db"))
    async with temporal.worker(agent, llm=ScriptedModel([ASKS, "done"])):
        words = ("chat", "clerk", "--session", temporal.session(), "--task-queue", temporal.name, *trail)
        assert "done" in await done(temporal, *words, stdin="go\nred\n", STANDFAST_USER="grace")
        run: Run = temporal.people.run(f"clerk/{temporal.session()}")
        first = (await run.describe()).raw_info.first_run_id
        async with sqlite_store(tmp_path / "standfast.db") as store:
            rows = await load_acts(store, [first], run.id)
        assert [(row.decision, row.by, row.comment) for row in rows] == [
            ("start", "grace", "go"),
            ("answer", "grace", "red"),
        ]


async def test_a_program_that_gives_its_client_the_store_has_its_users_on_record(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask_user])
    mine = UserClient(temporal.client, user_id="ada", store=temporal.store)
    async with temporal.worker(agent, llm=ScriptedModel([ASKS])):
        run = await temporal.start(agent, user_id="ada", on_record=OnRecord(store=temporal.store, by="ada"))
        await pending(run)
        await mine.message(run.id, "And hurry")
        await mine.cancel(run.id)
        assert await acts(temporal, run) == [
            ("start", "ada", "", "go"), ("message", "ada", "", "And hurry"), ("cancel", "ada", "", None),
        ]  # fmt: skip
