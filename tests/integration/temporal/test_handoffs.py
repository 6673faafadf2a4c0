"""An agent hands over the conversation: session, run and limits continue, and the current agent changes."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from support.doubles import echo
from support.drivers import Driver, Ended, OnTemporal
from support.questions import ask_user
from support.temporal_runs import Temporal, check_healthy, pending, result, status
from support.transcripts import asks_for, call, result_of, shape

from standfast import (
    Agent,
    Approval,
    DefinitionError,
    InputError,
    Loop,
    Message,
    ToolContext,
    Usage,
    run,
    tool,
)
from standfast.temporal import StandfastPlugin
from standfast.temporal.client.runs.descriptions import looked_at
from standfast.testing import ScriptedModel

CHARGED: list[tuple[str, str]] = []


@tool(approval=Approval(message="Charge?", approvers=["ada"]))
async def charge(amount: int, ctx: ToolContext) -> str:
    """Charge."""
    CHARGED.append((ctx.agent_name, ctx.idempotency_key))
    return f"charged {amount}"


@tool(safe_to_retry=True)
async def who(ctx: ToolContext) -> str:
    """Say who asks."""
    return ctx.agent_name


refunds = Agent("refunds", model="refunds", instructions="You refund.", tools=[who])
billing = Agent(
    "billing", model="billing", instructions="You bill.", description="Bills.", tools=[charge, who],
    handoffs=["triage", refunds],
)  # fmt: skip
triage = Agent("triage", model="triage", instructions="You triage.", tools=[echo, ask_user], handoffs=[billing])
ALSO = (billing, refunds)

TO_BILLING = call("transfer_to_billing", "h1")
TO_TRIAGE = call("transfer_to_triage", "h2")


class Scripts:
    """The models of the agents, by their names, with all that was asked of them."""

    def __init__(self, **scripts: Sequence[Any]) -> None:
        self.models = {name: ScriptedModel(list(script)) for name, script in scripts.items()}

    def __call__(self, name: str | None) -> ScriptedModel:
        return self.models.get(str(name)) or self.models.setdefault(str(name), ScriptedModel([]))

    def prompts(self, name: str) -> list[str]:
        return [one.messages[0].content for one in self.models[name].calls]

    def tools(self, name: str) -> list[str]:
        return [one.name for one in self.models[name].calls[-1].tools]


def speakers(messages: Sequence[Message]) -> list[str | None]:
    return [message.agent for message in messages if message.role == "assistant"]


async def go(driver: Driver, models: Scripts, agent: Agent = triage, **options: Any) -> Ended:
    return await driver.run(agent, models, also=ALSO, **options)


async def test_after_a_handoff_the_other_agent_answers_with_its_own_model_instructions_and_tools(
    driver: Driver,
) -> None:
    models = Scripts(triage=[asks_for(TO_BILLING)], billing=[asks_for(call("who", "c1")), "It is 5 euros."])
    ended = await go(driver, models)
    assert (ended.status, ended.response, ended.iterations) == ("complete", "It is 5 euros.", 3)
    assert shape(ended.messages) == [
        "user go", "calls h1", "result h1", "calls c1", "result c1", "assistant It is 5 euros.",
    ]  # fmt: skip
    assert json.loads(result_of(ended.messages, "h1")) == {"handed_over_to": "billing"}
    assert "billing" in result_of(ended.messages, "c1")
    assert speakers(ended.messages) == ["triage", "billing", "billing"]
    assert models.tools("triage") == ["echo", "ask_user", "transfer_to_billing"]
    assert models.tools("billing") == ["charge", "who", "transfer_to_triage", "transfer_to_refunds"]
    assert models.prompts("triage") == ["You triage."]
    assert set(models.prompts("billing")) == {"You bill."}
    assert "Bills." in models.models["triage"].calls[0].tools[-1].description


async def test_a_later_message_continues_with_the_agent_that_has_the_conversation(driver: Driver) -> None:
    await go(driver, Scripts(triage=[asks_for(TO_BILLING)], billing=["one"]))
    models = Scripts(billing=["two"])
    ended = await go(driver, models, message="more")
    assert (ended.response, speakers(ended.messages)) == ("two", ["triage", "billing", "billing"])
    assert models.prompts("billing") == ["You bill."]


async def test_an_agent_hands_back_and_on(driver: Driver) -> None:
    models = Scripts(
        triage=[asks_for(TO_BILLING), asks_for(call("transfer_to_billing", "h3"))],
        billing=[asks_for(TO_TRIAGE), asks_for(call("transfer_to_refunds", "h4"))],
        refunds=["done"],
    )
    ended = await go(driver, models)
    assert ended.response == "done"
    assert speakers(ended.messages) == ["triage", "billing", "triage", "billing", "refunds"]


async def test_handing_over_for_ever_ends_at_the_limit_of_the_first_agent(driver: Driver) -> None:
    short = Agent("triage", model="triage", handoffs=[billing], loop=Loop(max_iterations=5))
    handing = Scripts(
        triage=[asks_for(call("transfer_to_billing", f"t{n}")) for n in range(9)],
        billing=[asks_for(call("transfer_to_triage", f"b{n}")) for n in range(9)],
    )
    ended = await go(driver, handing, short)
    assert (ended.status, ended.iterations) == ("max-iterations", 5)


async def test_a_budget_counts_through(driver: Driver) -> None:
    short = Agent("triage", model="triage", handoffs=[billing], loop=Loop(token_budget=100))
    ended = await go(
        driver,
        Scripts(triage=[asks_for(TO_BILLING, tokens=60)], billing=[asks_for(call("who", "c1"), tokens=60)]),
        short,
    )
    assert (ended.status, ended.usage) == ("token-budget-exhausted", Usage(input_tokens=120))


async def test_other_calls_of_the_turn_settle_and_a_second_handoff_is_refused(driver: Driver) -> None:
    turn = asks_for(TO_BILLING, call("echo", "c1", text="x"), call("transfer_to_billing", "h2"))
    ended = await go(driver, Scripts(triage=[turn], billing=["mine"]))
    assert shape(ended.messages) == [
        "user go", "calls h1 c1 h2", "result h1", "result c1", "result h2", "assistant mine",
    ]  # fmt: skip
    assert "one handoff per turn counts" in result_of(ended.messages, "h2")
    assert speakers(ended.messages) == ["triage", "billing"]


async def test_tools_of_another_agent_of_the_conversation_are_not_found(driver: Driver) -> None:
    CHARGED.clear()
    models = Scripts(
        triage=[asks_for(call("charge", "c1", amount=5)), asks_for(TO_BILLING)],
        billing=[asks_for(call("echo", "c2", text="x")), "done"],
    )
    ended = await go(driver, models)
    assert "not found" in result_of(ended.messages, "c1")
    assert "not found" in result_of(ended.messages, "c2")
    assert CHARGED == []


@pytest.mark.slow(but=2)
async def test_a_tool_of_the_other_agent_waits_for_approval(driver: Driver) -> None:
    CHARGED.clear()
    models = Scripts(triage=[asks_for(TO_BILLING)], billing=[asks_for(call("charge", "c1", amount=5)), "done"])
    decision = {"gate": "c1", "decision": "approve", "by": "ada", "edit": {"amount": 7}}
    ended = await go(driver, models, decisions=[decision])
    assert (ended.status, ended.response) == ("complete", "done")
    assert "charged 7" in result_of(ended.messages, "c1")
    ((agent, key),) = CHARGED
    assert (agent, key.rpartition("/")[2]) == ("billing", "c1")


async def test_a_question_beside_a_handoff_is_answered_before_the_other_agent_speaks(driver: Driver) -> None:
    turn = asks_for(TO_BILLING, call("ask_user", "c1", question="Which?"))
    ended = await go(driver, Scripts(triage=[turn], billing=["mine"]), answers=["savings"])
    assert (ended.response, ended.questions) == ("mine", ("Which?",))
    assert speakers(ended.messages) == ["triage", "billing"]


async def test_each_agent_has_its_own_fallbacks(driver: Driver) -> None:
    from standfast import ModelError

    other = Agent("other", model="other", fallback_models=["spare"])
    first = Agent("first", model="first", fallback_models=["second"], handoffs=[other])
    models = Scripts(
        first=[ModelError("no")],
        second=[asks_for(call("transfer_to_other", "h1"))],
        other=[ModelError("no")],
        spare=["ok"],
    )
    ended = await driver.run(first, models, also=(other,))
    assert (ended.status, ended.response) == ("complete", "ok")
    assert [one.model for one in ended.messages if one.role == "assistant"] == ["second", "spare"]


async def test_the_output_of_the_first_agent_holds_for_all(driver: Driver) -> None:
    other = Agent("other", model="other")
    first = Agent("first", model="first", output=dict[str, int], handoffs=[other])
    models = Scripts(first=[asks_for(call("transfer_to_other", "h1"))], other=['{"a": 1}'])
    ended = await driver.run(first, models, also=(other,))
    assert ended.output == {"a": 1}
    assert "matches this schema" in models.prompts("other")[0]


async def test_a_session_belongs_to_the_first_agent(driver: Driver) -> None:
    await go(driver, Scripts(triage=[asks_for(TO_BILLING)], billing=["one"]))
    if not isinstance(driver, OnTemporal):
        with pytest.raises(InputError, match="belongs to agent 'triage', not to 'billing'"):
            await driver.run(billing, ScriptedModel(["no"]))


async def test_an_agent_that_hands_over_runs_inside_a_tool(driver: Driver) -> None:
    other = Agent("other", model="other")
    inner = Agent("inner", model="inner", handoffs=[other])
    outer = Agent("outer", model="outer", tools=[inner])
    models = Scripts(
        outer=[asks_for(call("inner", "c1", message="go")), "done"],
        inner=[asks_for(call("transfer_to_other", "h1"))],
        other=["from other"],
    )
    ended = await driver.run(outer, models, also=(inner, other))
    assert "from other" in result_of(ended.messages, "c1")


# --- crossing drivers, and deploys ---


async def test_a_conversation_is_carried_from_temporal_into_a_process_and_back(temporal: Temporal) -> None:
    async with temporal.worker(triage, *ALSO, llm=Scripts(triage=[asks_for(TO_BILLING)], billing=["one"])):
        await result(await temporal.start(triage))
    there = await run(
        triage, message="two", llm=Scripts(billing=["here"]), store=temporal.store, session_id=temporal.session()
    )
    assert there.response == "here"
    async with temporal.worker(triage, *ALSO, llm=Scripts(billing=["back"])):
        assert (await result(await temporal.start(triage, "three")))["response"] == "back"
    copied = await run(triage, message="four", checkpoint=there.checkpoint.model_copy(update={"session_id": None}),
                       llm=Scripts(billing=["copied"]))  # fmt: skip
    assert copied.response == "copied"


async def test_people_see_who_speaks(temporal: Temporal) -> None:
    models = Scripts(triage=[asks_for(TO_BILLING)], billing=[asks_for(call("charge", "c1", amount=5)), "done"])
    async with temporal.worker(triage, *ALSO, llm=models):
        run_ = await temporal.start(triage)
        await pending(run_)
        assert (await status(run_))["agent"] == "billing"
        assert (await looked_at(temporal.client, run_.id))["state"]["agent"] == "billing"
        started = [one for one in await temporal.people.events(run_.id) if one.type == "turn-started"]
        assert [(one.agent, one.model) for one in started] == [("triage", "triage"), ("billing", "billing")]
        await temporal.people.decide(run_.id, "c1", "approve", by="ada")
        await result(run_)
        await check_healthy(run_)


async def test_a_run_waits_for_a_worker_that_has_the_agent_that_speaks(temporal: Temporal) -> None:
    alone = Agent("triage", model="triage", instructions="You triage.", tools=[echo, ask_user])
    ask = asks_for(call("charge", "c1", amount=5))
    models = Scripts(triage=[asks_for(TO_BILLING)], billing=[ask, "done"])
    async with temporal.worker(triage, *ALSO, llm=models):
        run_ = await temporal.start(triage)
        await pending(run_)
    async with temporal.worker(alone, llm=models):
        (item,) = await pending(run_)
        assert item["kind"] == "approval"
    async with temporal.worker(triage, *ALSO, llm=models):
        await temporal.people.decide(run_.id, "c1", "approve", by="ada")
        assert (await result(run_))["response"] == "done"
        await check_healthy(run_)


async def test_a_new_run_of_the_session_waits_for_the_agent_that_has_the_conversation(temporal: Temporal) -> None:
    alone = Agent("triage", model="triage")
    async with temporal.worker(triage, *ALSO, llm=Scripts(triage=[asks_for(TO_BILLING)], billing=["one"])):
        await result(await temporal.start(triage))
    async with temporal.worker(alone, llm=Scripts()):
        run_ = await temporal.start(alone, "more")
        (item,) = await pending(run_)
        assert (item["kind"], item["name"]) == ("worker", "billing")
    async with temporal.worker(triage, *ALSO, llm=Scripts(billing=["two"])):
        assert (await result(run_))["response"] == "two"
        await check_healthy(run_)
    with pytest.raises(InputError, match="The conversation is with the agent 'billing'"):
        await run(alone, message="x", llm=Scripts(), store=temporal.store, session_id=temporal.session())


async def test_a_run_continues_as_new_with_the_agent_that_speaks(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    from standfast.temporal.workflows.run import agent_workflows

    monkeypatch.setattr(agent_workflows, "STEPS", 1)
    models = Scripts(triage=[asks_for(TO_BILLING)], billing=[asks_for(call("who", "c1")), "done"])
    async with temporal.worker(triage, *ALSO, llm=models):
        run_ = await temporal.start(triage)
        assert (await result(run_))["response"] == "done"
    assert speakers(await temporal.messages()) == ["triage", "billing", "billing"]
    assert (await run_.describe()).raw_info.first_run_id != (await run_.describe()).run_id


async def test_an_agent_that_a_deploy_has_added_is_handed_over_to(temporal: Temporal) -> None:
    before = Agent("triage", model="triage", tools=[ask_user])
    ask = asks_for(call("ask_user", "c1", question="Which?"))
    models = Scripts(triage=[ask, asks_for(TO_BILLING)], billing=["done"])
    async with temporal.worker(before, llm=models):
        run_ = await temporal.start(before)
        await pending(run_)
    async with temporal.worker(triage, *ALSO, llm=models):
        await temporal.people.answer(run_.id, "savings")
        assert (await result(run_))["response"] == "done"
        await check_healthy(run_)
    assert speakers(await temporal.messages()) == [None, None, "billing"]


LOST = [
    Message(role="user", content="go"),
    Message(role="assistant", tool_calls=(TO_BILLING, call("echo", "c1", text="x")), agent="triage"),
]


async def test_a_handoff_that_was_lost_before_its_result_was_written_is_done_by_the_next_run(
    temporal: Temporal,
) -> None:
    there = await run(triage, messages=LOST, llm=Scripts(billing=["mine"]))
    assert (there.response, speakers(there.messages)) == ("mine", ["triage", "billing"])
    async with temporal.worker(triage, *ALSO, llm=Scripts(billing=["mine"])):
        given = {"messages": [message.model_dump(mode="json") for message in LOST], "iterations": 1}
        run_ = await temporal.start(triage, None, checkpoint=given)
        assert (await result(run_))["response"] == "mine"
        await check_healthy(run_)


HANDED = [
    Message(role="user", content="go"),
    Message(role="assistant", tool_calls=(TO_BILLING,), agent="triage"),
    Message(
        role="tool",
        content='{"handed_over_to": "billing"}',
        tool_call_id="h1",
        tool_name=TO_BILLING.name,
        status="completed",
    ),
]


async def test_a_conversation_that_was_just_handed_over_is_with_the_agent_under_its_new_name(
    temporal: Temporal,
) -> None:
    bills = Agent("bills", formerly=["billing"], model="bills")
    renamed = Agent("triage", model="triage", handoffs=[bills])
    there = await run(renamed, messages=HANDED, llm=Scripts(bills=["mine"]))
    assert (there.response, speakers(there.messages)) == ("mine", ["triage", "bills"])
    async with temporal.worker(renamed, bills, llm=Scripts(bills=["mine"])):
        given = {"messages": [message.model_dump(mode="json") for message in HANDED], "iterations": 1}
        assert (await temporal.run(renamed, None, checkpoint=given))["response"] == "mine"


async def test_a_conversation_that_was_just_handed_over_is_not_taken_back_because_nobody_has_the_agent() -> None:
    with pytest.raises(
        InputError, match="The conversation is with the agent 'billing', to which agent 'triage' no longer"
    ):
        await run(Agent("triage"), messages=[*HANDED, Message(role="user", content="more")], llm=ScriptedModel([]))


async def test_the_current_agent_survives_the_pruning_of_the_handoff(driver: Driver) -> None:
    await go(driver, Scripts(triage=[asks_for(TO_BILLING)], billing=["one"]), max_stored_messages=2)
    ended = await go(driver, Scripts(billing=["two"]), message="more", max_stored_messages=2)
    assert (ended.response, speakers(ended.messages)[-1]) == ("two", "billing")


# --- declarations ---


def test_wrong_handoffs_are_found_at_the_declaration() -> None:
    with pytest.raises(DefinitionError, match="is not an agent, or the name of one"):
        Agent("a", handoffs=[echo])  # type: ignore[list-item]
    with pytest.raises(DefinitionError, match="handoffs must be a list"):
        Agent("a", handoffs="billing")
    with pytest.raises(DefinitionError, match="is there twice, or is the agent itself"):
        Agent("a", handoffs=[billing, "billing"])
    with pytest.raises(DefinitionError, match="is there twice, or is the agent itself"):
        Agent("a", handoffs=["a"])
    with pytest.raises(DefinitionError, match="two agents are named 'billing'"):
        Agent("a", handoffs=[billing, Agent("b", handoffs=[Agent("billing")])])
    with pytest.raises(DefinitionError, match="two tools of agents of one conversation are named 'echo'"):
        Agent("a", tools=[echo], handoffs=[Agent("b", tools=[_another_echo])])
    with pytest.raises(DefinitionError, match="two are named 'transfer_to_billing'"):
        Agent("a", tools=[tool(name="transfer_to_billing")(_plain)], handoffs=[billing])


@tool(name="echo")
async def _another_echo(text: str) -> str:
    """Say it otherwise."""
    return text


async def _plain() -> str:
    """Do nothing."""
    return ""


def test_a_worker_needs_all_agents_of_a_conversation(temporal: Temporal) -> None:
    with pytest.raises(DefinitionError, match="Agent 'triage' hands over to 'billing', which agents= does not give"):
        StandfastPlugin(agents=[triage, refunds], store=temporal.store)
    with pytest.raises(DefinitionError, match="Agent 'billing' hands over to 'triage', which agents= does not give"):
        StandfastPlugin(agents=[billing, refunds], store=temporal.store)
