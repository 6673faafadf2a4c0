"""Checking commands of `standfast`: a missing server, run or session, doctor, replay, completion."""

import base64
import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from support.commands import ASKS, asking, data, done, refused, standfast
from support.doubles import echo
from support.questions import ask_user
from support.temporal_runs import Temporal, pending, result, until
from support.transcripts import asks_for, call

from standfast import Agent, sqlite_store
from standfast.temporal.workflows.run import agent_workflows
from standfast.testing import ScriptedModel


async def test_a_run_that_is_not_there_is_an_error_for_every_command(temporal: Temporal) -> None:
    for words in (["show"], ["watch"], ["pending"], ["approve"], ["reject"], ["resume"], ["cancel"], ["export"]):
        assert "nobody/knows" in await refused(temporal, *words, "nobody/knows")


async def test_a_server_that_is_not_there_is_an_error() -> None:
    says = await refused(None, "ls", "--address", "127.0.0.1:9")
    assert says.startswith("Error: No Temporal server could be reached at 127.0.0.1:9 (as given)")
    result_ = await standfast(None, "ls", "--address", "127.0.0.1:9", "--debug")
    assert result_.exception is not None
    assert "No Temporal server" in str(result_.exception)


async def test_the_doctor_says_what_is_wrong_and_what_to_do(temporal: Temporal, tmp_path: Path) -> None:
    async with temporal.worker(Agent("clerk"), llm=ScriptedModel([])):

        async def well() -> list[dict[str, Any]]:  # as soon as the worker has polled
            said = await standfast(temporal, "doctor", "--task-queue", temporal.name, "-o", "json")
            return json.loads(said.stdout) if said.exit_code == 0 else []

        rows = await until(well)
        workers = next(row["found"] for row in rows if row["check"] == "workers")
        assert workers.startswith(f"1 on queue '{temporal.name}': ")
    store = str(tmp_path / "none.db")
    ill = await standfast(temporal, "doctor", "--task-queue", "nobody", "--store", store, "-o", "json")
    wrong = {row["check"]: row["found"] for row in json.loads(ill.stdout) if not row["ok"]}
    assert ill.exit_code == 1
    assert wrong == {
        "workers": "none polled queue 'nobody' in the last 5 minutes: start one, with `standfast worker APP`",
        "store": f"There is no store {store!r}; --store or STANDFAST_STORE names another",
    }
    ill = await standfast(None, "doctor", "--address", "127.0.0.1:9", "-o", "json")
    assert [row["check"] for row in json.loads(ill.stdout) if not row["ok"]] == ["server"]


async def test_the_doctor_finds_runs_whose_sessions_are_in_another_store(temporal: Temporal, tmp_path: Path) -> None:
    agent, words = Agent("clerk", tools=[ask_user]), ("doctor", "--task-queue", temporal.name, "-o", "json", "--store")
    async with temporal.worker(agent, llm=asking(ASKS)):
        run = await temporal.start(agent)
        await pending(run)
        await pending(await temporal.start("nobody"))  # has begun no session yet

        async def found(store: str) -> dict[str, Any]:
            rows = json.loads((await standfast(temporal, *words, str(tmp_path / store))).stdout)
            return next(row for row in rows if row["check"] == "sessions")

        async with sqlite_store(tmp_path / "other.db") as other:
            await other.list_sessions()  # makes it
        wrong = await until(lambda: _wrong(found("other.db")))
        assert run.id in wrong
        assert "is it the store of all workers" in wrong
        assert "nobody" not in wrong
        assert await found("standfast.db") == {
            "check": "sessions", "ok": True, "found": f"{tmp_path / 'standfast.db'} has the sessions of 1 run in flight"
        }  # fmt: skip


async def _wrong(row: Awaitable[dict[str, Any]]) -> str:
    found = await row
    return "" if found["ok"] else str(found["found"])


HISTORIES = sorted((Path(__file__).parents[2] / "histories").glob("*.json"))


async def test_histories_replay_from_files_and_from_the_server(temporal: Temporal, tmp_path: Path) -> None:
    agent = Agent("clerk", tools=[echo])
    async with temporal.worker(agent, llm=asking(asks_for(call("echo", "c1", text="x")))):
        run = await temporal.start(agent)
        await result(run)
    saved = [tmp_path / path.name for path in HISTORIES if path.stem in ("hooks", "stages")]
    for path in saved:
        path.write_text(json.dumps(json.loads((HISTORIES[0].parent / path.name).read_text())["history"]))
    rows = await data(temporal, "replay", run.id, *map(str, saved))
    assert [row["ok"] for row in rows] == [True, True, True], rows

    other = json.loads(saved[1].read_text())
    timer = next(event for event in other["events"] if event["eventType"] == "EVENT_TYPE_ACTIVITY_TASK_SCHEDULED")
    timer["activityTaskScheduledEventAttributes"]["activityType"]["name"] = "something-else"
    saved[1].write_text(json.dumps(other))
    ill = await standfast(None, "replay", str(saved[1]))
    assert ill.exit_code == 1
    assert ill.stdout.splitlines()[1].startswith("DIFFERS")
    assert "neither a file nor a run" in await refused(temporal, "replay", "nobody/knows")


async def test_a_history_whose_activities_were_told_something_else_differs(tmp_path: Path) -> None:
    saved = tmp_path / "stages.json"
    history = json.loads((HISTORIES[0].parent / saved.name).read_text())["history"]
    step = next(event for event in history["events"] if "activityTaskScheduledEventAttributes" in event)
    (told,) = step["activityTaskScheduledEventAttributes"]["input"]["payloads"]
    reference = json.loads(base64.b64decode(told["data"]))
    reference["of"] = reference.pop("run")
    told["data"] = base64.b64encode(json.dumps(reference).encode()).decode()
    saved.write_text(json.dumps(history))
    ill = await standfast(None, "replay", str(saved))
    assert ill.exit_code == 1
    assert "activity standfast.step (1): [0].of was" in ill.stdout
    assert "is now missing" in ill.stdout


async def test_the_runs_that_a_run_continues_are_replayed_too(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_workflows, "STEPS", 1)
    agent = Agent("clerk", tools=[echo])
    async with temporal.worker(agent, llm=asking(asks_for(call("echo", "c1", text="x")))):
        run = await temporal.start(agent)
        await result(run)
    rows = await data(temporal, "replay", run.id)
    assert [row["ok"] for row in rows] == [True, True], rows


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_shells_complete_its_commands(shell: str) -> None:
    assert "_STANDFAST_COMPLETE" in await done(None, "completion", shell)
