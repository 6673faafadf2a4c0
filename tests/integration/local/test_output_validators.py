"""Validators of an agent's output, which may use the run's dependencies; the same with both drivers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import BaseModel
from support.drivers import Driver, OnTemporal
from support.resets import resets
from support.stores import crash_on_write
from support.temporal_runs import Temporal, pending, result
from support.transcripts import asks_for, call

from standfast import Agent, AgentContext, DefinitionError, LLMResponse, Loop, Message, StandfastError, run, tool
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


class Order(BaseModel):
    article: str


class Catalogue:
    """What a validator depends on."""

    def __init__(self, articles: list[str]) -> None:
        self._articles, self.is_open = articles, True

    async def has(self, article: str) -> bool:
        assert self.is_open
        return article in self._articles


@asynccontextmanager
async def open_catalogue(ctx: AgentContext[None]) -> AsyncIterator[Catalogue]:
    catalogue = Catalogue(ctx.context)
    try:
        yield catalogue
    finally:
        catalogue.is_open = False


async def is_sold(ctx: AgentContext[Catalogue], order: Order) -> str | None:
    return None if await ctx.deps.has(order.article) else f"there is no {order.article} in the catalogue"


def seller(**options: Any) -> Agent[Any, Any]:
    given = {"context": list[str], "deps": open_catalogue, "output": Order, "output_validators": [is_sold]}
    return Agent("seller", model="m", **{**given, **options})


CHAIRS = ["chair"]
SOFA, CHAIR = '{"article": "sofa"}', '{"article": "chair"}'
TOLD = "Your answer was not accepted: there is no sofa in the catalogue. Answer again."


async def test_a_validator_looks_at_what_the_run_depends_on_and_has_the_model_asked_again(driver: Driver) -> None:
    model = ScriptedModel([SOFA, CHAIR])
    ended = await driver.run(seller(), model, context=CHAIRS)
    assert (ended.status, ended.response, ended.iterations) == ("complete", CHAIR, 2)
    assert ended.output in (Order(article="chair"), {"article": "chair"})
    assert [(one.role, one.content, one.unfit) for one in ended.messages] == [
        ("user", "go", None),
        ("assistant", SOFA, "there is no sofa in the catalogue"),
        ("user", TOLD, None),
        ("assistant", CHAIR, None),
    ]
    assert model.calls[1].messages[-1].content == TOLD


async def test_a_run_whose_output_no_validator_takes_ends_with_the_reason(driver: Driver) -> None:
    model = ScriptedModel([SOFA, SOFA, CHAIR])
    ended = await driver.run(seller(), model, context=CHAIRS)
    why = "there is no sofa in the catalogue"
    assert (ended.status, ended.response, ended.error, ended.output) == ("error", SOFA, why, None)
    assert len(model.calls) == 2
    ended = await driver.run(seller(loop=Loop(output_retries=0)), ScriptedModel([SOFA]), context=CHAIRS, session="t")
    assert (ended.status, ended.error) == ("error", why)


async def test_a_text_is_validated_too_if_an_agent_has_no_output(driver: Driver) -> None:
    def is_short(ctx: AgentContext, text: str) -> str | None:
        return "more than 5 characters." if len(text) > 5 else None

    agent = Agent("poet", model="m", output_validators=[is_short])
    ended = await driver.run(agent, ScriptedModel(["Roses are red", "Roses"]))
    assert (ended.status, ended.response, ended.output) == ("complete", "Roses", None)
    assert ended.messages[2].content == "Your answer was not accepted: more than 5 characters. Answer again."


async def test_validators_see_only_final_answers_of_the_outputs_type_and_that_guardrails_let_pass(
    driver: Driver,
) -> None:
    seen: list[object] = []

    def first(ctx: AgentContext, order: Order) -> bool:
        seen.append(order)
        return True

    def second(ctx: AgentContext, order: Order) -> None:
        seen.append("second")

    @tool
    def look() -> str:
        return "looked"

    def no_sofas(ctx: AgentContext, answer: Message) -> str | None:
        return "a sofa" if "sofa" in answer.content else None

    options = {"tools": [look], "output_guardrails": [no_sofas], "output_validators": [first, second]}
    model = ScriptedModel([asks_for(call("look", "c1")), "A chair.", CHAIR])
    ended = await driver.run(seller(**options), model, context=CHAIRS)
    assert (ended.status, seen) == ("complete", [Order(article="chair"), "second"])
    seen.clear()
    ended = await driver.run(seller(**options), ScriptedModel([SOFA]), context=CHAIRS, session="t")
    assert (ended.status, seen) == ("guardrail-tripped", [])
    cut = LLMResponse(text=CHAIR, stop_reason="length")
    ended = await driver.run(seller(**options), ScriptedModel([cut]), context=CHAIRS, session="u")
    assert (ended.status, seen) == ("max-tokens", [])


async def test_no_validator_is_asked_again_about_an_answer_that_is_kept(driver: Driver) -> None:
    asked: list[str] = []

    def once(ctx: AgentContext, order: Order) -> str | None:
        asked.append(order.article)
        return "sold out" if len(asked) > 1 else None

    agent = seller(output_validators=[once])
    first = await driver.run(agent, ScriptedModel([CHAIR]), context=CHAIRS)
    again = await driver.run(agent, ScriptedModel([]), message=None)
    assert (first.status, again.status, again.messages) == ("complete", "complete", first.messages)
    assert asked == ["chair"]


async def test_a_refusal_is_found_again_after_a_crash(store: SQLiteStore) -> None:
    verdicts = iter(["not this one"])
    agent = Agent("poet", output_validators=[lambda ctx, text: next(verdicts, None)])
    await crash_on_write(store, agent, ["Roses", "Violets"], 2)  # the answer and the correction are there
    ended = await run(agent, llm=ScriptedModel(["Violets"]), store=store, session_id="s")
    assert [one.content for one in ended.messages][1:] == [
        "Roses",
        "Your answer was not accepted: not this one. Answer again.",
        "Violets",
    ]


async def test_a_refusal_is_found_again_after_the_run_was_reset(temporal: Temporal) -> None:
    asked: list[str] = []

    def once(ctx: AgentContext, order: Order) -> str | None:
        asked.append(order.article)
        return "the first" if len(asked) == 1 else None

    agent = seller(output_validators=[once])
    async with temporal.worker(agent, llm=ScriptedModel([SOFA, CHAIR])):
        handle = await temporal.start(agent, "go", context=CHAIRS)
        before = await result(handle)
        found = [await result(again) async for again in resets(temporal, handle)]
    assert found
    assert all(again == before for again in found)
    assert asked == ["sofa", "chair"]


async def test_a_validator_that_raises_ends_a_run_in_process_and_lets_one_on_temporal_wait(driver: Driver) -> None:
    mended: list[bool] = []

    def fragile(ctx: AgentContext, order: Order) -> None:
        if not mended:
            raise OSError("no connection")

    agent = seller(output_validators=[fragile])
    if not isinstance(driver, OnTemporal):
        with pytest.raises(OSError, match="no connection"):
            await driver.run(agent, ScriptedModel([CHAIR]), context=CHAIRS)
        return
    async with driver.temporal.worker(agent, llm=ScriptedModel([CHAIR, CHAIR])):
        handle = await driver.temporal.start(agent, "go", context=CHAIRS)
        (paused,) = await pending(handle)
        assert "fragile raised OSError: no connection" in paused["message"]
        mended.append(True)
        await handle.signal("resume", {"action": "retry"})
        assert (await result(handle))["status"] == "complete"


@pytest.mark.parametrize("verdict", [False, "", 3, Order(article="chair")], ids=["False", "no reason", "3", "output"])
async def test_a_value_that_is_not_a_verdict_of_a_validator_is_an_error(verdict: object) -> None:
    agent = Agent("poet", output_validators=[lambda ctx, text: verdict])
    with pytest.raises(StandfastError, match="return None to take the output, or the reason as text"):
        await run(agent, message="hi", llm=ScriptedModel(["Roses"]))


async def test_a_long_reason_is_cut_and_cleaned() -> None:
    verdicts = iter(["x\0" + "y" * 10_000])
    agent = Agent("poet", output_validators=[lambda ctx, text: next(verdicts, None)])
    ended = await run(agent, message="hi", llm=ScriptedModel(["Roses", "Violets"]))
    told = ended.messages[2].content
    assert "\0" not in told
    assert len(told) < 2_200


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"output_validators": ["x"]}, "output_validators: 'x' is not a function"),
        ({"output_validators": is_sold}, "output_validators must be a list of functions"),
        ({"handoffs": [Agent("other", output_validators=[is_sold])]}, "has its own output_validators"),
    ],
    ids=["text", "no list", "handoff"],
)
def test_wrong_validators_are_refused_when_they_are_declared(options: dict[str, Any], why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        Agent("seller", **options)


async def test_validators_of_the_first_agent_stay_when_it_hands_over(driver: Driver) -> None:
    billing = Agent("billing", model="n")
    agent = seller(handoffs=[billing])
    model = ScriptedModel([asks_for(call("transfer_to_billing", "c1")), SOFA, CHAIR])
    ended = await driver.run(agent, model, also=[billing], context=CHAIRS)
    assert (ended.status, ended.messages[-1].agent, ended.response) == ("complete", "billing", CHAIR)
