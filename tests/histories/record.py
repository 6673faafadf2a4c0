"""Records the histories beside this file: `python tests/histories/record.py`, in about a minute for all of them.

They are recorded once and then kept: a later version must be able to go on with runs that an earlier one began. A new
file is added when there is something new to go on with. With names, or `--all`, existing ones are recorded again, which
is a breaking change, and the changelog has it.
"""

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from later_recordings import RECORDINGS
from recordings import World
from temporalio.client import Client, WorkflowFailureError
from temporalio.worker import Worker

from standfast import Agent, Approval, InterruptError, Loop, Message, ModelError, Step, pipeline, sqlite_store, tool
from standfast.temporal import StandfastClient, StandfastPlugin, connect, start_agent, start_pipeline
from standfast.temporal.workflows.run import run_lifetime
from standfast.testing import ScriptedModel, dev_server

FOLDER = Path(__file__).parent
Drive = Callable[[StandfastClient, Any], Awaitable[None]]


@tool(safe_to_retry=True, parallel=True)
async def look(what: str) -> str:
    """Look something up."""
    return f"{what}: " + "found " * 40


@tool
async def post(text: str) -> str:
    """Post a message."""
    return "posted"


@tool
async def hang(text: str) -> str:
    """Hang until somebody cancels."""
    await asyncio.sleep(60)
    return "done"


@tool
async def ask(question: str) -> str:
    """Ask a person."""
    raise InterruptError(question)


@tool(approval=Approval(message="Ship it?", approvers=["ada", "bob"], quorum=2))
async def ship(what: str) -> str:
    """Ship something."""
    return "shipped"


LEADS = Approval(approvers=["eve"], timeout="1d")


@tool(approval=Approval(approvers=["ada"], timeout="2s", remind_every="1s", on_timeout="escalate", escalate_to=LEADS))
async def publish(what: str) -> str:
    """Publish something."""
    return "published"


helper = Agent("helper", instructions="Help.", tools=[look])
clerk = Agent("clerk", model="scripted:one", instructions="Serve.", tools=[look, post, hang, ask, helper])
careful = Agent("careful", tools=[ship, publish, look])
patient = Agent("patient", tools=[look], loop=Loop(max_iterations=300))


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


async def _pending(people: StandfastClient, run: Any) -> None:
    while not await people.pending(run.id):
        await asyncio.sleep(0.02)


async def _running(people: StandfastClient, run: Any) -> None:
    while not (await people.status(run.id)).get("running"):
        await asyncio.sleep(0.02)


async def _nothing(people: StandfastClient, run: Any) -> None:
    """Let it run."""


async def _answer(people: StandfastClient, run: Any) -> None:
    await _pending(people, run)
    await run.signal("answer", {"nonsense": True})
    await people.message(run.id, "and one thing more")
    await people.export(run.id)
    await people.answer(run.id, "Ada", by="bob")


async def _resume(people: StandfastClient, run: Any) -> None:
    await _pending(people, run)
    await people.resume(run.id, model="scripted:two", by="bob")


async def _cancel(people: StandfastClient, run: Any) -> None:
    await _running(people, run)
    await run.cancel()


def answers(*steps: Any) -> ScriptedModel:
    return ScriptedModel(list(steps))


class BrokenOnce:
    """A model whose instructions cannot be kept the first time."""

    def __init__(self) -> None:
        self.calls = 0

    async def chat(self, messages: list[Message], tools: Any, **settings: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise ModelError("overloaded", transient=True)
        return {"text": "better now"}


def _hundred(messages: list[Message], tools: Any) -> Any:
    steps = sum(message.role == "assistant" for message in messages)
    return "enough" if steps == 103 else {"tool_calls": [call("look", what=str(steps))]}


SCENARIOS: dict[str, tuple[Agent, Any, Drive]] = {
    "tools": (clerk, lambda: answers({"text": "I look.", "tool_calls": [call("look", what="a"), call("look", what="b"),
                                      call("post", text="x"), call("nope")]}, "done"), _nothing),
    "question": (clerk, lambda: answers({"tool_calls": [call("ask", question="Who?"), call("post", text="x")]}, "done",
                                        "and done"), _answer),
    "cancelled": (clerk, lambda: answers({"tool_calls": [call("hang", text="x")]}), _cancel),
    "retried": (clerk, BrokenOnce, _nothing),
    "child": (clerk, lambda: answers({"tool_calls": [call("helper", message="Look!")]},
                                     {"tool_calls": [call("look", what="z")]}, "seen", "done"), _nothing),
    "long": (patient, lambda: ScriptedModel(_hundred), _nothing),
}  # fmt: skip


async def _race(people: StandfastClient, run: Any) -> None:
    """Decide all at once, by those who may and those who may not; the second gate is left to its time."""
    await _pending(people, run)
    await run.signal("approve", {"gate": "second", "by": "mallory"})
    decisions: list[tuple[Literal["approve", "reject"], str]] = [("approve", "ada"), ("reject", "mallory"),
                                                                 ("approve", "ada"), ("approve", "bob")]  # fmt: skip
    racing = [people.decide(run.id, "first", decision, by=by, comment=f"says {by}") for decision, by in decisions]
    await asyncio.gather(*racing, return_exceptions=True)


gated = (
    pipeline("gated")
    .parallel("both", Step("left", agent=helper), Step("right", run=post, input=lambda ctx: {"text": "right"}))
    .step("first", approval=Approval(message="First?", approvers=["ada", "bob"], quorum=2, timeout="1d"))
    .step("second", approval=Approval(approvers=["eve"], timeout="1s", on_timeout="approve"))
    .map("each", Step("one", run=look, input=lambda ctx: {"what": ctx.item}), over=lambda ctx: ["a", "b", "c"])
    .build()
)
SCENARIOS["gates"] = (helper, lambda: answers("left"), _race)


async def _approve(people: StandfastClient, run: Any) -> None:
    """Decide on one call with an edit, reject another one, and wait until others are asked about the third."""
    while len(await people.pending(run.id)) < 3:
        await asyncio.sleep(0.02)
    edit, digests = {"what": "less"}, {item["name"]: item["digest"] for item in await people.pending(run.id)}
    for by in ("mallory", "ada", "bob"):
        deciding = people.decide(run.id, "a", "approve", by=by, edit=edit, digest=digests["a"])
        await asyncio.gather(deciding, return_exceptions=True)
    await run.signal("reject", {"gate": "b", "by": "bob", "comment": "too much", "digest": digests["b"]})
    while not any(item["approvers"] == ["eve"] for item in await people.pending(run.id)):
        await asyncio.sleep(0.02)
    (digest,) = [item["digest"] for item in await people.pending(run.id) if item["name"] == "c"]
    await people.decide(run.id, "c", "approve", by="eve", digest=digest)


async def _approve_late(people: StandfastClient, run: Any) -> None:
    """Decide when the run has gone on as new, in the middle of a quorum."""
    item = (await _pending_now(people, run))[0]
    gate, digest = item["name"], item["digest"]
    await people.decide(run.id, gate, "approve", by="ada", digest=digest)
    for number in range(40):
        await run.signal("approve", {"gate": gate, "by": f"mallory {number}", "digest": digest})
    while (await people.run(run.id).describe()).run_id == run.result_run_id:
        await asyncio.sleep(0.02)
    await _pending(people, run)
    await people.decide(run.id, gate, "approve", by="bob", digest=digest)


async def _pending_now(people: StandfastClient, run: Any) -> Any:
    await _pending(people, run)
    return await people.pending(run.id)


ASKS = {"tool_calls": [{"id": "a", **call("ship", what="all")}, {"id": "b", **call("ship", what="more")},
                       {"id": "c", **call("publish", what="it")}, {"id": "d", **call("look", what="x")}]}  # fmt: skip
SCENARIOS["approvals"] = (careful, lambda: answers(ASKS, "done"), _approve)
MOVED = {  # recorded with short runs; what is kept is the last of the chain
    "approvals_moved": (careful, lambda: answers({"tool_calls": [call("ship", what="all")]}, "done"), _approve_late),
    "gates_moved": (helper, lambda: answers("left"), _approve_late),
}
MOVED["approvals_stayed"] = MOVED["approvals_moved"]  # since gates stay on the board until then
SCENARIOS |= MOVED


async def record(client: Client, name: str, folder: Path) -> None:
    agent, model, drive = SCENARIOS[name]
    async with sqlite_store(folder / f"{name}.db") as store:
        plugin = StandfastPlugin(agents=[helper, clerk, patient, careful], pipelines=[gated], store=store, llm=model())
        async with Worker(client, task_queue=name, plugins=[plugin]):
            if name.startswith("gates"):
                run = await start_pipeline(client, gated, run_key=name, user_id="zoe", task_queue=name)
            else:
                run = await start_agent(client, agent, message="Go", session_id=name, task_queue=name)
            first = run.result_run_id
            await drive(StandfastClient(client), run)
            try:
                await run.result()
            except WorkflowFailureError as error:
                print(f"{name}: {error.cause}")  # noqa: T201
            ids = {run.id: None if name in MOVED else first}
            if name == "child":
                async for child in client.list_workflows("WorkflowType = 'helper'"):
                    ids[child.id] = child.run_id
            await save(client, name, list(ids.items()))


async def save(client: Client, name: str, runs: Sequence[tuple[str, str | None]]) -> None:
    """Write the histories of runs, without what is of this machine."""
    for number, (workflow_id, run_id) in enumerate(runs):
        history = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        text = re.sub(r'"identity": "[^"]*"', '"identity": "worker"', json.dumps(history.to_json_dict()))
        text = re.sub(r'"\d+@[^"]*"', '"worker"', text)
        text = re.sub(r'"stackTrace": "(?:[^"\\]|\\.)*"', '"stackTrace": ""', text)
        path = FOLDER / (f"{name}.json" if number == 0 else f"{name}_{number}.json")
        path.write_text(json.dumps({"id": workflow_id, "history": json.loads(text)}) + "\n")


async def main() -> None:
    """Record what was asked for, or what is missing; a run that does not end within a minute is an error."""
    known = [*SCENARIOS, *RECORDINGS]
    names = sys.argv[1:] or [name for name in known if not (FOLDER / f"{name}.json").exists()]
    with tempfile.TemporaryDirectory() as folder:
        async with dev_server() as server:
            client = await connect(server.address)
            for name in known if names == ["--all"] else names:
                async with asyncio.timeout(60):
                    run_lifetime.EVENTS = 60 if name in MOVED else 4_000
                    if name in RECORDINGS:
                        await save(client, name, await RECORDINGS[name](World(client, name, Path(folder))))
                    else:
                        await record(client, name, Path(folder))
                print(f"{name}: recorded")  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
