"""Guardrails that let people decide on a stopped call; the same with both drivers."""

from collections.abc import Sequence
from typing import Any

import pytest
from support.drivers import Driver
from support.transcripts import asks_for, call, error_of, tool_results

from standfast import Agent, AgentContext, Approval, DefinitionError, Guardrail, Message, ToolCall, tool
from standfast.testing import ScriptedModel

ADA = Approval(message="Really?", approvers=["ada"])
WHY = "Really?\nThe guardrail large_sums has stopped it: more than 100"


def large_sums(ctx: AgentContext, asked: ToolCall) -> str | None:
    assert isinstance(asked.arguments, dict)
    return "more than 100" if asked.arguments.get("amount", 0) > 100 else None


def odd_sums(ctx: AgentContext, asked: ToolCall) -> str | None:
    assert isinstance(asked.arguments, dict)
    return "an odd sum" if asked.arguments["amount"] % 2 else None


def spender(
    ran: list[int], guardrails: Sequence[Any] = (Guardrail(large_sums, approval=ADA),), own: Any = None, **options: Any
) -> Agent[Any]:
    @tool(approval=own)
    def pay(amount: int) -> str:
        ran.append(amount)
        return f"paid {amount}"

    return Agent("spender", model="m", tools=[pay], tool_guardrails=guardrails, **options)


def pays(*amounts: int) -> ScriptedModel:
    return ScriptedModel([asks_for(*(call("pay", f"c{n}", amount=one) for n, one in enumerate(amounts, 1))), "done"])


def says(decision: str, by: str = "ada", gate: str = "c1", **more: Any) -> dict[str, Any]:
    return {"gate": gate, "decision": decision, "by": by, **more}


async def test_a_call_that_a_guardrail_stops_waits_and_people_read_why(driver: Driver) -> None:
    ran: list[int] = []
    wrong = says("approve", by="bob")
    ended = await driver.run(spender(ran), pays(500, 5), decisions=[wrong])
    assert (ended.status, ran) == ("waiting", [])
    assert ended.waits == {
        "c1": {"tool": "pay", "arguments": {"amount": 500}, "message": WHY, "approvers": ["ada"]}
    }  # fmt: skip
    assert ended.refused == ("gate c1: bob may not decide it; ada may",)


async def test_a_stopped_call_runs_as_it_was_approved(driver: Driver) -> None:
    ran: list[int] = []
    ended = await driver.run(spender(ran), pays(500, 5), decisions=[says("approve")])
    assert (ended.status, ran) == ("complete", [500, 5])
    assert [told.content for told in tool_results(ended.messages)] == ["paid 500", "paid 5"]


async def test_the_model_reads_why_a_stopped_call_was_rejected(driver: Driver) -> None:
    ran: list[int] = []
    ended = await driver.run(spender(ran), pays(500, 5), decisions=[says("reject", comment="too much")])
    assert (ended.status, ran) == ("complete", [5])
    assert error_of(tool_results(ended.messages)[0]) == "Not run: it was rejected by ada: too much"


async def test_a_stopped_call_does_not_run_when_nobody_has_decided_in_time(driver: Driver) -> None:
    ran: list[int] = []
    guardrail = Guardrail(large_sums, approval=Approval(timeout=0.3))
    ended = await driver.run(spender(ran, [guardrail]), pays(500), decisions=[None])
    assert (ended.status, ran) == ("complete", [])
    assert error_of(tool_results(ended.messages)[0]).startswith("Approval timed out: it was not decided by ")


async def test_a_decision_on_something_else_than_what_is_shown_does_not_count(driver: Driver) -> None:
    ran: list[int] = []
    ended = await driver.run(spender(ran), pays(500), decisions=[says("approve", digest="0" * 32)])
    assert (ended.status, ran) == ("waiting", [])
    assert ended.refused[0].startswith("gate c1 has changed")


@pytest.mark.parametrize("amount", [90, 400])
async def test_people_may_change_a_stopped_call_also_so_that_the_same_guardrail_would_stop_it(
    driver: Driver, amount: int
) -> None:
    ran: list[int] = []
    ended = await driver.run(spender(ran), pays(500), decisions=[says("approve", edit={"amount": amount})])
    assert (ended.status, ran) == ("complete", [amount])
    assert "ada changed the arguments before it ran" in tool_results(ended.messages)[0].content


@pytest.mark.parametrize("own", [None, ADA], ids=["stopped", "with its own approval"])
async def test_an_edit_that_a_guardrail_refuses_does_not_count_and_says_why(driver: Driver, own: Any) -> None:
    ran: list[int] = []
    guardrails = [odd_sums] if own else [Guardrail(large_sums, approval=ADA), odd_sums]
    decisions = [says("approve", edit={"amount": 7}), says("approve", edit={"amount": 8})]
    ended = await driver.run(spender(ran, guardrails, own), pays(500), decisions=decisions)
    assert (ended.status, ran) == ("complete", [8])
    assert ended.refused == ("gate c1: edit: the guardrail odd_sums refuses these arguments: an odd sum",)


async def test_an_edit_that_another_guardrail_stops_needs_those_whom_it_asks(driver: Driver) -> None:
    ran: list[int] = []
    guardrails = [Guardrail(large_sums, approval=ADA), Guardrail(odd_sums, approval=Approval(approvers=["bob"]))]
    decisions = [says("approve", edit={"amount": 7})]
    ended = await driver.run(spender(ran, guardrails), pays(500), decisions=decisions)
    assert (ended.status, ran) == ("waiting", [])
    assert ended.refused == ("gate c1: edit: these arguments need a different approval; reject it, and explain why",)


async def test_those_of_the_tool_are_asked_first_and_then_those_of_the_guardrail(driver: Driver) -> None:
    ran: list[int] = []
    agent = spender(ran, own=Approval(message="Pay?", approvers=["bob"]))
    first = await driver.run(agent, pays(500), decisions=[says("approve")], session="a")
    assert (first.status, first.waits["c1"]["message"], first.refused) == (
        "waiting", "Pay?", ("gate c1: ada may not decide it; bob may",)
    )  # fmt: skip
    second = await driver.run(agent, pays(500), decisions=[says("approve", "bob"), says("approve", "bob")], session="b")
    assert (second.status, second.waits["c1"]["message"], ran) == ("waiting", WHY, [])
    assert second.refused == ("gate c1: bob may not decide it; ada may",)
    both = await driver.run(agent, pays(500), decisions=[says("approve", "bob"), says("approve")], session="c")
    assert (both.status, ran) == ("complete", [500])


@pytest.mark.parametrize("decisions", [[("reject", "bob")], [("approve", "bob"), ("reject", "ada")]])
async def test_one_rejection_is_enough_whoever_has_approved_before(driver: Driver, decisions: Any) -> None:
    ran: list[int] = []
    agent = spender(ran, own=Approval(approvers=["bob"]))
    ended = await driver.run(agent, pays(500), decisions=[says(what, by, comment="no") for what, by in decisions])
    assert (ended.status, ran) == ("complete", [])
    assert error_of(tool_results(ended.messages)[0]) == f"Not run: it was rejected by {decisions[-1][1]}: no"


async def test_a_digest_of_the_first_question_does_not_answer_the_second(driver: Driver) -> None:
    ran: list[int] = []
    anybody = Approval(message="Same?")
    agent = spender(ran, [Guardrail(large_sums, approval=anybody)], own=anybody)
    waits = await driver.run(agent, pays(500), decisions=[says("approve")])
    assert (waits.status, ran) == ("waiting", [])
    assert waits.waits["c1"]["message"].endswith("large_sums has stopped it: more than 100")


@pytest.mark.parametrize(("amount", "status"), [(90, "complete"), (400, "waiting")])
async def test_an_edit_of_the_first_who_are_asked_counts_if_nobody_else_would_be_asked_about_it(
    driver: Driver, amount: int, status: str
) -> None:
    ran: list[int] = []
    agent = spender(ran, own=Approval(approvers=["bob"]))
    ended = await driver.run(agent, pays(500), decisions=[says("approve", "bob", edit={"amount": amount})])
    assert (ended.status, ran) == (status, [amount] if status == "complete" else [])
    assert all("need a different approval" in why for why in ended.refused)


async def test_an_edit_of_the_second_does_not_count_since_the_first_have_not_seen_it(driver: Driver) -> None:
    ran: list[int] = []
    agent = spender(ran, own=Approval(approvers=["bob"]))
    decisions = [says("approve", "bob"), says("approve", edit={"amount": 90}), says("approve")]
    ended = await driver.run(agent, pays(500), decisions=decisions)
    assert (ended.status, ran) == ("complete", [500])
    assert ended.refused == ("gate c1: edit: these arguments need a different approval; reject it, and explain why",)


async def test_two_guardrails_that_stop_one_call_ask_one_after_the_other(driver: Driver) -> None:
    ran: list[int] = []
    guardrails = [Guardrail(large_sums, approval=ADA), Guardrail(odd_sums, approval=Approval(approvers=["bob"]))]
    agent = spender(ran, guardrails)
    waits = await driver.run(agent, pays(501), decisions=[says("approve")], session="a")
    assert (waits.status, waits.waits["c1"]["message"]) == (
        "waiting", 'May the tool "pay" run?\nThe guardrail odd_sums has stopped it: an odd sum'
    )  # fmt: skip
    ended = await driver.run(agent, pays(501), decisions=[says("approve"), says("approve", "bob")], session="b")
    assert (ended.status, ran) == ("complete", [501])


@pytest.mark.parametrize("order", [1, -1])
async def test_a_guardrail_that_refuses_is_stricter_than_one_that_asks(driver: Driver, order: int) -> None:
    ran: list[int] = []
    guardrails = [Guardrail(large_sums, approval=ADA), odd_sums][::order]
    ended = await driver.run(spender(ran, guardrails), pays(501))
    assert (ended.status, ran) == ("complete", [])
    assert error_of(tool_results(ended.messages)[0]) == "Not run: the guardrail odd_sums refused it: an odd sum"


async def test_a_guardrail_is_asked_once_about_a_call_and_once_about_its_edit(driver: Driver) -> None:
    seen: list[Any] = []

    def look(ctx: AgentContext, asked: ToolCall) -> str | None:
        seen.append((asked.arguments, ctx.user_id, ctx.agent.name))
        return large_sums(ctx, asked)

    decisions = [says("approve", edit={"amount": 90})]
    ended = await driver.run(
        spender([], [Guardrail(look, approval=ADA)]), pays(500), decisions=decisions, user_id="zoe"
    )
    assert ended.status == "complete"
    assert seen == [({"amount": amount}, "zoe", "spender") for amount in (500, 90)]


async def test_a_guardrail_that_raises_at_an_edit_lets_nothing_pass(driver: Driver) -> None:
    ran: list[int] = []

    def fragile(ctx: AgentContext, asked: ToolCall) -> str | None:
        if asked.arguments == {"amount": 90}:
            raise OSError("no connection")
        return large_sums(ctx, asked)

    agent = spender(ran, [Guardrail(fragile, approval=ADA)])
    ended = await driver.run(agent, pays(500), decisions=[says("approve", edit={"amount": 90}), says("approve")])
    assert (ended.status, ran) == ("complete", [500])
    assert "no connection" in ended.refused[0]


async def test_a_standing_approval_of_the_tool_does_not_answer_for_its_guardrail(driver: Driver) -> None:
    ran: list[int] = []
    agent = spender(ran, own=Approval(approvers=["bob"], remember="agent"))
    wish = {"scope": "agent", "until": "1d", "arguments": {"amount": {}}}
    await driver.run(agent, pays(5), decisions=[says("approve", "bob", remember=wish)], session="a")
    assert ran == [5]
    model = ScriptedModel([asks_for(call("pay", "c2", amount=7)), asks_for(call("pay", "c3", amount=500)), "done"])
    decisions = [says("approve", "bob", gate="c3"), says("approve", gate="c3")]
    ended = await driver.run(agent, model, decisions=decisions, session="b")
    assert (ended.status, ran) == ("complete", [5, 7, 500])
    assert ended.refused == ("gate c3: bob may not decide it; ada may",)


async def test_who_was_removed_from_the_approvers_of_a_guardrail_does_not_decide_any_more(driver: Driver) -> None:
    ran: list[int] = []
    deployed = spender(ran, [Guardrail(large_sums, approval=Approval(approvers=["eve"]))])
    ended = await driver.run(spender(ran), pays(500), decisions=[says("approve")], deployed=deployed)
    assert (ended.status, ran) == ("waiting", [])
    assert ended.refused == ("gate c1: ada may no longer decide it; eve may",)


async def test_those_of_a_guardrail_that_was_removed_in_the_meantime_still_decide(driver: Driver) -> None:
    ran: list[int] = []
    ended = await driver.run(spender(ran), pays(500), decisions=[says("approve")], deployed=spender(ran, []))
    assert (ended.status, ran) == ("complete", [500])


async def test_a_first_question_that_time_approves_leads_to_the_second(driver: Driver) -> None:
    ran: list[int] = []
    agent = spender(ran, own=Approval(timeout=0.3, on_timeout="approve"))
    ended = await driver.run(agent, pays(500), decisions=[None, says("approve")])
    assert (ended.status, ran) == ("complete", [500])


async def test_a_guardrail_may_ask_others_when_its_time_is_over(driver: Driver) -> None:
    ran: list[int] = []
    leads = Approval(approvers=["eve"], timeout="1d")
    asks = Approval(message="Really?", approvers=["ada"], timeout=0.3, on_timeout="escalate", escalate_to=leads)
    agent = spender(ran, [Guardrail(large_sums, approval=asks)], own=Approval(approvers=["bob"]))
    decisions = [says("approve", "bob"), None, says("approve"), says("approve", "eve")]
    ended = await driver.run(agent, pays(500), decisions=decisions)
    assert (ended.status, ran) == ("complete", [500])
    assert ended.refused == ("gate c1: ada may not decide it; eve may",)


async def test_guardrails_of_the_first_agent_ask_when_another_one_speaks(driver: Driver) -> None:
    ran: list[int] = []
    first = spender(ran)
    billing = Agent("billing", model="n", tools=first.tools)
    desk = Agent("desk", model="m", handoffs=[billing], tool_guardrails=first.tool_guardrails)
    turns = [asks_for(call("transfer_to_billing", "h1")), asks_for(call("pay", "c1", amount=500)), "done"]
    decisions = [says("approve", edit={"amount": 400})]
    ended = await driver.run(desk, ScriptedModel(turns), also=[billing], decisions=decisions)
    assert (ended.status, ran) == ("complete", [400])


async def test_a_handoff_may_be_stopped_too(driver: Driver) -> None:
    def stays(ctx: AgentContext, asked: ToolCall) -> str:
        return "not without asking"

    billing = Agent("billing", model="n")
    desk = Agent("desk", model="m", handoffs=[billing], tool_guardrails=[Guardrail(stays, approval=ADA)])
    for decision, speaker in (("approve", "billing"), ("reject", "desk")):
        model = ScriptedModel([asks_for(call("transfer_to_billing", "c1")), "hello"])
        given = {"also": [billing], "decisions": [says(decision)], "session": decision}
        ended = await driver.run(desk, model, **given)  # type: ignore[arg-type]
        assert (ended.status, ended.messages[-1].agent) == ("complete", speaker)


async def test_what_guardrails_say_is_kept_as_a_question_and_not_as_a_refusal(driver: Driver) -> None:
    ended = await driver.run(spender([]), pays(500), decisions=[says("approve")])
    (verdict,) = ended.messages[1].tripped or ()
    assert (verdict.guardrail, verdict.reason, verdict.tool_call_id, verdict.asks) == (
        "large_sums", "more than 100", "c1", True
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tool_guardrails": [Guardrail(large_sums, approval="ada")]}, r"approval must be Approval\(…\)"),  # type: ignore[arg-type]
        ({"tool_guardrails": [Guardrail(large_sums, approval=Approval(on_reject="continue"))]}, "not for a guardrail"),
        ({"tool_guardrails": [Guardrail(large_sums, approval=Approval(remember="run"))]}, "approval.remember is for"),
        ({"tool_guardrails": [Guardrail(large_sums, approval=ADA), large_sums]}, "two are named large_sums"),
    ],
    ids=["no approval", "of a gate", "remember", "two names"],
)
def test_a_wrong_approval_of_a_guardrail_is_refused_when_it_is_declared(options: dict[str, Any], why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        Agent("guarded", **options)


EDITED = "Write to bob"


def stopped_agent(heard: list[str], guard: Approval = ADA) -> tuple[Agent[Any], Agent[Any], Any]:
    """Return an agent, the agent that it calls, and their models; a guardrail stops each call."""

    def always(ctx: AgentContext, asked: ToolCall) -> str:
        return "it writes to somebody"

    def write(messages: Sequence[Message], tools: Any) -> str:
        heard.append(messages[-1].content)
        return "Dear you"

    writer = Agent("writer", model="writer", description="Writes.")
    boss = Agent("boss", model="boss", tools=[writer], tool_guardrails=[Guardrail(always, approval=guard)])
    models = {"boss": ScriptedModel([asks_for(call("writer", "w1", message="Write to ada")), "sent"])}
    return boss, writer, {**models, "writer": ScriptedModel(write)}.__getitem__


async def test_an_agent_that_is_called_is_asked_what_people_have_approved_with_an_edit(driver: Driver) -> None:
    heard: list[str] = []
    boss, writer, models = stopped_agent(heard)
    decisions = [says("approve", gate="w1", edit={"message": EDITED})]
    ended = await driver.run(boss, models, decisions=decisions, also=[writer])
    assert (ended.status, heard) == ("complete", [EDITED])
    (told,) = tool_results(ended.messages)
    assert "ada changed the arguments before it ran" in told.content
    assert '"result":"Dear you"' in told.content


async def test_the_model_reads_of_an_edit_even_if_the_agent_that_it_called_fails(driver: Driver) -> None:
    boss, writer, models = stopped_agent([])
    stuck = replace_model(models, "writer", ScriptedModel([asks_for(call("nothing", "n1"))] * 3))
    decisions = [says("approve", gate="w1", edit={"message": EDITED})]
    ended = await driver.run(boss, stuck, decisions=decisions, also=[writer])
    assert EDITED in error_of(tool_results(ended.messages)[0])


def replace_model(models: Any, name: str, model: ScriptedModel) -> Any:
    return lambda asked: model if asked == name else models(asked)
