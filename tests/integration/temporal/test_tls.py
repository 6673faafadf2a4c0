"""Servers behind TLS, client certificates and API keys, like Temporal Cloud; and the errors if they do not match."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import Result
from support.commands import standfast
from support.temporal_runs import until
from support.tls_fronts import Authority, Certificate, TLSFront, tls_front
from temporalio.client import Client
from temporalio.service import TLSConfig

from standfast import InputError, StandfastError
from standfast.temporal.client import connections
from standfast.temporal.client.board import search_attributes
from standfast.temporal.client.connections import connect
from standfast.temporal.wire import names
from standfast.testing import DevServer

KEY = "a-secret-key"
APP = """
from standfast import Agent, Approval, tool
from standfast.testing import ScriptedModel

@tool(approval=Approval(message="May it?"))
async def pay(amount: int) -> str:
    return f"paid {amount}"

clerk = Agent("clerk", tools=[pay])
llm = ScriptedModel([{"tool_calls": [{"id": "c1", "name": "pay", "arguments": {"amount": 7}}]}, "done"])
"""
COMMANDS = {
    "worker": ["worker", "no_such_app.py"],
    "pending": ["pending"],
    "approve": ["approve", "clerk/s1", "--yes"],
    "doctor": ["doctor"],
}

pytestmark = pytest.mark.usefixtures("configure")


@dataclass(frozen=True)
class PKI:
    """Certificates of one CA, and of a stranger's."""

    ours: Authority
    server: Certificate
    ended_server: Certificate
    named: Certificate  # for localhost, and not for an address
    client: Certificate
    ended: Certificate
    strangers: Authority
    stranger: Certificate


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> PKI:
    ours, strangers = (Authority(tmp_path_factory.mktemp(name), name) for name in ("ours", "strangers"))
    return PKI(
        ours=ours,
        server=ours.certificate("127.0.0.1"),
        ended_server=ours.certificate("127.0.0.1", days=-1),
        named=ours.certificate("localhost"),
        client=ours.certificate("worker"),
        ended=ours.certificate("worker", days=-1),
        strangers=strangers,
        stranger=strangers.certificate("worker"),
    )


@pytest.fixture
async def cloud(temporal_server: DevServer, pki: PKI) -> AsyncIterator[TLSFront]:
    """A server that wants TLS, a client certificate and an API key, and refuses all calls of its OperatorService."""
    async with tls_front(
        temporal_server.address, pki.server, clients=pki.ours, api_key=KEY, without="OperatorService"
    ) as front:
        yield front


def in_environment(front: TLSFront, pki: PKI) -> dict[str, str]:
    return {
        "TEMPORAL_ADDRESS": front.address,
        "TEMPORAL_API_KEY": KEY,
        "TEMPORAL_TLS_SERVER_CA_CERT_PATH": str(pki.ours.file),
        "TEMPORAL_TLS_CLIENT_CERT_PATH": str(pki.client.cert),
        "TEMPORAL_TLS_CLIENT_KEY_PATH": str(pki.client.key),
    }


def in_profile(front: TLSFront, pki: PKI) -> str:
    return f"""
[profile.cloud]
address = "{front.address}"
namespace = "default"
api_key = "{KEY}"
[profile.cloud.tls]
server_ca_cert_path = "{pki.ours.file}"
client_cert_path = "{pki.client.cert}"
client_key_path = "{pki.client.key}"
"""


def tls(ca: Authority, own: Certificate | None = None, **more: Any) -> TLSConfig:
    if own is not None:
        more |= {"client_cert": own.cert.read_bytes(), "client_private_key": own.key.read_bytes()}
    return TLSConfig(server_root_ca_cert=ca.file.read_bytes(), **more)


async def answers(client: Client) -> bool:
    return await client.service_client.check_health(timeout=timedelta(seconds=10))


# --- it fits ---


@pytest.mark.parametrize("how", ["arguments", "environment", "profile"])
async def test_a_client_shows_its_certificate_and_its_key(
    cloud: TLSFront, pki: PKI, configure: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    match how:
        case "arguments":
            client = await connect(cloud.address, api_key=KEY, tls=tls(pki.ours, pki.client))
        case "environment":
            for name, value in in_environment(cloud, pki).items():
                monkeypatch.setenv(name, value)
            client = await connect()
        case _:
            configure(in_profile(cloud, pki))
            client = await connect(profile="cloud")
    assert await answers(client)
    assert cloud.said("authorization") == {f"Bearer {KEY}"}


@pytest.mark.parametrize("key", [f"{KEY}\n", f" {KEY} "])
async def test_a_key_is_sent_without_the_line_break_of_its_file(cloud: TLSFront, pki: PKI, key: str) -> None:
    await connect(cloud.address, api_key=key, tls=tls(pki.ours, pki.client))
    assert cloud.said("authorization") == {f"Bearer {KEY}"}


async def test_a_name_may_be_said_that_the_address_does_not_have(temporal_server: DevServer, pki: PKI) -> None:
    async with tls_front(temporal_server.address, pki.named) as front:
        assert await answers(await connect(front.address, tls=tls(pki.ours, domain="localhost")))


@pytest.mark.parametrize(
    "options", [["--tls"], ["--tls-ca-path", "ours"], ["--tls-server-name", "127.0.0.1"], ["--api-key", KEY]]
)
async def test_an_option_of_tls_leaves_the_rest_of_the_profile_unchanged(
    cloud: TLSFront, pki: PKI, configure: Callable[[str], str], options: list[str]
) -> None:
    configure(in_profile(cloud, pki))
    given = [str(pki.ours.file) if option == "ours" else option for option in options]
    assert (await standfast(None, "ls", "--profile", "cloud", *given)).exit_code == 0


async def test_a_run_is_started_found_and_approved_on_such_a_server(
    cloud: TLSFront, pki: PKI, configure: Callable[[str], str], tmp_path: Path
) -> None:
    configure(in_profile(cloud, pki))
    (tmp_path / "app.py").write_text(APP)
    queue = session = f"t{uuid4().hex[:10]}"
    at, run = ["--profile", "cloud"], f"clerk/{session}"

    async def done(*words: str) -> str:
        result = await standfast(None, *words, *at)
        assert result.exit_code == 0, result.output
        return result.stdout

    async def is_found() -> bool:
        found = await done("ls", "--waiting", "--query", f"StandfastWaiting = 'approval' AND TaskQueue = '{queue}'")
        return run in found

    async with worker(tmp_path, queue, in_environment(cloud, pki)) as errors:
        await done("start", "clerk", "-m", "Pay 7", "-s", session, "--task-queue", queue)
        await until(is_found)
        assert "pay" in await done("pending", run)
        await done("approve", run, "--yes", "--by", "ada")
        assert "done" in await done("watch", run)
        checks = json.loads((await standfast(None, "doctor", "--task-queue", queue, "-o", "json", *at)).stdout)
        wrong = [row for row in checks if not row["ok"] and row["check"] != "runs"]  # including other tests'
        assert wrong == []
    assert "searchable" not in errors.read_text()
    assert cloud.said("authorization") == {f"Bearer {KEY}"}


@contextlib.asynccontextmanager
async def worker(folder: Path, queue: str, environment: dict[str, str]) -> AsyncIterator[Path]:
    """Run `standfast worker` as a separate process until a block ends; yields the file that it writes to."""
    written = folder / "worker.log"
    command = [sys.executable, "-m", "standfast", "worker", "app.py", "--task-queue", queue]
    with written.open("w") as file:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env={**os.environ, **environment, "STANDFAST_STORE": str(folder / "store.db")},
            stderr=file,
        )
        try:
            await until(lambda: "is ready" in written.read_text() or process.returncode is not None)
            assert process.returncode is None, written.read_text()
            yield written
        finally:
            process.terminate()
            await process.wait()


# --- it does not fit ---


@dataclass(frozen=True)
class Fault:
    """A server, what is said to it, and words of the error."""

    says: list[str]
    own: str = "server"  # the server's certificate; "" is a server that speaks plainly
    wants_certificate: bool = False
    wants_key: bool = False
    ca: str = "ours"
    client: str = ""
    environment: tuple[tuple[str, str], ...] = ()


FAULTS = {
    "a CA that is not trusted": Fault(["a CA that is not trusted here", "--tls-ca-path"], ca="strangers"),
    "a certificate that has ended": Fault(["ended on", "Renew it"], own="ended_server"),
    "another name": Fault(["a certificate for localhost", "--tls-server-name"], own="named"),
    "no client certificate": Fault(["client certificate", "--tls-cert-path"], wants_certificate=True),
    "a client certificate that has ended": Fault(
        ["not accept this client's certificate", "--tls-cert-path"], wants_certificate=True, client="ended"
    ),
    "a stranger's client certificate": Fault(
        ["not accept this client's certificate", "--tls-cert-path"], wants_certificate=True, client="stranger"
    ),
    "no API key": Fault(["Request unauthorized. It has no API key (TEMPORAL_API_KEY)"], wants_key=True),
    "a wrong API key": Fault(
        ["Request unauthorized. Its API key may be wrong", "namespace 'default'"],
        wants_key=True,
        environment=(("TEMPORAL_API_KEY", "wrong"),),
    ),
    "TLS with a server that has none": Fault(["does not speak TLS", "TEMPORAL_TLS=false"], own=""),
    "an API key with a server without TLS": Fault(
        ["does not speak TLS", "which an API key turns on"], own="", ca="", environment=(("TEMPORAL_API_KEY", KEY),)
    ),
    "no TLS with a server that wants it": Fault(["closed the connection at once", "TEMPORAL_TLS=true"], ca=""),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_what_does_not_fit_is_one_clear_sentence(
    name: str, temporal_server: DevServer, pki: PKI, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAULTS[name]
    if fault.ca:
        monkeypatch.setenv("TEMPORAL_TLS_SERVER_CA_CERT_PATH", str(getattr(pki, fault.ca).file))
    if fault.client:
        monkeypatch.setenv("TEMPORAL_TLS_CLIENT_CERT_PATH", str(getattr(pki, fault.client).cert))
        monkeypatch.setenv("TEMPORAL_TLS_CLIENT_KEY_PATH", str(getattr(pki, fault.client).key))
    for variable, value in fault.environment:
        monkeypatch.setenv(variable, value)
    async with contextlib.AsyncExitStack() as stack:
        address = temporal_server.address
        if fault.own:
            clients = pki.ours if fault.wants_certificate else None
            own, key = getattr(pki, fault.own), KEY if fault.wants_key else None
            address = (await stack.enter_async_context(tls_front(address, own, clients=clients, api_key=key))).address
        monkeypatch.setenv("TEMPORAL_ADDRESS", address)
        with pytest.raises(StandfastError) as refused:
            await connect()
        said = [
            str(refused.value),
            *[error_of(command, await standfast(None, *words)) for command, words in COMMANDS.items()],
        ]
    for sentence in said:
        assert f"{address} (from TEMPORAL_ADDRESS)" in sentence
        assert [words for words in fault.says if words not in sentence] == []
        assert "standfast dev" not in sentence
        assert "tonic" not in sentence


def error_of(command: str, result: Result) -> str:
    """Return what a command says that fails, which is one line."""
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    if command == "doctor":
        return " ".join(result.stdout.split())
    (line,) = result.stderr.splitlines()
    return line


async def test_a_server_that_never_ends_a_handshake_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_SECONDS", 0.2)
    held: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0) as silent:
        host, port = silent.sockets[0].getsockname()
        with pytest.raises(StandfastError, match=r"it did not answer within 0\.2 s"):
            await connect(f"{host}:{port}", tls=True)
        for writer in held:
            writer.transport.abort()


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("TEMPORAL_TLS_SERVER_CA_CERT_DATA", "The certificate of the server's CA is not PEM"),
        ("TEMPORAL_TLS_CLIENT_KEY_DATA", "do not belong together"),
    ],
)
async def test_certificates_that_cannot_be_used_are_the_callers_fault(
    cloud: TLSFront, pki: PKI, monkeypatch: pytest.MonkeyPatch, what: str, says: str
) -> None:
    monkeypatch.setenv("TEMPORAL_TLS_SERVER_CA_CERT_DATA", pki.ours.file.read_text())
    monkeypatch.setenv("TEMPORAL_TLS_CLIENT_CERT_DATA", pki.client.cert.read_text())
    monkeypatch.setenv("TEMPORAL_TLS_CLIENT_KEY_DATA", pki.client.key.read_text())
    monkeypatch.setenv(what, "nonsense" if "CA" in what else pki.stranger.key.read_text())
    with pytest.raises(InputError, match=says):
        await connect(cloud.address, api_key=KEY)


# --- search attributes that may not be listed ---


async def test_search_attributes_are_found_where_they_cannot_be_listed(cloud: TLSFront, pki: PKI) -> None:
    client = await connect(cloud.address, api_key=KEY, tls=tls(pki.ours, pki.client))
    assert await search_attributes.missing_attributes(client) == []
    assert await search_attributes.register_attributes(client)


async def test_a_missing_search_attribute_is_named_where_it_cannot_be_made(
    cloud: TLSFront, pki: PKI, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(names, "SEARCH_ATTRIBUTES", {**names.SEARCH_ATTRIBUTES, "StandfastElse": "Keyword"})
    client = await connect(cloud.address, api_key=KEY, tls=tls(pki.ours, pki.client))
    assert await search_attributes.missing_attributes(client) == ["StandfastElse"]
    assert not await search_attributes.register_attributes(client)
    assert "it lacks StandfastElse" in caplog.text
