"""The application's worker: a fault that prevents its start is reported in one line."""

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from support.temporal_runs import Temporal

from standfast import Agent, sqlite_store
from standfast.testing import ScriptedModel

ROOT = Path(__file__).parents[3]


async def test_the_worker_of_the_application_says_in_one_line_that_it_cannot_use_its_store(
    temporal: Temporal, tmp_path: Path
) -> None:
    path = tmp_path / "newer.db"
    async with sqlite_store(path) as made:
        await made.load_session("s")
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO standfast_schema (version) VALUES (1000)")
        database.commit()
    environment = {
        **os.environ,
        "TEMPORAL_ADDRESS": temporal.client.service_client.config.target_host,
        "STANDFAST_STORE": str(path),
        "STANDFAST_TASK_QUEUE": temporal.name,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "worker.py", cwd=ROOT, env=environment, stderr=subprocess.PIPE
    )
    _, error = await process.communicate()
    assert process.returncode == 1
    assert "Traceback" not in error.decode()
    assert error.decode().splitlines()[-1].startswith("Error: ")
    assert "written by a newer standfast" in error.decode().splitlines()[-1]


@pytest.mark.parametrize("how", ["the application's worker", "the command"])
async def test_a_worker_says_in_one_line_that_its_queue_has_another_store(
    temporal: Temporal, tmp_path: Path, how: str
) -> None:
    async with temporal.worker(Agent("helper"), llm=ScriptedModel([])):
        pass
    app = tmp_path / "app.py"
    app.write_text("from standfast import Agent\nfrom standfast.testing import ScriptedModel\n")
    app.write_text(app.read_text() + 'helper = Agent("helper")\nllm = ScriptedModel([])\n')
    command = ["-m", "standfast", "worker", str(app), "--task-queue", temporal.name]
    environment = {
        **os.environ,
        "TEMPORAL_ADDRESS": temporal.client.service_client.config.target_host,
        "STANDFAST_STORE": str(tmp_path / "another.db"),
        "STANDFAST_TASK_QUEUE": temporal.name,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(command if how == "the command" else ["worker.py"]),
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
    )
    _, error = await process.communicate()
    assert process.returncode == 1
    last = error.decode().splitlines()[-1]
    assert last.startswith(f"Error: Task queue '{temporal.name}' has the store {await temporal.store.identity()}, ")
    assert "Traceback" not in error.decode()
    if how == "the command":
        assert "is ready" not in error.decode()
