"""A process whose agent a guardrail has stopped, and that dies by SIGKILL at a write of its store, once.

    python -m support.stopped_calls FOLDER AGENT WINDOW [ADDRESS QUEUE]

AGENT is `payer`, whose call is stopped, or `talker`: both what is said to it and its answer are. With an address it
is a worker, for which others decide; else it runs the agent, and decides as its approvers. WINDOW is
`before` or `after`, a method of the store and which call of it: "after record_decision 2".
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from standfast import Agent, AgentContext, Approval, Guardrail, Message, ToolCall, is_interrupted, run, tool
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel

FOLDER, NAME, WINDOW, *PLACE = [*sys.argv[1:], "", ""] if __name__ == "__main__" else ["", "payer", ""]


def noted(what: str) -> None:
    with Path(FOLDER, what).open("a") as file:
        print(what, file=file)


@tool(approval=Approval(approvers=["bob"]))
def pay(amount: int) -> str:
    """Pay."""
    noted("paid")
    return "paid"


def large_sums(ctx: AgentContext, call: ToolCall) -> str:
    noted("asked")
    return "more than 100"


def look(ctx: AgentContext, said: Message) -> str:
    noted("asked")
    return "look at it"


def answer(messages: list[Message], tools: Any) -> Any:
    noted("answered")
    if not tools:
        return "a refund"
    calls = {"tool_calls": [{"id": "c1", "name": "pay", "arguments": {"amount": 500}}]}
    return "done" if messages[-1].role == "tool" else calls


payer = Agent("payer", tools=[pay], tool_guardrails=[Guardrail(large_sums, approval=Approval(approvers=["ada"]))])
talker = Agent(
    "talker",
    input_guardrails=[Guardrail(look, approval=Approval(approvers=["bob"]))],
    output_guardrails=[Guardrail(look, approval=Approval(approvers=["ada"]))],
)
agent = {"payer": payer, "talker": talker}[NAME]


class Mortal(SQLiteStore):
    """A store that kills its process around one of its calls, the first time that it comes there."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        when, method, number = WINDOW.split()
        if name != method or Path(FOLDER, "died").exists():
            return found

        async def call(*given: Any, **options: Any) -> Any:
            noted(method)
            is_now = len(Path(FOLDER, method).read_text().splitlines()) == int(number)
            if is_now and when == "before":
                die()
            result = await found(*given, **options)
            if is_now:
                die()
            return result

        return call


def die() -> None:
    Path(FOLDER, "died").touch()
    os.kill(os.getpid(), signal.SIGKILL)


async def decide_until_done(store: SQLiteStore) -> None:
    given: dict[str, Any] = {"store": store, "session_id": "s", "llm": ScriptedModel(answer)}
    is_new = await store.load_session("s") is None
    ended = await run(agent, message="go" if is_new else None, **given)
    while is_interrupted(ended):
        (item,) = ended.approvals
        said = {"gate": item.gate, "decision": "approve", "by": item.approvers[0], "digest": item.digest}
        ended = await run(agent, decisions=[said], **given)
    assert ended.status == "complete"


async def work(store: SQLiteStore, address: str, queue: str) -> None:
    from temporalio.worker import Worker  # a process that runs only an agent starts in half the time without

    from standfast.temporal import StandfastPlugin, connect
    from support.heartbeats import give_up_after

    give_up_after(5)
    plugin = StandfastPlugin(agents=[agent], store=store, llm=ScriptedModel(answer))
    async with Worker(await connect(address), task_queue=queue, plugins=[plugin]):
        await asyncio.Event().wait()


async def main() -> None:
    async with Mortal(Path(FOLDER, "store.db")) as store:
        await (work(store, PLACE[0], PLACE[1]) if PLACE[0] else decide_until_done(store))


if __name__ == "__main__":
    asyncio.run(main())
