"""`standfast worker` as a process that other programs start, watch, upgrade and stop."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.commands import refused
from support.temporal_runs import Temporal, result, until
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.service import RPCError

from standfast.temporal import start_agent
from standfast.temporal.client.queues.queue_stores import check_queue

RUNBOOKS = Path(__file__).parents[3] / "docs" / "runbooks.md"
APPLICATION = """
import os
from standfast import Agent, Approval, tool
from standfast.testing import ScriptedModel

@tool(approval=Approval())
async def version(card: str) -> str:
    \"\"\"Say which version runs.\"\"\"
    return os.environ["VERSION"]

clerk = Agent("clerk", tools=[version])

class Model:
    async def chat(self, messages, tools):
        if messages[-1].role == "tool":
            return await ScriptedModel([messages[-1].content]).chat(messages, tools)
        asked = {"name": "version", "arguments": {"card": "4111"}}
        return await ScriptedModel([{"tool_calls": [asked]}]).chat(messages, tools)

llm = Model()
"""


class WorkerProcess:
    """A worker's process, and the lines that it has written."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(line.decode().rstrip())

    def says(self, text: str) -> bool:
        return any(text in line for line in self.lines)


@contextlib.asynccontextmanager
async def worker(temporal: Temporal, folder: Path, *options: str, version: str = "v1") -> AsyncIterator[WorkerProcess]:
    file = folder / "app.py"
    file.write_text(APPLICATION)
    environment = os.environ | {
        "TEMPORAL_ADDRESS": temporal.client.service_client.config.target_host,
        "STANDFAST_STORE": str(folder / "store.db"),
        "VERSION": version,
    }
    words = ("-m", "standfast", "worker", str(file), "--task-queue", temporal.name, *options)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, env=environment, stderr=asyncio.subprocess.PIPE
    )
    started = WorkerProcess(process)
    reading = asyncio.ensure_future(started.read())
    try:
        await until(lambda: started.says("is ready") or process.returncode is not None)
        assert process.returncode is None, started.lines
        yield started
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await reading


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def fetched(url: str) -> tuple[int, str]:
    """Return the status and the body at an address; 0 if it refuses the connection."""

    def fetch() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    return await asyncio.to_thread(fetch)


async def make_current(temporal: Temporal, version: str) -> None:
    """Make a version of the test's deployment the current one, and wait until new runs begin on it."""

    async def known() -> bool:
        request = SetWorkerDeploymentCurrentVersionRequest(
            namespace=temporal.client.namespace, deployment_name=temporal.name, build_id=version
        )
        with contextlib.suppress(RPCError):
            await temporal.client.workflow_service.set_worker_deployment_current_version(request)
            return True
        return False

    async def taken() -> bool:
        run = await start_agent(temporal.client, "clerk", message="go", task_queue=temporal.name)
        await until(lambda: temporal.people.pending(run.id))
        described = (await run.describe()).raw_description.workflow_execution_info
        await run.terminate("it was to find out where runs begin")
        return bool(described.versioning_info.deployment_version.build_id == version)

    await until(known)
    await until(taken)


async def test_a_worker_tells_its_health_and_has_the_counts_of_all_alarms(temporal: Temporal, tmp_path: Path) -> None:
    health, metrics = free_port(), free_port()
    options = ("--health", f"127.0.0.1:{health}", "--metrics", f"127.0.0.1:{metrics}", "--log-format", "json")
    async with worker(temporal, tmp_path, *options) as process:
        assert await fetched(f"http://127.0.0.1:{health}/live") == (200, "ok\n")
        await until(lambda: _has(f"http://127.0.0.1:{health}/ready", "ok"))
        assert (await fetched(f"http://127.0.0.1:{health}/other"))[0] == 404
        run = await start_agent(temporal.client, "clerk", message="go", task_queue=temporal.name)
        [item] = await until(lambda: temporal.people.pending(run.id))
        await temporal.people.decide(run.id, item["name"], "approve")
        assert (await result(run))["response"] == "v1"
        counted = 'standfast_outcomes{activity_type="version"'
        await until(lambda: _has(f"http://127.0.0.1:{metrics}/metrics", counted))
        await until(lambda: process.says('"event": "tool"'))
        [line] = [line for line in process.lines if '"event": "tool"' in line]
        assert json.loads(line).items() >= {"level": "info", "run": run.id, "tool": "version"}.items()
        assert not process.says("4111")
        alarms = RUNBOOKS.read_text().partition("## Alarms")[2]
        asked = set(re.findall(r"\b(?:standfast|temporal)_\w+", alarms))
        assert len(asked) > 5
        await until(lambda: _serves(f"http://127.0.0.1:{metrics}/metrics", asked))


async def _serves(url: str, names: set[str]) -> bool:
    served = (await fetched(url))[1]
    return all(name in served for name in names)


async def _has(url: str, text: str) -> bool:
    return text in (await fetched(url))[1]


async def test_a_worker_whose_store_is_away_is_alive_and_not_ready(temporal: Temporal, tmp_path: Path) -> None:
    health = free_port()
    async with worker(temporal, tmp_path, "--health", f"127.0.0.1:{health}"):
        await until(lambda: _has(f"http://127.0.0.1:{health}/ready", "ok"))
        (tmp_path / "store.db").rename(tmp_path / "moved.db")
        status, text = await fetched(f"http://127.0.0.1:{health}/ready")
        assert (status, "was moved" in text) == (503, True), text
        assert (await fetched(f"http://127.0.0.1:{health}/live"))[0] == 200
        (tmp_path / "moved.db").rename(tmp_path / "store.db")
        assert (await fetched(f"http://127.0.0.1:{health}/ready"))[0] == 200


async def test_a_worker_whose_queue_was_given_to_another_store_is_alive_and_not_ready(
    temporal: Temporal, tmp_path: Path
) -> None:
    at = f"http://127.0.0.1:{(health := free_port())}"
    async with worker(temporal, tmp_path, "--health", f"127.0.0.1:{health}"):
        await until(lambda: _has(f"{at}/ready", "ok"))
        await temporal.move_queue()
        assert (await fetched(f"{at}/ready"))[0] == 200  # the queue is free now, and a look does not take it
        await check_queue(temporal.client, temporal.name, temporal.store)
        status, text = await fetched(f"{at}/ready")
        assert (status, f"has the store {await temporal.store.identity()}" in text) == (503, True), text
        assert (await fetched(f"{at}/live"))[0] == 200


async def test_sigterm_ends_a_worker_in_order(temporal: Temporal, tmp_path: Path) -> None:
    async with worker(temporal, tmp_path) as process:
        process.process.send_signal(signal.SIGTERM)
        assert await process.process.wait() == 0
    assert process.says("Stopping")


@pytest.mark.slow
async def test_a_pinned_run_ends_on_the_version_that_it_began_on(temporal: Temporal, tmp_path: Path) -> None:
    assert await _version_of_a_run_that_waits_through_a_deploy(temporal, tmp_path, "pinned") == "v1"


@pytest.mark.slow
async def test_a_run_that_upgrades_on_its_own_ends_on_the_new_version(temporal: Temporal, tmp_path: Path) -> None:
    assert await _version_of_a_run_that_waits_through_a_deploy(temporal, tmp_path, "auto-upgrade") == "v2"


async def _version_of_a_run_that_waits_through_a_deploy(temporal: Temporal, folder: Path, versioning: str) -> str:
    def options(version: str) -> tuple[str, ...]:
        return ("--deployment", temporal.name, "--build-id", version, "--versioning", versioning)

    async with worker(temporal, folder, *options("v1")) as first:
        await until(lambda: first.says("set-current-version"))
        await make_current(temporal, "v1")
        run = await start_agent(temporal.client, "clerk", message="go", task_queue=temporal.name)
        [item] = await until(lambda: temporal.people.pending(run.id))
        async with worker(temporal, folder, *options("v2"), version="v2"):
            await make_current(temporal, "v2")
            await temporal.people.decide(run.id, item["name"], "approve")
            return str((await result(run))["response"])


async def test_options_that_cannot_be_used_are_refused_in_a_line(temporal: Temporal, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APPLICATION)
    app = str(tmp_path / "app.py")
    assert "go together" in await refused(temporal, "worker", app, "--build-id", "v1", code=2)
    assert "HOST:PORT" in await refused(temporal, "worker", app, "--health", "8235", code=2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        assert "Cannot listen" in await refused(temporal, "worker", app, "--health", at)
