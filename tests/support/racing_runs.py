"""Runs that wait at gates of every kind, for races; and the process of a worker that carries them out.

Each effect is a line of a file: the race, and the amount that was shipped.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from temporalio.worker import Worker

from standfast import Agent, Approval, pipeline, sqlite_store, tool
from standfast.temporal import SlackButtons, StandfastPlugin, Webhook, connect
from standfast.testing import ScriptedModel
from support.transcripts import asks_for, call

DOORS = ("page", "api", "agui", "slack", "link", "command", "client", "update", "signal")
PEOPLE = [*(f"{door}{number}" for door in DOORS for number in (1, 2, 3)), "last1", "last2"]
SOON = 2.0  # seconds

GATES: dict[str, Approval] = {
    "plain": Approval(message="Ship it?"),
    "both": Approval(message="Ship both?"),
    "quorum": Approval(message="Ship it?", approvers=PEOPLE, quorum=2),
    "rejects": Approval(message="Ship it?", timeout=SOON, on_timeout="reject"),
    "approves": Approval(message="Ship it?", timeout=SOON, on_timeout="approve"),
    "reminds": Approval(message="Ship it?", remind_every=1.0),
    "escalates": Approval(
        message="Ship it?", timeout=SOON, on_timeout="escalate", escalate_to=Approval(approvers=PEOPLE, timeout="1h")
    ),
}


def _shipping(name: str, approval: Approval | None) -> Any:
    @tool(name=f"ship_{name}", approval=approval)
    async def ship(race: str, amount: int) -> str:
        """Ship something."""
        with Path(os.environ["EFFECTS"]).open("a") as file:
            file.write(json.dumps([race, amount]) + "\n")
        return f"shipped {amount}"

    return ship


AGENTS = {name: Agent(f"race-{name}", tools=[_shipping(name, gate)]) for name, gate in GATES.items()}
LINE = (
    pipeline("race-line")
    .step("c1", approval=Approval(message="Ship it?", on_reject="end"))
    .step("ship", run=_shipping("line", None), input=lambda ctx: {"race": ctx.input["race"], "amount": 1})
    .build()
)


def asked(messages: Any, tools: Any) -> Any:
    """Answer as a model that ships once what its user names; both, if there are two."""
    if messages[-1].role == "tool":
        return "done"
    race = messages[-1].content
    ids = ("c1", "c2") if race.startswith("both") else ("c1",)
    return asks_for(*(call(tools[0].name, one, race=race, amount=1) for one in ids))


async def main() -> None:
    client = await connect(os.environ["ADDRESS"])
    slack = Webhook(url=os.environ["SLACK"], format="slack", slack_buttons=SlackButtons(), name="slack")
    plugin = StandfastPlugin(
        agents=list(AGENTS.values()),
        pipelines=[LINE],
        store=sqlite_store(os.environ["STORE"]),
        llm=ScriptedModel(asked),
        webhooks=[slack],
    )
    await Worker(client, task_queue=os.environ["QUEUE"], plugins=[plugin]).run()


if __name__ == "__main__":
    asyncio.run(main())
