"""An OpenAI Agents SDK agent is started, messaged, approved and shown like one of ours."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from agents import (
    Agent,
    GuardrailFunctionOutput,
    ModelSettings,
    RunConfig,
    ToolOutputImage,
    WebSearchTool,
    function_tool,
    handoff,
    input_guardrail,
    set_trace_processors,
    set_tracing_disabled,
    tool_input_guardrail,
)
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.testing import ScriptedModel as TheirModel
from agents.testing import assistant_message, function_call
from agents.tool_guardrails import ToolGuardrailFunctionOutput
from agents.tracing import TracingProcessor
from agents.usage import Usage as TheirUsage
from pydantic import BaseModel
from support.foreign_gates import STEPS, check_gates, decided_in_a_row
from support.foreign_shops import noted
from support.gated_runs import check_killed_everywhere
from support.mortal_programs import run_until_complete
from support.resets import reset, tasks
from support.temporal_runs import Temporal, check_healthy, events, pending, result, scheduled
from support.transcripts import asks_for, call

from standfast import Agent as OurAgent
from standfast import Approval, DefinitionError, InputError, Loop, is_interrupted, pipeline, resume, run
from standfast.agents import adopted
from standfast.cli.applications import load_application
from standfast.integrations.openai_agents import as_agent
from standfast.llm import Price
from standfast.stores import SQLiteStore
from standfast.temporal import connect, start_pipeline
from standfast.testing import DevServer, ScriptedModel

set_tracing_disabled(True)


@pytest_asyncio.fixture
async def temporal(temporal_server: DevServer, store: SQLiteStore) -> AsyncIterator[Temporal]:
    shop = Temporal(await connect(temporal_server.address), store, uuid4().hex[:12])
    yield shop
    await shop.end_all()


def scripted(*turns: Any) -> TheirModel:
    """Return a model of theirs: a turn is a text, or the name of a tool and its arguments."""
    steps = list[Any]()
    for number, turn in enumerate(turns):
        is_text = isinstance(turn, str)
        step = assistant_message(turn) if is_text else function_call(*turn, call_id=f"t{number}")
        steps.append([step])
    return TheirModel(steps)


class Shop:
    """An agent with a tool that counts its calls."""

    def __init__(self, *turns: Any, needs_approval: Any = False, **options: Any) -> None:
        self.charges: list[int] = []

        @function_tool(needs_approval=needs_approval)
        async def charge(cents: int) -> str:
            """Charge a card."""
            self.charges.append(cents)
            return f"charged {cents}"

        self.tool = charge
        self.model = scripted(*turns)
        self.agent = Agent[Any]("shop", instructions="Sell.", tools=[charge], model=self.model, **options)

    @property
    def heard(self) -> list[Any]:
        """What the model was given last."""
        return list(self.model.calls[-1].input)


CHARGE = ("charge", {"cents": 5})


# --- processes that die ---


async def test_in_process_a_run_that_is_killed_twice_charges_once_and_the_model_is_told(tmp_path: Path) -> None:
    done = await run_until_complete("integrations.openai_agents.desk", tmp_path)
    check_sold(done.said, done.deaths, done.charges, tmp_path)


async def test_on_temporal_a_run_whose_worker_is_killed_twice_charges_once_and_the_model_is_told(
    temporal_server: DevServer, tmp_path: Path
) -> None:
    queue = uuid4().hex
    done = await run_until_complete("integrations.openai_agents.desk", tmp_path, temporal_server.address, queue)
    check_sold(done.said, done.deaths, done.charges, tmp_path)
    client = await connect(temporal_server.address)
    history = await events(client.get_workflow_handle(f"desk/{queue}"))
    assert [name for name in scheduled(history) if "." not in name] == [
        "call_model", "charge", "call_model", "stamp", "call_model",
    ]  # fmt: skip
    assert done.said["usage"]["input_tokens"] == 30


def check_sold(said: Any, deaths: int, charges: list[int], folder: Path) -> None:
    assert (said["status"], deaths, charges, noted(folder, "stamps")) == ("complete", 2, [5], ["", ""])
    told, stamp = json.loads(said["response"])
    assert json.loads(told)["kind"] == "tool-durability-error"
    assert stamp == "stamped"
    assert len(noted(folder, "answers")) == 3  # no answer was paid twice


# --- on Temporal ---


async def test_a_call_is_let_through_by_people_as_they_change_it(temporal: Temporal) -> None:
    shop = Shop(CHARGE, "sold", needs_approval=True)
    async with temporal.worker(shop.agent):
        handle = await temporal.start(shop.agent, "Sell it.")
        [waits] = await pending(handle)
        assert (waits["kind"], waits["message"]) == ("approval", "Run charge?")
        await temporal.people.decide(handle.id, waits["name"], "approve", by="ada", edit={"cents": 4})
        done = await result(handle)
    assert (done["status"], done["response"], shop.charges) == ("complete", "sold", [4])


async def test_a_call_that_people_reject_does_not_run_and_the_model_reads_it(temporal: Temporal) -> None:
    shop = Shop(CHARGE, "not sold", needs_approval=True)
    async with temporal.worker(shop.agent):
        handle = await temporal.start(shop.agent, "Sell it.")
        [waits] = await pending(handle)
        await temporal.people.decide(handle.id, waits["name"], "reject", by="ada", comment="too dear")
        assert (await result(handle))["response"] == "not sold"
    assert shop.charges == []
    assert "too dear" in shop.heard[-1]["output"]


async def test_a_session_continues_with_a_message_and_the_model_hears_all_of_it(temporal: Temporal) -> None:
    shop = Shop(CHARGE, "sold", "you are welcome")
    async with temporal.worker(shop.agent):
        await result(await temporal.start(shop.agent, "Sell it."))
        assert (await temporal.run(adopted(shop.agent), "Thanks."))["response"] == "you are welcome"
    kinds = [item.get("type") or item["role"] for item in shop.heard]
    assert kinds == ["user", "function_call", "function_call_output", "message", "user"]


async def test_a_reset_behind_the_effect_charges_nothing_and_pays_no_answer_again(temporal: Temporal) -> None:
    shop = Shop(CHARGE, "sold")
    async with temporal.worker(shop.agent):
        handle = await temporal.start(shop.agent, "Sell it.")
        await result(handle)
        for task in range(1, len(await tasks(handle))):
            handle = await reset(temporal, handle, task)
            assert (await result(handle))["response"] == "sold"
            await check_healthy(handle)
    assert (shop.charges, len(shop.model.calls)) == ([5], 2)


async def test_it_is_a_step_of_a_pipeline_and_a_tool_of_an_agent(temporal: Temporal) -> None:
    shop = Shop(CHARGE, "sold", CHARGE, "sold again")
    review = pipeline("review", input=dict).step("sell", agent=shop.agent).build()
    boss = OurAgent("boss", tools=[shop.agent])

    def say(messages: Any, tools: Any) -> Any:
        read = [message.content for message in messages if message.role == "tool"]
        return read[-1] if read else asks_for(call("shop", "b1", message="Sell it."))

    async with temporal.worker(shop.agent, boss, pipelines=[review], llm=ScriptedModel(say)):
        done = await start_pipeline(temporal.client, "review", input={}, task_queue=temporal.name)
        assert (await result(done))["outputs"]["sell"] == {"response": "sold"}
        assert (await temporal.run(boss, "Let it be sold."))["response"] == "sold again"
    assert shop.charges == [5, 5]


# --- in process ---


async def test_in_process_a_gate_waits_for_a_decision(store: SQLiteStore) -> None:
    shop = Shop(CHARGE, "sold", needs_approval=True)
    asked = await run(shop.agent, message="Sell it.", session_id="s", store=store)
    assert is_interrupted(asked)
    [gate] = asked.approvals
    decision = {"gate": gate.gate, "decision": "approve", "by": "ada", "digest": gate.digest}
    done = await resume(adopted(shop.agent), asked.checkpoint, store=store, decisions=[decision])
    assert (done.response, shop.charges) == ("sold", [5])


async def test_an_error_that_leaves_the_outcome_open_is_told_as_such(store: SQLiteStore) -> None:
    @function_tool
    async def charge(cents: int) -> str:
        """Charge a card."""
        raise ConnectionResetError("the connection broke behind the request")

    agent = Agent[Any]("shop", tools=[charge], model=scripted(CHARGE, "unclear"))
    await run(agent, message="Sell it.", session_id="s", store=store)
    [told] = [json.loads(one.content) for one in await store.load_messages("s") if one.role == "tool"]
    assert (told["kind"], "the connection broke" in told["error"]) == ("tool-durability-error", True)


@pytest.mark.parametrize("is_safe", [False, True])
async def test_a_call_that_the_sdk_cuts_off_is_of_unknown_outcome_unless_it_is_safe(
    store: SQLiteStore, is_safe: bool
) -> None:
    async def slow() -> str:
        """Take too long."""
        await asyncio.sleep(60)
        return "late"

    tool = function_tool(slow, timeout=0.05)
    desk = Agent[Any]("desk", tools=[tool], model=scripted(("slow", "{}"), "Told."))
    ended = await run(
        as_agent(desk, safe_to_retry=["slow"] if is_safe else ()), message="Go.", session_id="s", store=store
    )
    assert not is_interrupted(ended)
    told = next(one.content for one in ended.messages if one.role == "tool")
    assert "timed out after 0.05 seconds" in told
    assert ("tool-durability-error" in told) is not is_safe


async def test_gates_beside_each_other_and_in_a_row_are_asked_once_each(store: SQLiteStore) -> None:
    shop = Shop(needs_approval=True)
    charges = [[function_call(*CHARGE, call_id=f"c{place}") for place in range(count)] for count in STEPS]
    shop.agent.model = TheirModel([*charges, [assistant_message("sold")]])
    check_gates(*await decided_in_a_row(shop.agent, store), shop.charges)


def test_a_run_that_is_killed_between_its_gates_asks_and_runs_each_call_once(tmp_path: Path) -> None:
    check_killed_everywhere("integrations.openai_agents.gated_desk", tmp_path)


async def test_a_gate_may_depend_on_the_arguments_and_is_there_if_nobody_can_tell() -> None:
    async def over_ten(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        return bool(arguments["cents"] > 10)

    async def by_context(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        return bool(context.context["careful"])

    for needs, cents, waits in ((over_ten, 5, False), (over_ten, 50, True), (by_context, 5, True)):
        shop = Shop(("charge", {"cents": cents}), "sold", needs_approval=needs)
        assert is_interrupted(await run(shop.agent, message="Sell it.")) is waits


async def test_people_may_be_asked_otherwise_than_the_tool_says() -> None:
    shop = Shop(CHARGE, "sold")
    asked = await run(as_agent(shop.agent, approval={"charge": Approval(message="Really?")}), message="Sell it.")
    assert is_interrupted(asked)
    assert asked.approvals[0].message == "Really?"
    shop = Shop(CHARGE, "sold", needs_approval=True)
    assert (await run(as_agent(shop.agent, approval={"charge": None}), message="Sell it.")).response == "sold"


async def test_an_agent_hands_over_and_the_other_one_continues_with_the_session(store: SQLiteStore) -> None:
    model = scripted(("transfer_to_refunds", {}), ("charge", {"cents": -5}), "refunded", "yes?")
    shop = Shop()
    refunds = Agent[Any]("refunds", instructions="Refund.", tools=[shop.tool], model=model)
    desk = Agent[Any]("desk", instructions="Ask.", model=model, handoffs=[refunds])
    refunds.handoffs.append(desk)
    done = await run(desk, message="I want my money.", session_id="s", store=store)
    assert (done.response, shop.charges) == ("refunded", [-5])
    assert (await run(desk, message="Hello?", session_id="s", store=store)).response == "yes?"
    assert [one.system_instructions for one in model.calls] == ["Ask.", "Refund.", "Refund.", "Refund."]


async def test_a_handoff_calls_its_function_with_what_the_model_gives_it() -> None:
    class Reason(BaseModel):
        text: str

    seen: list[Any] = []
    model = scripted(("transfer_to_refunds", {"text": "broken"}), "refunded")
    refunds = Agent[Any]("refunds", model=model)
    desk = Agent[Any](
        "desk",
        model=model,
        handoffs=[handoff(refunds, on_handoff=lambda ctx, given: seen.append((ctx.context, given)), input_type=Reason)],
    )
    agent = as_agent(desk, context=lambda ctx: ctx.user_id)
    assert (await run(agent, message="It is broken.", user_id="ada")).response == "refunded"
    assert seen == [("ada", Reason(text="broken"))]


async def test_the_context_is_made_for_who_runs_the_agent() -> None:
    seen = []

    async def prompt(ctx: Any, agent: Any) -> str:
        seen.append(ctx.context)
        return "Look."

    agent = Agent[Any]("eye", instructions=prompt, model=scripted("seen"))
    await run(as_agent(agent, context=lambda ctx: (ctx.user_id, ctx.tenant_id)), message="?", user_id="ada")
    assert seen == [("ada", None)]


async def test_the_answer_is_of_the_output_type_even_if_that_is_a_list() -> None:
    class Receipt(BaseModel):
        cents: int

    assert (await run(Agent[Any]("one", output_type=Receipt, model=scripted('{"cents": 5}')), message="?")).output == (
        Receipt(cents=5)
    )
    many = Agent[Any]("many", output_type=list[Receipt], model=scripted('{"response": [{"cents": 5}]}'))
    assert (await run(many, message="?")).output == [Receipt(cents=5)]


async def test_a_tool_choice_that_forces_a_call_forces_one_alone() -> None:
    shop = Shop(CHARGE, "sold", model_settings=ModelSettings(tool_choice="required"))
    await run(shop.agent, message="Sell it.")
    assert [one.model_settings.tool_choice for one in shop.model.calls] == ["required", None]


@pytest.mark.parametrize("behavior", ["stop_on_first_tool", {"stop_at_tool_names": ["charge"]}])
async def test_the_result_of_a_tool_may_be_the_answer(behavior: Any) -> None:
    shop = Shop(CHARGE, tool_use_behavior=behavior)
    done = await run(shop.agent, message="Sell it.")
    assert (done.response, len(shop.model.calls)) == ("charged 5", 1)


async def test_guardrails_see_the_words_once_and_the_calls_before_they_run() -> None:
    checked = []

    @input_guardrail
    async def polite(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        checked.append(given)
        return GuardrailFunctionOutput("rude", tripwire_triggered="!" in str(given))

    shop = Shop(CHARGE, "sold", input_guardrails=[polite])
    await run(shop.agent, message="Sell it.")
    assert len(checked) == 1
    refused = await run(Shop("never", input_guardrails=[polite]).agent, message="Sell it!")
    assert refused.status == "error"
    assert "InputGuardrailTripwireTriggered" in str(refused.error)

    @tool_input_guardrail
    async def small(data: Any) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.reject_content("too dear")

    shop = Shop(CHARGE, "not sold")
    shop.tool.tool_input_guardrails = [small]
    await run(shop.agent, message="Sell it.")
    assert (shop.charges, shop.heard[-1]["output"]) == ([], "too dear")


class Priced(Model):
    """A model whose answers have a million tokens."""

    model = "made-up"

    async def get_response(self, *given: Any, **options: Any) -> ModelResponse:
        used = TheirUsage(requests=1, input_tokens=1_000_000, output_tokens=1_000_000, total_tokens=2_000_000)
        return ModelResponse(output=[assistant_message("sold")], usage=used, response_id=None)

    def stream_response(self, *given: Any, **options: Any) -> Any:
        raise NotImplementedError


async def test_usage_and_cost_are_counted() -> None:
    agent = as_agent(Agent[Any]("desk", model=Priced()), price=Price(input=1, output=2))
    used = (await run(agent, message="?")).usage
    assert used is not None
    assert (used.input_tokens, used.output_tokens, used.cost) == (1_000_000, 1_000_000, 3.0)


async def test_the_model_reads_of_a_tool_that_is_not_there_and_corrects_an_answer_that_does_not_fit() -> None:
    class Receipt(BaseModel):
        cents: int

    shop = Shop(("pay", {"cents": 5}), '{"cents": "five"}', '{"cents": 5}', output_type=Receipt)
    done = await run(as_agent(shop.agent, loop=Loop(output_retries=1)), message="Sell it.")
    assert done.output == Receipt(cents=5)
    assert "pay" in shop.model.calls[1].input[-1]["output"]


class Spans(TracingProcessor):
    """Keeps what is traced."""

    def __init__(self) -> None:
        self.groups, self.seen = set[Any](), list[str]()

    def on_trace_start(self, trace: Any) -> None:
        self.groups.add((trace.name, trace.group_id))

    def on_span_end(self, span: Any) -> None:
        self.seen.append(f"{span.span_data.type} {getattr(span.span_data, 'output', '')}".strip())

    def on_trace_end(self, trace: Any) -> None: ...
    def on_span_start(self, span: Any) -> None: ...
    def shutdown(self) -> None: ...
    def force_flush(self) -> None: ...


async def test_turns_and_calls_are_traced_as_one_group() -> None:
    spans, shop = Spans(), Shop(CHARGE, "sold")
    set_trace_processors([spans])
    set_tracing_disabled(False)
    try:
        await run(as_agent(shop.agent, run_config=RunConfig(workflow_name="Sale")), message="Sell it.")
    finally:
        set_tracing_disabled(True)
    [(name, group)] = spans.groups
    assert (name, bool(group)) == ("Sale", True)
    assert spans.seen.count("agent") == 2
    assert spans.seen.count("function charged 5") == 1


async def test_the_model_reads_that_people_changed_a_call_whose_result_is_a_picture(store: SQLiteStore) -> None:
    @function_tool(needs_approval=True)
    async def draw(what: str) -> ToolOutputImage:
        """Draw a picture."""
        return ToolOutputImage(image_url=f"data:image/png;base64,{what}")

    model = scripted(("draw", {"what": "AA=="}), "drawn")
    agent = Agent[Any]("shop", tools=[draw], model=model)
    waits = await run(agent, message="Draw.", session_id="s", store=store)
    assert is_interrupted(waits)
    (item,) = waits.approvals
    approval = {"gate": item.gate, "decision": "approve", "by": "ada", "digest": item.digest, "edit": {"what": "BB=="}}
    await run(agent, session_id="s", store=store, decisions=[approval])
    picture, told = model.calls[-1].input[-1]["output"]
    assert picture["image_url"].endswith("BB==")
    assert json.loads(told["text"]) == {
        "note": "ada changed the arguments before it ran", "arguments": {"what": "BB=="},
    }  # fmt: skip


# --- declarations ---


def test_what_cannot_be_run_is_refused_with_its_name() -> None:
    one, two = Agent[Any]("one"), Agent[Any]("one")
    tool, other = (function_tool(lambda: "x", name_override="look") for _ in range(2))
    for wrong, said in (
        (Agent[Any]("Front Desk"), r"'Front Desk' needs a name .* as_agent\(…, name=…\)"),
        (Agent[Any]("desk", handoffs=[one, two]), "named 'one'"),
        (Agent[Any]("desk", tools=[tool, other]), "two different tools are named 'look'"),
        (Agent[Any]("desk", handoffs=[handoff(one, input_filter=lambda data: data)]), "input_filter"),
        (Agent[Any]("desk", tools=[function_tool(lambda: "x", name_override="look it up")]), "name must match"),
    ):
        with pytest.raises(DefinitionError, match=said):
            adopted(wrong)
    with pytest.raises(DefinitionError, match="name 'pay', which it does not have"):
        as_agent(Agent[Any]("desk", tools=[tool]), safe_to_retry=["pay"])
    with pytest.raises(DefinitionError, match="as_agent needs an agent of the OpenAI Agents SDK, got 'desk'"):
        as_agent("desk")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="no option 'model'"):
        as_agent(Agent[Any]("desk"), model="openai:gpt-5")  # type: ignore[call-arg]


def test_a_call_has_the_time_of_its_tool_or_what_is_said() -> None:
    async def slow() -> None:
        """Take long."""

    tools: list[Any] = [function_tool(slow, timeout=90), Agent[Any]("helper").as_tool("help", "Help.")]
    agent = as_agent(Agent[Any]("desk", tools=tools), timeout={"help": "10m"})
    assert {name: tool.timeout for name, tool in agent.tool_map.items()} == {"slow": 95, "help": 600}


def test_an_agent_is_the_same_each_time_and_a_copy_another() -> None:
    agent = Agent[Any]("desk", tools=[WebSearchTool()])
    assert adopted(agent) is adopted(agent)
    assert adopted(agent.clone(instructions="Else.")) is not adopted(agent)


def test_a_file_with_a_bare_agent_is_refused_with_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text('from agents import Agent\n\nfront = Agent("Front Desk")\n')
    with pytest.raises(InputError, match=r"write `agent = as_agent\(front\)`.*`standfast.integrations.openai_agents`"):
        load_application(str(tmp_path / "bare.py"), None)
