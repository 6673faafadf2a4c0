"""Guardrails that let people decide on an answer or a user's message; the same with both drivers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.drivers import Driver, looked_at
from support.transcripts import asks_for, call

from standfast import (
    Agent,
    AgentContext,
    Approval,
    Guardrail,
    InputError,
    Loop,
    Message,
    ModelError,
    is_interrupted,
    pipeline,
    resume,
    run,
    run_pipeline,
    tool,
)
from standfast.stores import memory_store, sqlite_store
from standfast.testing import ScriptedModel

ADA = Approval(message="Really?", approvers=["ada"])


def refunds(ctx: AgentContext, answer: Message) -> str | None:
    return "it promises a refund" if "refund" in answer.content else None


def names(ctx: AgentContext, answer: Message) -> str | None:
    return "it names somebody" if "Bob" in answer.content else None


def cards(ctx: AgentContext, said: Message) -> str | None:
    return "it has a card number" if "4111" in said.content else None


def clerk(*, outputs: Sequence[Any] = (), inputs: Sequence[Any] = (), **options: Any) -> Agent[Any]:
    return Agent("clerk", model="m", output_guardrails=outputs, input_guardrails=inputs, **options)


HELD = Guardrail(refunds, approval=ADA)
READ = Guardrail(cards, approval=ADA)


def says(decision: str, gate: str = "answer-2", by: str = "ada", **more: Any) -> dict[str, Any]:
    return {"gate": gate, "decision": decision, "by": by, **more}


def roles(messages: Sequence[Message]) -> list[str]:
    return [message.role for message in messages]


async def test_an_answer_that_a_guardrail_stops_waits_and_is_in_no_transcript(driver: Driver) -> None:
    model = ScriptedModel(["a refund"])
    ended = await driver.run(clerk(outputs=[HELD]), model, decisions=[says("approve", by="bob")])
    assert (ended.status, roles(ended.messages), len(model.calls)) == ("waiting", ["user"], 1)
    assert ended.waits == {
        "answer-2": {
            "shown": [{"label": "Answer", "kind": "text", "text": "a refund"}],
            "message": "Really?\nThe guardrail refunds has stopped it: it promises a refund",
            "approvers": ["ada"],
        }
    }
    assert ended.refused == ("gate answer-2: bob may not decide it; ada may",)


async def test_an_approved_answer_is_given_and_the_model_is_not_asked_again(driver: Driver) -> None:
    model = ScriptedModel([{"text": "a refund", "usage": {"input_tokens": 3, "output_tokens": 2}}])
    ended = await driver.run(clerk(outputs=[HELD]), model, decisions=[says("approve")])
    assert (ended.status, ended.response, ended.iterations, len(model.calls)) == ("complete", "a refund", 1, 1)
    assert [message.content for message in ended.messages] == ["go", "a refund"]
    assert ended.usage is not None
    assert ended.usage.total_tokens == 5
    assert ended.messages[-1].tripped is None


async def test_a_rejected_answer_is_withheld_and_stored_nowhere(driver: Driver) -> None:
    ended = await driver.run(clerk(outputs=[HELD]), ScriptedModel(["a refund"]), decisions=[
        says("reject", comment="never")
    ])  # fmt: skip
    why = "[withheld by the guardrail refunds: it promises a refund; ada has rejected it: never]"
    assert (ended.status, ended.response) == ("guardrail-tripped", why)
    assert ended.tripped is not None
    assert (ended.tripped.guardrail, ended.tripped.reason) == ("refunds", "it promises a refund")
    assert [message.content for message in ended.messages] == ["go", why]


@pytest.mark.parametrize(("on_timeout", "status"), [("fail", "guardrail-tripped"), ("approve", "complete")])
async def test_time_decides_on_an_answer_as_its_approval_says(driver: Driver, on_timeout: Any, status: str) -> None:
    held = Guardrail(refunds, approval=Approval(timeout=0.3, on_timeout=on_timeout))
    ended = await driver.run(clerk(outputs=[held]), ScriptedModel(["a refund"]), decisions=[None])
    assert ended.status == status
    assert ("; it was not decided in time]" in ended.response) == (status != "complete")


async def test_what_the_user_said_waits_before_any_model_is_asked(driver: Driver) -> None:
    model = ScriptedModel(["thanks"])
    agent = clerk(inputs=[READ])
    ended = await driver.run(agent, model, message="4111", decisions=[says("approve", "answer-2")])
    assert (ended.status, model.calls, roles(ended.messages)) == ("waiting", [], ["user"])
    assert ended.waits["message-2"] == {
        "shown": [{"label": "Message", "kind": "text", "text": "4111"}],
        "message": "Really?\nThe guardrail cards has stopped it: it has a card number",
        "approvers": ["ada"],
    }


async def test_people_see_all_that_would_pass_and_not_only_what_was_stopped_first() -> None:
    model = ScriptedModel(["thanks"])
    agent = clerk(inputs=[READ])
    given: Any = {"llm": model, "store": memory_store()}
    said = [Message(role="user", content=text) for text in ("hello", "4111", "4111 again")]
    waits = await run(agent, messages=said, **given)
    assert is_interrupted(waits)
    (item,) = waits.approvals
    assert [one["text"] for one in item.shown] == ["hello", "4111", "4111 again"]


async def test_an_approved_message_is_answered_and_its_guardrail_is_not_asked_again(driver: Driver) -> None:
    asked = []

    def once(ctx: AgentContext, said: Message) -> str:
        asked.append(said.content)
        return "look at it"

    model = ScriptedModel(["thanks"])
    agent = clerk(inputs=[Guardrail(once, approval=ADA)])
    ended = await driver.run(agent, model, decisions=[says("approve", "message-2")])
    assert (ended.status, ended.response, asked, len(model.calls)) == ("complete", "thanks", ["go"], 1)


async def test_a_rejected_message_is_not_answered_by_any_model(driver: Driver) -> None:
    model = ScriptedModel([])
    ended = await driver.run(clerk(inputs=[READ]), model, message="4111", decisions=[says("reject", "message-2")])
    assert (ended.status, model.calls) == ("guardrail-tripped", [])
    assert ended.response == "[withheld by the guardrail cards: it has a card number; ada has rejected it]"


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_beside_the_model_the_answer_is_dropped_and_its_usage_counts(driver: Driver, decision: str) -> None:
    usage = {"usage": {"input_tokens": 3, "output_tokens": 2}}
    model = ScriptedModel([{"text": "dropped", **usage}, {"text": "asked again", **usage}])
    agent = clerk(inputs=[Guardrail(cards, beside=True, approval=ADA)])
    ended = await driver.run(
        agent, model, message="4111", decisions=[says(decision, "message-2")], session=decision
    )  # fmt: skip
    assert ended.usage is not None
    assert ended.usage.total_tokens == (10 if decision == "approve" else 5)
    assert ended.iterations == 1
    assert (ended.response == "asked again") == (decision == "approve")
    assert not any("dropped" in message.content for message in ended.messages)


async def test_both_what_was_said_and_the_answer_to_it_may_wait_in_one_turn(driver: Driver) -> None:
    model = ScriptedModel(["a refund"])
    agent = clerk(inputs=[READ], outputs=[HELD])
    decisions = [says("approve", "message-2"), says("approve")]
    ended = await driver.run(agent, model, message="4111", decisions=decisions)
    assert (ended.status, ended.response, ended.iterations, len(model.calls)) == ("complete", "a refund", 1, 1)


async def test_those_of_each_guardrail_decide_one_after_the_other(driver: Driver) -> None:
    both = [HELD, Guardrail(names, approval=Approval(message="Bob?", approvers=["bob"]))]
    model = ScriptedModel(lambda messages, tools: "a refund for Bob")
    waits = await driver.run(clerk(outputs=both), model, decisions=[says("approve")], session="a")
    assert (waits.status, waits.waits["answer-2"]["message"]) == (
        "waiting", "Bob?\nThe guardrail names has stopped it: it names somebody"
    )  # fmt: skip
    decisions = [says("approve"), says("approve", by="ada"), says("approve", by="bob")]
    ended = await driver.run(clerk(outputs=both), model, decisions=decisions, session="b")
    assert (ended.status, ended.refused) == ("complete", ("gate answer-2: ada may not decide it; bob may",))
    ended = await driver.run(
        clerk(outputs=both), model, decisions=[says("approve"), says("reject", by="bob")], session="c"
    )
    assert ended.response == "[withheld by the guardrail names: it names somebody; bob has rejected it]"


async def test_a_refusal_without_an_approval_needs_nobody(driver: Driver) -> None:
    ended = await driver.run(clerk(outputs=[HELD, names]), ScriptedModel(["a refund for Bob"]))
    assert (ended.status, ended.response) == (
        "guardrail-tripped",
        "[withheld by the guardrail names: it names somebody]",
    )


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"edit": {"text": "no"}}, "gate answer-2: edit: nothing can be edited here"),
        ({"digest": "0" * 32}, "gate answer-2 has changed"),
        (
            {"remember": {"scope": "session", "until": "2030-01-01T00:00:00Z"}},
            "gate answer-2: remember: later calls cannot be approved in advance here",
        ),
    ],
)
async def test_a_decision_that_cannot_count_on_an_answer_says_why(
    driver: Driver, more: Mapping[str, Any], why: str
) -> None:
    ended = await driver.run(clerk(outputs=[HELD]), ScriptedModel(["a refund"]), decisions=[says("approve", **more)])
    assert ended.status == "waiting"
    (refused,) = ended.refused
    assert refused.startswith(why)


async def test_the_turns_before_and_after_an_answer_that_waited_are_as_ever(driver: Driver) -> None:
    @tool
    def look(what: str) -> str:
        return f"{what} is fine"

    turns: list[Any] = [asks_for(call("look", "c1", what="it")), "a refund"]
    agent = clerk(outputs=[HELD], tools=[look])
    ended = await driver.run(agent, ScriptedModel(turns), decisions=[says("approve", "answer-4")])
    assert (ended.status, ended.response) == ("complete", "a refund")
    assert roles(ended.messages) == ["user", "assistant", "tool", "assistant"]


async def test_an_output_that_people_have_approved_is_read_by_its_type_and_validators(driver: Driver) -> None:
    seen = []

    def is_small(ctx: AgentContext, output: int) -> str | None:
        seen.append(output)
        return None if output < 10 else "too large"

    def always(ctx: AgentContext, answer: Message) -> str:
        return "look at it"

    agent = clerk(outputs=[Guardrail(always, approval=ADA)], output=int, output_validators=[is_small])
    model = ScriptedModel(["12", "7"])
    ended = await driver.run(agent, model, decisions=[says("approve"), says("approve", "answer-4")])
    assert (ended.status, ended.output, seen, len(model.calls)) == ("complete", 7, [12, 7], 2)


async def test_the_last_allowed_call_of_the_model_may_be_held(driver: Driver) -> None:
    agent = clerk(outputs=[HELD], loop=Loop(max_iterations=1))
    ended = await driver.run(agent, ScriptedModel(["a refund"]), decisions=[says("approve")])
    assert (ended.status, ended.response) == ("complete", "a refund")


async def test_the_next_message_of_a_session_follows_an_answer_that_was_withheld(driver: Driver) -> None:
    model = ScriptedModel(lambda messages, tools: "a refund" if len(messages) < 4 else "hello")
    agent = clerk(outputs=[HELD])
    await driver.run(agent, model, decisions=[says("reject")])
    ended = await driver.run(agent, model, message="and now?")
    assert (ended.status, ended.response, roles(ended.messages)) == (
        "complete", "hello", ["user", "assistant", "user", "assistant"]
    )  # fmt: skip


async def test_people_who_may_not_decide_after_a_deploy_do_not(driver: Driver) -> None:
    deployed = clerk(outputs=[Guardrail(refunds, approval=Approval(message="Really?", approvers=["eve"]))])
    ended = await driver.run(
        clerk(outputs=[HELD]), ScriptedModel(["a refund"]), decisions=[says("approve")], deployed=deployed
    )
    assert ended.refused == ("gate answer-2: ada may no longer decide it; eve may",)


async def test_in_process_an_answer_of_an_agent_that_a_tool_runs_is_withheld_since_nobody_is_asked() -> None:
    helper = Agent("helper", description="Helps.", model="m", output_guardrails=[HELD])
    outer = Agent("outer", model="m", tools=[helper])
    turns = [asks_for(call("helper", "c1", message="help")), "a refund", "done"]
    ended = await run(outer, message="go", llm=ScriptedModel(turns))
    assert ended.status == "complete"
    assert "it was not approved" in ended.messages[2].content


async def test_what_is_too_large_to_be_shown_is_withheld(driver: Driver) -> None:
    ended = await driver.run(clerk(outputs=[HELD]), ScriptedModel(["refund " * 100_000]))
    assert ended.status == "guardrail-tripped"
    assert "; people cannot be shown all of it: 700,0" in ended.response


@pytest.mark.parametrize("decision", ["approve", "reject"])
@pytest.mark.parametrize("is_signed", [False, True])
async def test_without_a_store_an_answer_waits_in_its_checkpoint(decision: str, is_signed: bool) -> None:
    key: dict[str, Any] = {"checkpoint_key": "0123456789abcdef"} if is_signed else {}
    model = ScriptedModel(["a refund"])
    agent = clerk(outputs=[HELD])
    waits = await run(agent, message="go", llm=model, **key)
    assert is_interrupted(waits)
    (item,) = waits.approvals
    assert (item.gate, item.tool, item.shown[0]["text"]) == ("answer-2", "", "a refund")
    with pytest.raises(InputError, match="answer-2: bob may not decide it"):
        await resume(
            agent, waits.checkpoint, decisions=[says("approve", by="bob", digest=item.digest)], llm=model, **key
        )
    plain = waits.checkpoint.model_dump_json()
    ended = await resume(agent, plain, decisions=[says(decision, digest=item.digest)], llm=model, **key)
    assert (ended.status, len(model.calls)) == ("complete" if decision == "approve" else "guardrail-tripped", 1)
    assert (ended.response == "a refund") == (decision == "approve")


async def test_a_checkpoint_cannot_approve_its_own_answer() -> None:
    model = ScriptedModel(["a refund"])
    agent = clerk(outputs=[HELD])
    waits = await run(agent, message="go", llm=model)
    forged = waits.checkpoint.model_dump(mode="json")
    forged["questions"][0]["gate"]["status"] = "approved"
    again = await run(agent, checkpoint=forged, llm=model)
    assert is_interrupted(again)
    forged["questions"][0]["held"]["content"] = "another refund"
    forged["questions"][0]["held"]["tripped"][0]["guardrail"] = "nobody"
    (item,) = (await run(agent, checkpoint=forged, llm=model)).approvals
    assert item.shown[0]["text"] == "another refund"


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ({"held": None}, "a gate answer-2 without the answer that it holds"),
        ({"held": {"role": "user", "content": "a refund"}}, "a gate answer-2 without the answer that it holds"),
        ({"gate": {"name": "answer-3"}}, "the gate of call answer-3, not of answer-2"),
        ({"gate": {"rule": {"holds": "tool"}}}, "a gate that cannot be used"),
    ],
    ids=["nothing", "a message", "another gate", "something else"],
)
async def test_a_checkpoint_with_a_damaged_answer_is_refused(damage: dict[str, Any], why: str) -> None:
    waits = await run(clerk(outputs=[HELD]), message="go", llm=ScriptedModel(["a refund"]))
    forged = waits.checkpoint.model_dump(mode="json")
    question = forged["questions"][0]
    if "gate" in damage:
        question["gate"] |= damage["gate"]
    else:
        question |= damage
    with pytest.raises(InputError, match=why):
        await run(clerk(outputs=[HELD]), checkpoint=forged, llm=ScriptedModel([]))


async def test_a_pipeline_in_process_waits_with_the_answer_of_a_step_and_needs_a_store(tmp_path: Path) -> None:
    desk = pipeline("desk").step("say", agent=clerk(outputs=[HELD]), input=lambda ctx: "go").build()
    alone = await run_pipeline(desk, llm=ScriptedModel(["a refund"]))
    assert "its answer waits for approval, which needs a store" in str(alone.error)
    async with sqlite_store(tmp_path / "store.db") as store:
        given: Any = {"llm": ScriptedModel(["a refund"]), "store": store, "run_key": "k"}
        waits = await run_pipeline(desk, **given)
        (item,) = waits.approvals
        assert (waits.status, item.gate, item.shown[0]["text"]) == ("pending", "say/answer-2", "a refund")
        decision = says("approve", item.gate, digest=item.digest)
        ended = await run_pipeline(desk, decisions=[decision], **given)
    assert (ended.status, ended.step_results["say"].response) == ("complete", "a refund")


async def test_a_message_that_was_approved_in_vain_is_answered_before_the_next_one() -> None:
    store, heard = memory_store(), []

    def answer(messages: Sequence[Message], tools: Any) -> str:
        heard.append([message.content for message in messages if message.role != "system"])
        if len(heard) == 1:
            raise ModelError("away", transient=False)
        return f"answer {len(heard)}"

    agent = clerk(inputs=[READ])
    given: Any = {"llm": ScriptedModel(answer), "store": store}
    waits = await run(agent, message="4111", **given)
    assert is_interrupted(waits)
    given["session_id"] = waits.session_id
    failed = await run(agent, decisions=[looked_at(waits, says("approve", "message-2"))], **given)
    assert (failed.status, heard) == ("error", [["4111"]])
    ended = await run(agent, message="more", **given)
    assert ended.response == "answer 3"
    assert heard[1:] == [["4111"], ["4111", "answer 2", "more"]]


async def test_what_people_are_asked_may_be_a_function_of_the_message() -> None:
    asks = Approval(message=lambda answer: f"Send {len(answer.content)} characters?")
    waits = await run(clerk(outputs=[Guardrail(refunds, approval=asks)]), message="go", llm=ScriptedModel(["a refund"]))
    assert waits.question.startswith("Send 8 characters?\nThe guardrail refunds")


async def test_in_process_nothing_is_said_while_an_answer_waits() -> None:
    store = memory_store()
    given: Any = {"llm": ScriptedModel(["a refund"]), "store": store}
    waits = await run(clerk(outputs=[HELD]), message="go", **given)
    with pytest.raises(InputError, match="waits for approval of answer-2: give decisions="):
        await run(clerk(outputs=[HELD]), message="more", session_id=waits.session_id, **given)
