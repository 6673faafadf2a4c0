"""A client finds its server, or reports that there is none, and its process ends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest
from support.temporal_servers import start_program
from temporalio.client import Client, ClientConfig, Plugin
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.service import ConnectConfig, GrpcCompression, ServiceClient

from standfast import InputError, LLMResponse, StandfastError
from standfast.temporal.client.connections import connect
from standfast.temporal.client.queues.servers import DevServer, dev_server

Configure = Callable[[str], str]

NOBODY = "127.0.0.1:1"  # a port that nothing uses
pytestmark = pytest.mark.usefixtures("configure")


@pytest.fixture
async def server() -> AsyncIterator[DevServer]:
    async with dev_server(namespace="other") as started:
        yield started


async def answers(client: Client) -> bool:
    return await client.service_client.check_health(timeout=timedelta(seconds=10))


def target(client: Client) -> str:
    return client.service_client.config.target_host


# --- found ---


async def test_the_address_comes_from_the_environment(server: DevServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "other")
    client = await connect()
    assert (target(client), client.namespace, await answers(client)) == (server.address, "other", True)


async def test_the_address_comes_from_the_default_profile(server: DevServer, configure: Configure) -> None:
    configure(f'[profile.default]\naddress = "{server.address}"\nnamespace = "other"\n')
    client = await connect()
    assert (target(client), client.namespace, await answers(client)) == (server.address, "other", True)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("by", ["argument", "environment"])
async def test_a_profile_is_chosen_by_name(
    server: DevServer, configure: Configure, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    configure(
        f'[profile.default]\naddress = "{NOBODY}"\n'
        f'[profile.staging]\naddress = "{server.address}"\nnamespace = "other"\n'
    )
    if by == "environment":
        monkeypatch.setenv("TEMPORAL_PROFILE", "staging")
    client = await connect(profile="staging" if by == "argument" else None)
    assert (client.namespace, await answers(client)) == ("other", True)


async def test_explicit_arguments_win(server: DevServer, configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    configure('[profile.default]\naddress = "127.0.0.1:2"\nnamespace = "profile"\napi_key = "key"\n')
    monkeypatch.setenv("TEMPORAL_ADDRESS", NOBODY)
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "environment")
    client = await connect(server.address, namespace="other", tls=False, identity="me")
    assert (target(client), client.namespace, client.identity) == (server.address, "other", "me")
    assert client.service_client.config.api_key == "key"
    assert await answers(client)


async def test_without_any_word_it_is_the_default_namespace_on_port_7233() -> None:
    client = await connect(lazy=True)
    assert (target(client), client.namespace) == ("localhost:7233", "default")


async def test_pydantic_models_are_converted_unless_another_converter_is_given() -> None:
    ours = (await connect(lazy=True)).data_converter
    (payload,) = await ours.encode([LLMResponse(text="hello")])
    assert await ours.decode([payload], [LLMResponse]) == [LLMResponse(text="hello")]
    assert await pydantic_data_converter.decode([payload], [LLMResponse]) == [LLMResponse(text="hello")]
    assert (await connect(lazy=True, data_converter=DataConverter.default)).data_converter is DataConverter.default


class Named(Plugin):
    """Gives the client a name."""

    def configure_client(self, config: ClientConfig) -> ClientConfig:
        return config

    async def connect_service_client(
        self,
        config: ConnectConfig,
        next: Callable[[ConnectConfig], Awaitable[ServiceClient]],  # noqa: A002 (as the SDK names it)
    ) -> ServiceClient:
        config.identity = "plugin"
        return await next(config)


async def test_a_server_on_this_machine_is_spoken_to_without_compression_unless_that_is_given(
    server: DevServer,
) -> None:
    client, given = await connect(server.address), await connect(server.address, grpc_compression=GrpcCompression.GZIP)
    assert client.service_client.config.grpc_compression is GrpcCompression.NONE
    assert given.service_client.config.grpc_compression is GrpcCompression.GZIP


async def test_plugins_are_handed_on(server: DevServer) -> None:
    assert (await connect(server.address, plugins=[Named()])).identity == "plugin"


# --- not found ---


@pytest.mark.parametrize("given", [True, False])
async def test_nothing_that_listens_is_one_clear_error(given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not given:
        monkeypatch.setenv("TEMPORAL_ADDRESS", NOBODY)
    with pytest.raises(StandfastError) as caught:
        await connect(NOBODY if given else None)
    assert str(caught.value) == (
        f"No Temporal server could be reached at {NOBODY} ({'as given' if given else 'from TEMPORAL_ADDRESS'}): "
        "Connection refused. Start one with `standfast dev`, or set TEMPORAL_ADDRESS to the address of yours."
    )
    assert isinstance(caught.value.__cause__, RuntimeError)


async def test_a_server_of_another_kind_is_not_a_temporal_server() -> None:
    async def speak_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        while await reader.read(1_000):  # a socket that is closed over unread bytes is reset: another error
            pass
        writer.close()

    async with await asyncio.start_server(speak_http, "127.0.0.1", 0) as web:
        host, port = web.sockets[0].getsockname()
        # Which of the two it says depends on how far the connection has come when the other side closes it.
        why = f"could be reached at {host}:{port} .as given.: |at {host}:{port} .as given. closed the connection"
        with pytest.raises(StandfastError, match=why):
            await connect(f"{host}:{port}")


async def test_an_address_that_is_none_is_the_callers_fault() -> None:
    with pytest.raises(InputError, match=r"Cannot connect to not an address \(as given\): invalid target URL"):
        await connect("not an address")


async def test_an_unknown_profile_is_named_with_its_file(configure: Configure) -> None:
    path = configure(f'[profile.default]\naddress = "{NOBODY}"\n')
    with pytest.raises(InputError) as caught:
        await connect(profile="staging")
    assert path in str(caught.value)
    assert str(caught.value).endswith("Profile 'staging' not found")


async def test_a_broken_file_is_named_with_the_reason_but_not_with_what_stands_in_it(configure: Configure) -> None:
    path = configure('[profile.default]\napi_key = "very secret\n')
    with pytest.raises(InputError) as caught:
        await connect()
    assert path in str(caught.value)
    assert "TOML parse error at line 2" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_certificate_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_TLS_CLIENT_CERT_PATH", "/nowhere/client.pem")
    with pytest.raises(InputError, match=r"/nowhere/client\.pem"):
        await connect()


async def test_an_option_that_does_not_exist_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="no_such_option"):
        await connect(no_such_option=1)


# --- the end of the process ---

CLIENT_ONLY = """
import asyncio, sys
from standfast.temporal.client.connections import connect

async def main():
    global client  # a client that is in use until the end makes a crash there likelier
    client = await connect(sys.argv[1])
    print([run.id async for run in client.list_workflows()])

asyncio.run(main())
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.slow
async def test_a_process_that_made_a_client_ends_with_its_own_exit_code(server: DevServer) -> None:
    for code in [0, 3] * 6:
        with start_program(CLIENT_ONLY, server.address, str(code)) as program:
            output, errors = program.communicate(timeout=30)
        assert (program.returncode, output, errors) == (code, "[]\n", "")


TWO_CLIENTS = """
import asyncio, atexit
from standfast.temporal.client.connections import connect

before = atexit._ncallbacks()
asyncio.run(connect(lazy=True))
asyncio.run(connect(lazy=True))
print(atexit._ncallbacks() - before)
"""


@pytest.mark.slow
async def test_what_lets_it_end_is_registered_once_a_process() -> None:
    with start_program(TWO_CLIENTS) as program:
        assert program.communicate(timeout=30) == ("1\n", "")
