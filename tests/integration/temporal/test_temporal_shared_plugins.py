"""Two workers of one process may share a plugin: the second continues when the first one stops."""

from pathlib import Path

from support.temporal_runs import Temporal, until
from temporalio.worker import Worker

from standfast import Agent, sqlite_store
from standfast.temporal import StandfastPlugin
from standfast.testing import ScriptedModel


async def test_a_worker_stays_known_when_another_one_of_its_plugin_stops(temporal: Temporal, tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    async with sqlite_store(path) as store, sqlite_store(path) as other:
        plugin = StandfastPlugin(agents=[Agent("helper")], store=store, llm=ScriptedModel([]))
        host = plugin._host
        async with Worker(temporal.client, task_queue=temporal.name, plugins=[plugin]):
            async with Worker(temporal.client, task_queue=f"{temporal.name}-2", plugins=[plugin]):
                await until(lambda: host.identity.is_known)
            assert host.identity.is_known
            assert not await other.hold(host.identity.name)
        assert await other.hold(host.identity.name)
