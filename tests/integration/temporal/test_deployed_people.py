"""Deploys that change the approvers or an agent's name, under existing runs and sessions."""

from functools import partial
from typing import Any

import pytest
from support.deploys import QUESTION, by_turn, clerk, parked, read, waits_for
from support.drivers import Driver
from support.questions import ask
from support.temporal_runs import Run, Temporal, check_healthy, pending, result, until
from support.transcripts import asks_for, call

from standfast import Agent, Approval, DefinitionError, InputError, Tool, pipeline, tool
from standfast.temporal import start_pipeline
from standfast.testing import ScriptedModel

BOTH, ADA = Approval(message="Pay?", approvers=["ada", "bob"]), Approval(message="Pay?", approvers=["ada"])
PAYS = by_turn(asks_for(call("pay", "c1", amount=5)), "done")


def pay(approval: Any) -> Tool[..., Any]:
    @tool(approval=approval)
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    return pay


async def at_gate(temporal: Temporal, agent: Agent) -> Run:
    async with temporal.worker(agent, llm=ScriptedModel(PAYS)):
        run = await temporal.start(agent)
        await pending(run)
    return run


def only_ada_above_three(asked: Any) -> Approval | None:
    return ADA if asked.arguments["amount"] > 3 else None


def broken(asked: Any) -> Approval | None:
    raise ValueError("no rule")


# --- who decides ---


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("after", [ADA, only_ada_above_three], ids=["a rule", "a function"])
async def test_who_was_removed_from_the_approvers_does_not_decide_at_an_open_gate(
    temporal: Temporal, after: Any
) -> None:
    run = await at_gate(temporal, clerk(pay(BOTH)))
    async with temporal.worker(clerk(pay(after)), llm=ScriptedModel(PAYS)):
        with pytest.raises(InputError, match="gate c1: bob may no longer decide it; ada may"):
            await temporal.people.decide(run.id, "c1", "approve", by="bob")
        await temporal.people.decide(run.id, "c1", "approve", by="ada")
        assert (await result(run))["status"] == "complete"
    assert read(await temporal.messages()) == {"c1": "paid 5"}
    decided = await temporal.store.load_decisions(run.result_run_id)
    assert [(one.by, one.refused is None) for one in decided] == [("bob", False), ("ada", True)]


async def test_nobody_decides_by_a_rule_that_raises(temporal: Temporal) -> None:
    run = await at_gate(temporal, clerk(pay(BOTH)))
    async with temporal.worker(clerk(pay(broken)), llm=ScriptedModel(PAYS)):
        with pytest.raises(InputError, match="gate c1: its approval raised ValueError: no rule"):
            await temporal.people.decide(run.id, "c1", "approve", by="bob")


async def test_a_person_who_is_asked_since_the_gate_was_opened_does_not_decide_at_it(temporal: Temporal) -> None:
    run = await at_gate(temporal, clerk(pay(ADA)))
    async with temporal.worker(clerk(pay(BOTH)), llm=ScriptedModel(PAYS)):
        with pytest.raises(InputError, match="bob may not decide it; ada may"):
            await temporal.people.decide(run.id, "c1", "approve", by="bob")


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("after", [clerk(), clerk(pay(None)), Agent("other")], ids=["no tool", "no gate", "no agent"])
async def test_what_was_recorded_holds_where_nothing_is_declared_any_more(temporal: Temporal, after: Agent) -> None:
    run = await at_gate(temporal, clerk(pay(BOTH)))
    async with temporal.worker(after, llm=ScriptedModel(PAYS)):
        await temporal.people.decide(run.id, "c1", "reject", by="bob", comment="no")
        if after.name == "clerk":
            assert (await result(run))["status"] == "complete"


async def test_who_was_removed_from_a_pipelines_gate_does_not_decide_at_it(temporal: Temporal) -> None:
    def line(approval: Approval) -> Any:
        return pipeline("line").step("check", approval=approval).build()

    async with temporal.worker(pipelines=[line(BOTH)]):
        run = await start_pipeline(
            temporal.client, "line", input={}, run_key=temporal.session(), task_queue=temporal.name
        )
        await pending(run)
    async with temporal.worker(pipelines=[line(ADA)]):
        with pytest.raises(InputError, match="gate check: bob may no longer decide it; ada may"):
            await temporal.people.decide(run.id, "check", "approve", by="bob")
        await temporal.people.decide(run.id, "check", "approve", by="ada")
        assert (await result(run))["status"] == "complete"


async def test_who_was_removed_does_not_decide_with_either_driver(driver: Driver) -> None:
    approval = {"gate": "c1", "decision": "approve"}
    rules = iter([BOTH])  # when the gate is opened; everyone who decides is judged by the other
    changing = clerk(pay(lambda asked: next(rules, ADA)))
    ended = await driver.run(
        changing, ScriptedModel(PAYS), decisions=[approval | {"by": "bob"}, approval | {"by": "ada"}]
    )
    assert ended.refused == ("gate c1: bob may no longer decide it; ada may",)


# --- an agent's former names ---


async def test_a_renamed_agent_continues_with_its_sessions_in_both_drivers(driver: Driver) -> None:
    before, after = Agent("clerk"), Agent("assistant", formerly=["clerk"])
    assert (await driver.run(before, ScriptedModel(["one"]))).status == "complete"
    assert (await driver.run(after, ScriptedModel(["two"]), message="again")).status == "complete"
    messages = await driver.temporal.messages()
    assert [message.content for message in messages] == ["go", "one", "again", "two"]


async def test_a_run_in_flight_continues_under_the_name_that_its_agent_had(temporal: Temporal) -> None:
    script = by_turn(QUESTION, asks_for(call("pay", "c1", amount=5)), "done")
    run = await parked(temporal, clerk(), script)
    renamed = Agent("assistant", tools=[ask, pay(None)], formerly=["clerk"])
    async with temporal.worker(renamed, llm=ScriptedModel(script)):
        await run.execute_update("answer", {"text": "yes"})
        assert (await result(run))["status"] == "complete"
    assert read(await temporal.messages()) == {"c1": "paid 5"}
    await check_healthy(run)


async def test_an_agent_that_is_a_tool_is_called_by_its_old_name_where_that_was_recorded(temporal: Temporal) -> None:
    """The call stands at its gate in the caller's session; the child's workflow type is the name in the call."""
    script = by_turn(QUESTION, asks_for(call("helper", "c1", message="help")), "done")

    def model(messages: Any, tools: Any) -> Any:
        return "helped" if messages[-1].content == "help" else script(messages, tools)

    helper = Agent("helper")
    async with temporal.worker(clerk(helper), helper, llm=ScriptedModel(model)):
        run = await temporal.start("clerk")
        await pending(run)
    renamed = Agent("assistant", formerly=["helper"])
    async with temporal.worker(clerk(renamed), renamed, llm=ScriptedModel(model)):
        await run.execute_update("answer", {"text": "yes"})
        assert (await result(run))["status"] == "complete"
    (told,) = read(await temporal.messages()).values()
    assert told == '{"error": "Tool \\"helper\\" not found. Available tools: ask, assistant"}'


async def test_without_its_former_name_the_run_of_a_renamed_agent_is_shown(temporal: Temporal) -> None:
    run = await parked(temporal, clerk(), by_turn(QUESTION, "done"))
    async with temporal.worker(Agent("assistant", tools=[ask]), llm=ScriptedModel([])):
        await run.execute_update("answer", {"text": "yes"})
        await until(partial(waits_for, run, "worker"))


@pytest.mark.parametrize("formerly", ["clerk", ["Clerk"], [5], ["a"], ["b", "b"], 5])
def test_former_names_that_cannot_be_are_refused(formerly: Any) -> None:
    with pytest.raises(DefinitionError, match="formerly"):
        Agent("a", formerly=formerly)


async def test_two_agents_of_a_worker_do_not_share_a_former_name(temporal: Temporal) -> None:
    with pytest.raises(DefinitionError, match="two are named 'clerk'"):
        async with temporal.worker(clerk(), Agent("b", formerly=["clerk"]), llm=ScriptedModel([])):
            pass
