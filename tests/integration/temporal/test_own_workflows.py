"""User workflows that run agents."""

from typing import Any

from support.own_workflows import Intake
from support.temporal_runs import Run, Temporal, result, until
from support.transcripts import asks_for, call
from temporalio.worker import Worker

from standfast import Agent, Approval, tool
from standfast.temporal import StandfastPlugin
from standfast.testing import ScriptedModel


@tool(approval=Approval(approvers=["ada"]))
async def close_issue(number: int) -> str:
    """Close an issue."""
    return f"closed {number}"


async def test_a_workflow_of_the_users_runs_an_agent_that_waits_for_people_as_any_other(temporal: Temporal) -> None:
    model = ScriptedModel([asks_for(call("close_issue", "c1", number=42)), "Closed."])
    triage = Agent("triage", tools=[close_issue])
    plugin = StandfastPlugin(agents=[triage], store=temporal.store, llm=model)
    async with Worker(temporal.client, task_queue=temporal.name, workflows=[Intake], plugins=[plugin]):
        session = temporal.session()
        run: Run = await temporal.client.start_workflow(
            "Intake", session, id=f"intake/{session}", task_queue=temporal.name
        )
        await until(lambda: temporal.people.digest(f"triage/{session}", "c1"))
        await temporal.people.decide(f"triage/{session}", "c1", "approve", by="ada")
        ended: Any = await result(run)
    assert ended == "Closed."
    assert [message.role for message in await temporal.messages()] == ["user", "assistant", "tool", "assistant"]
