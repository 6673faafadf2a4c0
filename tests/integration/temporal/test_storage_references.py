"""References to an external storage: one that no worker has stops no run; one that has lost an object is survived."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from support.questions import ask
from support.resets import reset, tasks
from support.temporal_runs import (
    Run,
    Temporal,
    check_healthy,
    events,
    pending,
    question,
    result,
    until,
    until_over,
    waiting,
    wedges,
)
from support.transcripts import asks_for, call, tool_contents
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.converter import ExternalStorage, StorageDriver, StorageDriverClaim
from temporalio.worker import Replayer, Worker

from standfast import Agent, Approval, InputError, Message, tool
from standfast.temporal import StandfastPlugin, approval
from standfast.temporal.client.runs.stuck import find_stuck
from standfast.testing import ScriptedModel

MARK = "__temporal_external_storage_reference"
REFERENCES = {
    "marked": Payload(metadata={"encoding": b"json/plain", MARK: b"true"}, data=b'{"nonsense": 1}'),
    "encoded": Payload(metadata={"encoding": b"json/external-storage-reference"}, data=b'{"nonsense": 1}'),
}


async def send(run: Run, name: str, reference: Payload) -> None:
    """Send it by signal and by update, as any program can."""
    await run.signal(name, RawValue(reference))
    with pytest.raises(WorkflowUpdateFailedError):
        await run.execute_update("decide" if name == "approve" else name, RawValue(reference))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("kind", REFERENCES)
async def test_a_reference_that_somebody_sends_wedges_no_run(temporal: Temporal, kind: str) -> None:
    async with question(temporal) as run:
        for name in ("message", "answer", "resume"):
            await send(run, name, REFERENCES[kind])
        await check_healthy(run)
    plugin = StandfastPlugin(agents=[Agent("clerk")], store=temporal.store, llm=ScriptedModel([]))
    await Replayer(workflows=[], plugins=[plugin]).replay_workflow(await run.fetch_history())


@workflow.defn(name="own")
class Own:
    """A user's workflow, with a gate."""

    @workflow.run
    async def run(self) -> Any:
        return (await approval("ok"))["status"]


@workflow.defn(name="brief")
class Brief:
    """The same, with a deadline."""

    @workflow.run
    async def run(self) -> Any:
        return (await approval("ok", timeout="2s"))["status"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("kind", REFERENCES)
async def test_nor_a_workflow_of_a_users_own_at_its_gate(temporal: Temporal, kind: str) -> None:
    plugin = StandfastPlugin(store=temporal.store)
    async with Worker(temporal.client, task_queue=temporal.name, plugins=[plugin], workflows=[Own]):
        run: Run = await temporal.client.start_workflow(Own.run, id=temporal.name, task_queue=temporal.name)
        await pending(run)
        await send(run, "approve", REFERENCES[kind])
        await run.signal("approve", {"gate": "ok", "by": "ada"})
        assert await result(run) == "approved"
        await check_healthy(run)


async def test_an_input_that_is_a_reference_fails_the_run(temporal: Temporal) -> None:
    async with temporal.worker(Agent("helper"), llm=ScriptedModel(["done"])):
        for reference in REFERENCES.values():
            run = await temporal.start_raw("helper", RawValue(reference))
            with pytest.raises(Exception, match="Workflow execution failed"):
                await run.result()
            await check_healthy(run)


# --- with an external storage ---


class Bucket(StorageDriver):
    """An external storage that may lose what it has."""

    def __init__(self) -> None:
        self.has: dict[str, bytes] = {}
        self.read_once: set[str] = set()  # each is lost after one read

    def name(self) -> str:
        return "bucket"

    async def store(self, context: Any, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        keys = [uuid4().hex for _ in payloads]
        self.has |= {key: one.SerializeToString() for key, one in zip(keys, payloads, strict=True)}
        return [StorageDriverClaim(claim_data={"key": key}) for key in keys]

    async def retrieve(self, context: Any, claims: Sequence[StorageDriverClaim]) -> list[Payload]:
        keys = [claim.claim_data["key"] for claim in claims]
        found = [Payload.FromString(self.has[key]) for key in keys]
        for key in self.read_once.intersection(keys):
            del self.has[key]
        return found

    @property
    def last(self) -> str:
        return next(reversed(self.has))


LARGE = "x" * 3_000


async def with_storage(temporal: Temporal) -> tuple[Temporal, Bucket]:
    bucket = Bucket()
    config: Any = (await temporal.elsewhere()).client.config(active_config=True)
    storage = ExternalStorage(drivers=[bucket], payload_size_threshold=2_000)
    converter = replace(config["data_converter"], external_storage=storage)
    return replace(temporal, client=Client(**{**config, "data_converter": converter})), bucket


def asks_and_posts() -> tuple[Agent, ScriptedModel, list[str]]:
    """Return an agent that asks a person, and then for an approval."""
    posted: list[str] = []

    @tool(approval=Approval())
    async def post(text: str) -> str:
        posted.append(text)
        return "ok"

    def answer(messages: Sequence[Message], tools: Any) -> Any:
        turns = [asks_for(call("ask", "c1", question="Who?")), asks_for(call("post", "p1", text="hi")), "done"]
        return turns[sum(one.role == "tool" for one in messages)]

    return Agent("clerk", tools=[ask, post]), ScriptedModel(answer), posted


async def gate_of(run: Run) -> dict[str, Any]:
    async def found() -> list[dict[str, Any]]:
        return [item for item in await waiting(run) if item["kind"] == "approval"]

    item: dict[str, Any] = (await until(found))[0]
    return item


async def test_what_was_sent_beside_a_lost_payload_counts_after_the_rescue(temporal: Temporal) -> None:
    (here, bucket), (agent, llm, posted) = await with_storage(temporal), asks_and_posts()
    async with here.worker(agent, llm=llm):
        run = await here.start(agent)
        await pending(run)
        [lost] = await here.client.data_converter.encode([{"text": LARGE}])
        del bucket.has[bucket.last]
        at = len(await tasks(run)) - 1
        for name in ("message", "answer", "approve"):
            await run.signal(name, RawValue(lost))

        async def wedged() -> bool:
            return bool(wedges(await events(run)))

        await until(wedged)
        (stuck,) = await until(lambda: find_stuck(here.client, here.name, 100))
        assert "The external storage cannot read a value: KeyError" in stuck.why
        assert stuck.rescue.startswith("restore in the external storage what was sent; or drop everything sent since")
        new = await reset(here, run, at)
        await here.people.message(run.id, "hurry", id="m1")
        await here.people.answer(run.id, "Ada", id="a1")
        item = await gate_of(new)
        await here.people.decide(run.id, "p1", "approve", by="ada", digest=item["digest"], id="d1")
        assert (await result(new))["status"] == "complete"
        await check_healthy(new)
    assert (posted, tool_contents(await temporal.messages())) == (["hi"], [("c1", "Ada"), ("p1", "ok")])


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", ["answer", "approve", "message"])
async def test_what_may_have_been_refused_before_a_reset_is_refused_if_nobody_can_tell(
    temporal: Temporal, name: str
) -> None:
    """A lost payload may belong to any signal with its name."""
    (here, bucket), (agent, llm, posted) = await with_storage(temporal), asks_and_posts()
    people = here.people
    async with here.worker(agent, llm=llm):
        run = await here.start(agent)
        await pending(run)
        if name == "approve":
            await people.answer(run.id, "Ada")
            await gate_of(run)
        await people.message(run.id, "hello")  # so that there is a task in which it waits
        at = len(await tasks(run)) - 1
        whose = {"tool_call_id": "c0"} if name == "answer" else {}
        [payload] = await here.client.data_converter.encode([{"id": "s0", "text": LARGE, **whose}])
        key = bucket.last
        await run.signal(name, RawValue(payload))

        async def known() -> bool:
            return bool(await run.query("standfast.outcome", "s0"))

        await until(known)
        del bucket.has[key]
        new = await reset(here, run, at)
        refusal = pytest.raises(InputError, match=r"does not count.*without an id")
        if name == "message":
            with refusal:
                await people.message(run.id, "hurry", id="s1")
            await new.signal("message", {"text": "slowly"})
        if name == "answer":
            with refusal:
                await people.answer(run.id, "Bob", id="s1")
            await new.signal("answer", {"text": "Ada"})
        elif name == "message":
            await people.answer(run.id, "Ada")
        item = await gate_of(new)
        given: dict[str, Any] = {"by": "ada", "digest": item["digest"]}
        if name == "approve":
            with refusal:
                await people.decide(run.id, "p1", "approve", **given, id="s1")
            await new.signal("approve", {"gate": "p1", **given})
        else:
            await people.decide(run.id, "p1", "approve", **given)
        assert (await result(new))["status"] == "complete"
        await check_healthy(new)
    messages = await temporal.messages()
    assert (posted, tool_contents(messages)) == (["hi"], [("c1", "Ada"), ("p1", "ok")])
    said = [one.content for one in messages if one.role == "user"]
    assert ("hurry" in said, "slowly" in said) == (False, name == "message")


async def test_a_lost_decision_from_before_a_deadline_is_refused_and_the_next_one_counts(temporal: Temporal) -> None:
    here, bucket = await with_storage(temporal)
    plugin = StandfastPlugin(store=temporal.store)
    async with Worker(here.client, task_queue=temporal.name, plugins=[plugin], workflows=[Brief]):
        run: WorkflowHandle[Any, Any] = await here.client.start_workflow(
            Brief.run, id=temporal.name, task_queue=temporal.name
        )
        (item,) = await pending(run)
    await run.signal("reject", {"gate": "ok", "by": "eve", "digest": item["digest"], "comment": LARGE, "id": "d0"})
    bucket.read_once.add(bucket.last)
    await run.signal("reject", {"gate": "ok", "by": "ada", "digest": item["digest"], "id": "d1"})
    await until_over(item)
    async with Worker(here.client, task_queue=temporal.name, plugins=[plugin], workflows=[Brief]):
        ended: Any = await result(run)
    assert ended == "rejected"
    told = [(row.by, row.refused) for row in await temporal.store.load_decisions(str(run.first_execution_run_id))]
    assert told[1] == ("ada", None)
    assert told[0][0] == "eve"
    assert "and the time it was sent is unknown: The external storage" in str(told[0][1])
