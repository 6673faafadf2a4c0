"""Commands read the workers' store, and refuse a different one."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from support.commands import ASKS, asking, data, refused, standfast
from support.questions import ask_user
from support.temporal_runs import Temporal, pending, until
from support.transcripts import asks_for, call
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest

from standfast import Agent, Approval, run, sqlite_store, tool
from standfast.temporal.client.queues.queue_stores import noted_stores

NO_PROCESS = 4_194_305  # above the largest id that Linux gives


@tool(approval=Approval(message="Charge?"))
async def charge() -> str:
    """Charge."""
    return "charged"


ASKER = Agent("clerk", tools=[ask_user])


@pytest.fixture
async def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Changes to a folder with a standfast.db that no worker has; returns the identity of that store."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    async with sqlite_store("standfast.db") as store:
        return await store.identity()


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    "words",
    [
        ("pending",), ("show", "RUN", "--audit"), ("show", "RUN", "--messages"), ("approve", "RUN"), ("reject", "RUN"),
        ("answer", "RUN", "yes"), ("message", "RUN", "yes"), ("cancel", "RUN"), ("resume", "RUN"), ("web",),
        ("resolve", "RUN", "c1", "--leave"), ("start", "clerk", "-m", "hi", "--task-queue", "QUEUE"),
        ("mcp", "serve"),
    ],
    ids=" ".join,
)  # fmt: skip
async def test_a_command_refuses_a_store_in_its_folder_that_no_worker_has(
    temporal: Temporal, elsewhere: str, words: tuple[str, ...]
) -> None:
    async with temporal.worker(ASKER, llm=asking(ASKS)):
        started = await temporal.start(ASKER)
        await until(lambda: pending(started))
        said = await refused(temporal, *({"RUN": started.id, "QUEUE": temporal.name}.get(word, word) for word in words))
        assert f"standfast.db is the store {elsewhere}, and the workers of namespace default have another one: " in said
        noted = set((await noted_stores(temporal.client)).values())  # including other tests' queues
        assert await temporal.store.identity() in noted
        assert any(identity in said for identity in noted)
        assert await pending(started)
    async with sqlite_store("standfast.db") as store:
        assert await store.list_sessions() == []
        assert await store.load_decisions(started.id) == []


async def test_a_command_says_which_store_it_reads(temporal: Temporal) -> None:
    async with temporal.worker(ASKER, llm=asking(ASKS)):
        started = await temporal.start(ASKER)
        await until(lambda: pending(started))
        found = await standfast(temporal, "pending", "--store", temporal.store.path, "--agent", "clerk")
        assert found.exit_code == 0
        assert f"Store: {temporal.store.path}" in found.stderr
        assert "Store:" not in (await standfast(temporal, "pending", started.id, "-o", "json")).stderr


@pytest.mark.parametrize("command", ["pending", "show"])
async def test_the_store_of_an_application_is_read(
    temporal: Temporal, elsewhere: str, tmp_path: Path, command: str
) -> None:
    app = tmp_path / "their_app.py"
    app.write_text(
        "from standfast import Agent, sqlite_store\n"
        f"clerk = Agent('clerk')\nstore = sqlite_store({temporal.store.path!r})\n"
    )
    async with temporal.worker(ASKER, llm=asking(ASKS)):
        started = await temporal.start(ASKER)
        await until(lambda: pending(started))
        if command == "pending":
            items = await data(temporal, "pending", "--app", str(app))
            assert started.id in {item["workflow_id"] for item in items}
        else:
            assert (await data(temporal, "show", started.id, "--messages", "--app", str(app)))["messages"]


async def test_without_a_store_the_server_is_asked(
    temporal: Temporal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    async with temporal.worker(ASKER, llm=asking(ASKS)):
        started = await temporal.start(ASKER)
        await until(lambda: pending(started))

        async def listed() -> bool:
            return started.id in {item["workflow_id"] for item in await data(temporal, "pending")}

        await until(listed)
    assert not Path("standfast.db").exists()


async def test_in_process_runs_of_the_folder_do_not_hide_those_of_the_server(
    temporal: Temporal, elsewhere: str
) -> None:
    async with sqlite_store("standfast.db") as store:
        payer = Agent("payer", tools=[charge])
        await run(payer, message="go", session_id="s1", store=store, llm=asking(asks_for(call("charge", "c1"))))
    async with temporal.worker(ASKER, llm=asking(ASKS)):
        assert "have another one" in await refused(temporal, "pending")
        (named,) = await data(temporal, "pending", "--store", "./standfast.db")
    (alone,) = await data(None, "pending", "--address", "127.0.0.1:9")
    assert named["workflow_id"] == alone["workflow_id"] == "in-process:payer/s1"


# --- doctor ---


async def test_the_doctor_checks_the_store_that_other_commands_read(temporal: Temporal, elsewhere: str) -> None:
    async with temporal.worker(ASKER, llm=asking()):
        rows = await checked(temporal)
        assert not rows["their store"]["ok"]
        assert f"standfast.db is a different one, {elsewhere}" in rows["their store"]["found"]


async def test_the_doctor_does_not_take_a_dead_worker_for_a_living_one(temporal: Temporal) -> None:
    name = f"{NO_PROCESS}@{socket.gethostname()}"
    poll = PollWorkflowTaskQueueRequest(
        namespace=temporal.client.namespace, task_queue=TaskQueue(name=temporal.name), identity=name
    )
    polling = asyncio.create_task(temporal.client.workflow_service.poll_workflow_task_queue(poll))

    async def noticed() -> dict[str, Any] | None:
        found = (await checked(temporal))["workers"]
        return found if name in found["found"] else None

    found = await until(noticed)
    polling.cancel()
    assert not found["ok"]
    assert f"none polls queue '{temporal.name}'" in found["found"]
    assert f"(stopped polling: {name})" in found["found"]


async def checked(temporal: Temporal) -> dict[str, dict[str, Any]]:
    said = await standfast(temporal, "doctor", "--task-queue", temporal.name, "-o", "json")
    return {row["check"]: row for row in json.loads(said.stdout)}
