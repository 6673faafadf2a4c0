"""A SQLite file serves the workers of one machine; a worker refuses before workers elsewhere begin sessions again."""

import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.temporal_runs import Temporal

from standfast import Agent, InputError, memory_store, sqlite_store
from standfast.stores import open_store
from standfast.temporal import StandfastPlugin
from standfast.temporal.plugin import check_machine
from standfast.testing import ScriptedModel

AGENT = Agent("clerk")
ELSEWHERE = "192.0.2.7:7233"  # an address reserved for documents


def client_of(target: str) -> Any:
    return SimpleNamespace(service_client=SimpleNamespace(config=SimpleNamespace(target_host=target)))


async def test_a_file_and_a_server_on_this_machine_go_together(temporal: Temporal) -> None:
    await check_machine(temporal.store, temporal.client)
    for target in ("localhost:7233", "127.0.0.1:7233", "127.1.2.3:7233", "[::1]:7233", f"{socket.gethostname()}:7233"):
        await check_machine(temporal.store, client_of(target))


async def test_a_file_is_refused_with_a_server_elsewhere_unless_all_workers_are_here(temporal: Temporal) -> None:
    store = sqlite_store("standfast.db")
    with pytest.raises(InputError, match=r"sqlite_store\(.*192\.0\.2\.7:7233 is not on it.*single_machine=True"):
        await check_machine(store, client_of(ELSEWHERE))
    plugin = StandfastPlugin(agents=[AGENT], store=temporal.store, llm=ScriptedModel([]))
    with pytest.raises(InputError, match="postgres_store"):
        await plugin.check_store(client_of(ELSEWHERE))
    alone = StandfastPlugin(agents=[AGENT], store=temporal.store, llm=ScriptedModel([]), single_machine=True)
    await alone.check_store(client_of(ELSEWHERE))


@pytest.mark.parametrize(
    "store", [memory_store(), open_store("postgresql://ada@db/agents")], ids=["memory", "database"]
)
async def test_a_store_without_a_file_is_not_asked_where_it_is(store: Any) -> None:
    await check_machine(cast(Any, store), client_of(ELSEWHERE))
