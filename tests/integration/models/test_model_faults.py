"""Models that cannot be called: retries, their number, and fallback models. With both drivers."""

from typing import Any

import pytest
from support.drivers import Driver
from support.transcripts import asks_for, call

from integration.models.test_providers import adapter
from standfast import (
    Agent,
    DefinitionError,
    InputError,
    LLMResponse,
    Loop,
    Message,
    ModelError,
    RetryPolicy,
    Usage,
    run,
    run_streaming,
    tool,
)
from standfast.events import ModelRetried
from standfast.llm import LLMAdapter, Price, create_adapter
from standfast.testing import Fault, ModelServer, Reply, ScriptedModel

SOON = Loop(model_retry=RetryPolicy(initial_interval=0.01, maximum_attempts=3))
BUSY = ModelError("busy", transient=True)
BROKEN = ModelError("bad key")


@tool(safe_to_retry=True)
async def echo(text: str) -> str:
    """Return the text."""
    return text


async def test_an_error_that_may_pass_is_tried_again(driver: Driver) -> None:
    model = ScriptedModel([BUSY, OSError("no route"), asks_for(call("echo", "c1", text="a")), BUSY, "done"])
    ended = await driver.run(Agent("a", tools=[echo], loop=SOON), model)
    assert (ended.status, ended.response, ended.iterations) == ("complete", "done", 2)
    assert len(model.calls) == 5


@pytest.mark.parametrize("error", [BROKEN, ValueError("my bug")], ids=["refused", "a bug"])
async def test_any_other_is_not(driver: Driver, error: Exception) -> None:
    model = ScriptedModel([error, "done"])
    ended = await driver.run(Agent("a", loop=SOON), model)
    assert (ended.status, len(model.calls)) == ("error", 1)
    assert str(error) in str(ended.error)


async def test_a_limit_of_retries_that_is_said_ends_the_run_with_an_error(driver: Driver) -> None:
    model = ScriptedModel([BUSY] * 3 + ["done"])
    ended = await driver.run(Agent("a", loop=SOON), model)
    assert (ended.status, "busy" in str(ended.error), len(model.calls)) == ("error", True, 3)


async def test_in_process_a_run_ends_when_it_has_been_tried_often_enough() -> None:
    model = ScriptedModel([BUSY] * 3 + ["done"])
    agent = Agent("a", loop=SOON)
    result: Any = await run(agent, message="hi", llm=model)
    assert (result.status, result.error, len(model.calls)) == ("error", "busy", 3)
    again: Any = await run(agent, checkpoint=result.checkpoint, llm=model)
    assert (again.status, again.response) == ("complete", "done")


async def test_a_stream_says_that_what_was_said_is_void() -> None:
    model = ScriptedModel([BUSY, "done"])
    events = [event async for event in run_streaming(Agent("a", loop=SOON), message="hi", llm=model)]
    assert [event for event in events if isinstance(event, ModelRetried)] == [ModelRetried("busy", 0.01)]


# --- fallbacks ---


def models(**adapters: Any) -> Any:
    return lambda name: adapters[name]


@pytest.mark.parametrize("error", [BUSY, BROKEN], ids=["busy", "refused"])
async def test_the_next_model_is_called_when_one_cannot_be(driver: Driver, error: Exception) -> None:
    first, second = ScriptedModel([error] * 9), ScriptedModel([asks_for(call("echo", "c1", text="a")), "done"])
    agent = Agent("a", model="one", fallback_models=["two"], tools=[echo], loop=SOON)
    ended = await driver.run(agent, models(one=first, two=second))
    assert (ended.status, ended.response, ended.iterations) == ("complete", "done", 2)
    assert len(first.calls) == (3 if error is BUSY else 1)
    answers = [message.model for message in ended.messages if message.role == "assistant"]
    assert answers == ["two", "two"]  # the run stays with it, and the transcript names it


@pytest.mark.parametrize("after", [61, 3_600])
async def test_nobody_waits_for_long_where_there_is_another_model(driver: Driver, after: float) -> None:
    first = ScriptedModel([ModelError("busy", transient=True, retry_after=after)] * 2)
    agent = Agent("a", model="one", fallback_models=["two"])
    ended = await driver.run(agent, models(one=first, two=ScriptedModel(["done"])))
    assert (ended.status, ended.response, len(first.calls)) == ("complete", "done", 1)


async def test_the_log_says_which_model_could_not_be_called_and_which_is_next(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    """On one line: a traceback is for other faults than a provider's."""
    agent = Agent("a", model="one", fallback_models=["two"], loop=SOON)
    await driver.run(agent, models(one=ScriptedModel([BROKEN]), two=ScriptedModel([ValueError("my bug")])))
    logged = [record for record in caplog.records if "could not be called" in record.getMessage()]
    assert [record.getMessage() for record in logged] == [
        "Agent a: one could not be called: bad key; next is two",
        "Agent a: two could not be called: my bug",
    ]
    assert [record.exc_info is None or record.exc_info[0] is None for record in logged] == [True, False]
    others = [record for record in caplog.records if record.levelname == "WARNING" and record not in logged]
    assert {record.name for record in others} <= {"standfast.runs"}  # a line for each attempt, on Temporal


async def test_an_answer_of_the_agents_own_model_has_no_mark(driver: Driver) -> None:
    agent = Agent("a", model="one", fallback_models=["two"])
    ended = await driver.run(agent, models(one=ScriptedModel(["done"]), two=ScriptedModel([])))
    assert [message.model for message in ended.messages] == [None, None]


async def test_when_the_last_cannot_be_called_either_the_run_says_why(driver: Driver) -> None:
    agent = Agent("a", model="one", fallback_models=["two"], loop=SOON)
    ended = await driver.run(agent, models(one=ScriptedModel([BROKEN]), two=ScriptedModel([ModelError("gone")])))
    assert ended.status == "error"
    assert "gone" in str(ended.error)


async def test_one_adapter_cannot_be_several_models() -> None:
    with pytest.raises(InputError, match="cannot call 'two': llm= is one adapter"):
        await run(Agent("a", model="one", fallback_models=["two"]), message="hi", llm=ScriptedModel([]))


@pytest.mark.parametrize("wrong", ["two", [1], 5])
def test_a_value_that_is_not_a_list_of_models_is_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="fallback_models must be a list of texts"):
        Agent("a", fallback_models=wrong)


# --- with real SDKs ---


@pytest.mark.parametrize("provider", ["openai", "anthropic", "openai-compatible"])
async def test_faults_of_a_provider_are_outlived(driver: Driver, provider: str) -> None:
    script = [Fault(429, retry_after=0.01), Fault(answer="I loo", end="cut"), LLMResponse(
        tool_calls=(call("echo", "c1", text="a"),)), Fault(503), Fault(end="reset"), "done"]  # fmt: skip
    async with ModelServer(*script) as server:
        model: LLMAdapter = adapter(provider, server)
        ended = await driver.run(Agent("a", tools=[echo], loop=SOON), model)
    assert (ended.status, ended.response) == ("complete", "done")
    assert len(server.requests) == 6


@pytest.mark.parametrize(("stop", "status"), [("max_tokens", "max-tokens"), ("refusal", "refused")])
async def test_an_answer_that_is_not_whole_ends_the_run_so(driver: Driver, stop: str, status: str) -> None:
    async with ModelServer(LLMResponse(text="I", stop_reason=stop)) as server:
        ended = await driver.run(Agent("a"), adapter("anthropic", server))
    assert (ended.status, ended.response) == (status, "I")


NOTHING = LLMResponse(text=" ", usage=Usage(input_tokens=10, output_tokens=1), cost=0.5)


async def test_an_answer_with_neither_text_nor_calls_is_asked_for_once_more(driver: Driver) -> None:
    asked = LLMResponse(tool_calls=(call("echo", "c1", text="a"),))
    model = ScriptedModel([asked, NOTHING, LLMResponse(text="done", usage=NOTHING.usage, cost=0.25)])
    ended = await driver.run(Agent("a", tools=[echo]), model)
    assert (ended.status, ended.response) == ("complete", "done")
    assert ended.usage is not None
    assert (ended.usage.input_tokens, ended.usage.output_tokens, ended.usage.cost) == (20, 2, 0.75)
    assert [message.role for message in ended.messages] == ["user", "assistant", "tool", "assistant"]
    assert [message.content for message in model.calls[2].messages[-2:]] == [
        "a",
        "Your last answer was empty. Answer, or call a tool.",
    ]


async def test_a_run_whose_model_says_nothing_twice_is_empty_and_continues_with_the_next_message(
    driver: Driver,
) -> None:
    async with ModelServer(*[LLMResponse(text="")] * 2, "hello") as server:
        model = adapter("anthropic", server)
        ended = await driver.run(Agent("a"), model)
        assert (ended.status, ended.response, ended.iterations) == ("empty", "", 1)
        assert [message.stop_reason for message in ended.messages] == [None, "empty"]
        ended = await driver.run(Agent("a"), model, message="and now?")
    assert (ended.status, ended.response) == ("complete", "hello")


# Of this year's APIs: the provider's word, the status of the run, and its response.
ENDINGS = [
    ("anthropic", {"stop_reason": "model_context_window_exceeded"}, "max-tokens", "I"),
    ("anthropic", {"stop_reason": "max_tokens"}, "max-tokens", "I"),
    ("anthropic", {"stop_reason": "stop_sequence"}, "complete", "I"),
    ("openai-compatible", {"stop_reason": "model_length"}, "max-tokens", "I"),
    ("openai-compatible", {"stop_reason": "SAFETY"}, "refused", "I"),
    ("openai-compatible", {"stop_reason": "sensitive"}, "refused", "I"),
    ("openai-compatible", {"stop_reason": "eos"}, "complete", "I"),
    ("openai", {"stop_reason": "content_filter"}, "refused", "I"),
]


@pytest.mark.parametrize(("provider", "end", "status", "response"), ENDINGS)
async def test_the_words_of_providers_for_an_end_are_one_status(
    provider: str, end: dict[str, str], status: str, response: str
) -> None:
    async with ModelServer(LLMResponse(text="I", **end)) as server:
        ended = await run(Agent("a"), message="hi", llm=adapter(provider, server))
    assert (ended.status, ended.response) == (status, response)


async def test_a_refusal_without_text_is_told_in_the_providers_words() -> None:
    refusal = {"type": "refusal", "category": "cyber", "explanation": "This could help an attack."}
    events = [
        {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 1, "output_tokens": 1}}},
        {"type": "message_delta", "delta": {"stop_reason": "refusal", "stop_details": refusal}, "usage": {}},
        {"type": "message_stop"},
    ]
    async with ModelServer(Reply(events)) as server:
        ended = await run(Agent("a"), message="hi", llm=adapter("anthropic", server))
    assert (ended.status, ended.response) == ("refused", "This could help an attack.")


@pytest.mark.parametrize("word", ["insufficient_system_resource", "network_error", "error", "MALFORMED_FUNCTION_CALL"])
async def test_an_answer_that_its_provider_breaks_off_is_asked_for_again(word: str) -> None:
    async with ModelServer(LLMResponse(text="I lo", stop_reason=word), "I look.") as server:
        ended = await run(Agent("a", loop=SOON), message="hi", llm=adapter("openai-compatible", server))
    assert (ended.status, ended.response) == ("complete", "I look.")


# --- what it costs ---


async def test_a_run_that_has_cost_enough_ends(driver: Driver) -> None:
    """With a price that is given, through a real SDK: 1,000 tokens in, 100 of them cached, and 10 out."""
    used = Usage(input_tokens=1_000, cached_tokens=100, output_tokens=10)
    price = Price(input=10, cached=1, output=100)
    each = (900 * 10 + 100 * 1 + 10 * 100) / 1_000_000
    turns = [LLMResponse(tool_calls=(call("echo", f"c{n}", text="a"),), usage=used) for n in range(9)]
    async with ModelServer(*turns) as server:
        model = create_adapter(
            provider="anthropic", model="m", api_key="key", base_url=f"http://{server.address}", price=price
        )
        ended = await driver.run(Agent("a", tools=[echo], loop=Loop(cost_budget=2.5 * each)), model)
    assert (ended.status, len(server.requests)) == ("cost-budget-exhausted", 3)
    assert ended.usage is not None
    assert ended.usage.cost == pytest.approx(3 * each)
    assert [message.cost for message in ended.messages if message.role == "assistant"] == [pytest.approx(each)] * 3


async def test_a_budget_of_a_model_without_a_price_is_warned_of_once(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    model = ScriptedModel([asks_for(call("echo", "c1", text="x"), tokens=5), "done"])
    await driver.run(Agent("a", model="ours", tools=[echo], loop=Loop(cost_budget=1)), model)
    said = [record.getMessage() for record in caplog.records if "cost budget" in record.getMessage()]
    assert said == ["Agent a has a cost budget, but the price of ours is unknown: give the model's adapter price="]


async def test_a_model_that_the_library_knows_has_its_price() -> None:
    async with ModelServer(LLMResponse(text="hi", usage=Usage(input_tokens=1_000, output_tokens=100))) as server:
        model = create_adapter(provider="openai", model="gpt-5", api_key="key", base_url=server.url)
        answer = LLMResponse.read(await model.chat([Message(role="user", content="hi")], []))
    assert answer.cost is not None
    assert answer.cost > 0


@pytest.mark.parametrize(
    "wrong", [{"input": -1, "output": 1}, {"input": "1", "output": 1}, {"input": 1, "output": True}]
)
def test_a_wrong_price_is_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="must be US dollars per million tokens"):
        Price(**wrong)


@pytest.mark.parametrize("wrong", [0, -1, "5", True])
def test_a_wrong_budget_is_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="cost_budget must be US dollars above 0"):
        Loop(cost_budget=wrong)


async def test_a_provider_without_a_model_takes_that_of_each_agent() -> None:
    async with ModelServer("one", "two") as server:
        llm = create_adapter(provider="openai-compatible", api_key="key", base_url=server.url)
        for name in ("openai-compatible:small", "large"):
            ended: Any = await run(Agent("a", model=name), message="hi", llm=llm)
            assert ended.status == "complete"
    assert [request.body["model"] for request in server.requests] == ["small", "large"]
