"""An agent's declaration holds in both drivers: hooks, state, output, instructions, context, malformed answers."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from support.doubles import echo, fail, watching
from support.drivers import Driver, OnTemporal
from support.questions import ask
from support.temporal_runs import Temporal, pending, result
from support.transcripts import asks_for, call, error_of, shape, tool_results

from integration.local.test_malformed_answers import MALFORMED
from standfast import (
    Agent,
    AgentContext,
    ContextCompression,
    DiminishingReturns,
    Loop,
    Message,
    ToolContext,
    sqlite_store,
    tool,
)
from standfast.testing import ScriptedModel

# --- hooks and state ---


async def test_hooks_are_called_around_the_loop(driver: Driver) -> None:
    log: list[str] = []
    await driver.run(watching(log), ScriptedModel([asks_for(call("work", "c1")), "done"]))
    assert log == ["start", "work", "complete"]


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("loop", "name"),
    [
        (Loop(max_iterations=1), "work"),
        (Loop(stuck_threshold=1), "fail"),
        (Loop(token_budget=10), "work"),
        (Loop(diminishing_returns=DiminishingReturns(1, 500)), "work"),
    ],
    ids=["max-iterations", "stuck", "token-budget-exhausted", "diminishing-returns"],
)
async def test_on_stuck_is_called_when_the_run_stopped_early(driver: Driver, loop: Loop, name: str) -> None:
    log: list[str] = []
    await driver.run(watching(log, loop=loop), ScriptedModel([asks_for(call(name, "c1"), tokens=100)]))
    assert [entry for entry in log if entry != "work"] == ["start", "stuck"]


async def test_neither_hook_is_called_on_error(driver: Driver) -> None:
    log: list[str] = []
    await driver.run(watching(log), ScriptedModel([RuntimeError("down")]))
    assert log == ["start"]


async def test_a_hook_learns_who_runs_and_what_it_changes_in_the_state_is_seen_by_the_next(driver: Driver) -> None:
    seen: list[Any] = []

    async def started(context: AgentContext) -> None:
        seen.append((context.agent.id, context.agent.name, context.user_id, context.tenant_id, context.authenticated()))
        context.state["count"] += 1

    def completed(context: AgentContext) -> None:
        seen.append((context.agent.id, dict(context.state)))

    agent = Agent("a", initial_state={"count": 0}, on_start=started, on_complete=completed)
    await driver.run(agent, ScriptedModel(["ok"]), user_id="ada", tenant_id="acme", instance_id="i-1")
    assert seen == [("i-1", "a", "ada", "acme", True), ("i-1", {"count": 1})]


async def test_the_id_of_an_agent_is_the_same_in_hooks_instructions_and_tools(driver: Driver) -> None:
    seen: list[str] = []

    @tool
    async def look(ctx: ToolContext) -> str:
        """Look."""
        seen.append(ctx.agent_id)
        return "seen"

    def note(context: AgentContext) -> str:
        seen.append(context.agent.id)
        return "Look."

    agent = Agent("a", tools=[look], instructions=note, on_start=note, on_complete=note)
    await driver.run(agent, ScriptedModel([asks_for(call("look", "c1")), "ok"]))
    assert len(seen) >= 4
    assert len(set(seen)) == 1
    assert seen[0]


async def test_the_state_that_hooks_leave_is_that_of_the_next_run(driver: Driver) -> None:
    def count(context: AgentContext) -> None:
        context.state["runs"] = context.state.get("runs", 0) + 1

    agent = Agent("a", on_complete=count)
    for text in ("one", "two"):
        await driver.run(agent, ScriptedModel(["ok"]), message=text)
    session = await driver.temporal.store.load_session(driver.temporal.session())
    assert session is not None
    assert json.loads(session.state) == {"runs": 2}


async def test_what_instructions_put_into_the_state_is_there_for_the_hook_of_the_end(driver: Driver) -> None:
    seen: list[Any] = []

    def instruct(context: AgentContext) -> str:
        context.state["asked"] = context.state.get("asked", 0) + 1
        return "Be brief."

    agent = Agent("a", tools=[echo], instructions=instruct, on_complete=lambda context: seen.append(context.state))
    await driver.run(agent, ScriptedModel([asks_for(call("echo", "c1", text="x")), "ok"]))
    assert seen[0]["asked"] >= 1


async def test_a_state_changed_on_start_is_written_even_if_nothing_else_was(driver: Driver) -> None:
    def started(context: AgentContext) -> None:
        context.state["started"] = True

    agent = Agent("a", on_start=started)
    ended = await driver.run(agent, ScriptedModel(["ok"]))
    session = await driver.temporal.store.load_session(driver.temporal.session())
    assert session is not None
    assert (json.loads(session.state), ended.status) == ({"started": True}, "complete")


# --- output ---


async def test_an_answer_that_fits_the_output_type_is_read(driver: Driver) -> None:
    ended = await driver.run(Agent("a", output=dict[str, int]), ScriptedModel(['{"n": 1}']))
    assert (ended.status, ended.response, ended.output) == ("complete", '{"n": 1}', {"n": 1})


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("answer", ["no json", '{"n": "x"}', '{"n": NaN}', "[" * 100 + "]" * 100])
async def test_an_answer_that_misses_the_output_type_is_an_error_that_keeps_the_text(
    driver: Driver, answer: str
) -> None:
    log: list[str] = []
    ended = await driver.run(watching(log, output=dict[str, int], loop=Loop(output_retries=0)), ScriptedModel([answer]))
    assert (ended.status, ended.response, ended.output) == ("error", answer, None)
    assert (ended.error or "").startswith("the answer does not fit the agent's output: ")
    assert (log, shape(ended.messages)) == (["start"], ["user go", f"assistant {answer}"])


async def test_the_output_type_is_not_asked_when_the_run_did_not_complete(driver: Driver) -> None:
    agent = Agent("a", tools=[echo], output=int, loop=Loop(max_iterations=1))
    ended = await driver.run(agent, ScriptedModel([asks_for(call("echo", "c1", text="x"), text="working")]))
    assert (ended.status, ended.response, ended.output) == ("max-iterations", "working", None)


# --- what the model is shown ---


async def test_instructions_may_be_texts_and_functions_of_the_context(driver: Driver) -> None:
    async def who(context: AgentContext) -> str:
        return f"You serve {context.user_id}."

    agent = Agent("a", instructions=["Be brief.", who, lambda context: f"You are {context.agent.name}."])
    model = ScriptedModel(["ok"])
    await driver.run(agent, model, user_id="ada")
    assert model.calls[0].messages[0].content == "Be brief.\nYou serve ada.\nYou are a."


async def test_without_instructions_the_agent_is_introduced_by_its_name(driver: Driver) -> None:
    model = ScriptedModel(["ok"])
    await driver.run(Agent("helper"), model)
    assert model.calls[0].messages[0].content == (
        'You are an AI agent named "helper". Use the available tools to accomplish the user\'s request.'
    )


async def test_the_model_is_offered_the_tools_and_the_settings_of_the_agent(driver: Driver) -> None:
    model = ScriptedModel(["ok"])
    await driver.run(Agent("a", tools=[echo, fail], settings={"max_tokens": 9}), model)
    assert [described.name for described in model.calls[0].tools] == ["echo", "fail"]
    assert model.calls[0].settings == {"max_tokens": 9}


# --- context compression ---


def compressing(rule: ContextCompression) -> Agent:
    return Agent("a", instructions="Be brief.", tools=[echo], loop=Loop(context_compression=rule))


async def test_a_long_context_is_compressed_and_stored_whole(driver: Driver) -> None:
    given: list[list[str]] = []

    def shorten(messages: Sequence[Message]) -> list[Message]:
        given.append([message.role for message in messages])
        return [Message(role="user", content="what went before"), *messages[-2:]]

    answers = [asks_for(call("echo", f"c{n}", text="x")) for n in range(4)]
    model = ScriptedModel([*answers, "done"])
    ended = await driver.run(compressing(ContextCompression(shorten, max_messages=5)), model)
    assert given == [["user", *["assistant", "tool"] * 3]]
    assert [message.role for message in model.calls[4].messages] == [
        "system", "user", *["assistant", "tool"] * 2,
    ]  # fmt: skip
    assert model.calls[4].messages[1].content == "what went before"
    assert [message.role for message in ended.messages] == ["user", *["assistant", "tool"] * 4, "assistant"]


async def test_compression_upon_compression_starts_from_what_was_shown_last(driver: Driver) -> None:
    async def shorten(messages: Sequence[Message]) -> Sequence[Message]:
        head = messages[0].content.removeprefix("before: ")
        return [Message(role="user", content=f"before: {head}+"), *messages[-2:]]

    answers = [asks_for(call("echo", f"c{n}", text="x")) for n in range(6)]
    model = ScriptedModel([*answers, "done"])
    ended = await driver.run(compressing(ContextCompression(shorten, max_messages=5)), model)
    assert [asked.messages[1].content for asked in model.calls] == [
        "go", "go", "go", "before: go+", "before: go+", "before: go++", "before: go++",
    ]  # fmt: skip
    assert len(ended.messages) == 14


async def test_a_worker_that_compresses_does_not_load_the_transcript_again(temporal: Temporal) -> None:
    loads: list[int] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(temporal.store, name)

        async def load_messages(self, session_id: str, *, after: int = 0) -> list[Message]:
            loads.append(after)
            return await temporal.store.load_messages(session_id, after=after)

    answers = [asks_for(call("echo", f"c{n}", text="x")) for n in range(6)]
    rule = ContextCompression(lambda messages: [*messages[-2:]], max_messages=5)
    async with temporal.worker(agent := compressing(rule), llm=ScriptedModel([*answers, "done"]), store=Watched()):
        assert (await temporal.run(agent))["status"] == "complete"
    assert loads == []
    assert len(await temporal.messages()) == 14


async def test_a_compression_to_nothing_ends_the_run_with_error(driver: Driver) -> None:
    model = ScriptedModel(["never"])
    rule = ContextCompression(lambda messages: [], max_token_estimate=1)
    ended = await driver.run(compressing(rule), model, message="a long message")
    assert (ended.status, ended.response) == ("error", "Context compression returned empty message array")
    assert model.calls == []


async def test_ids_of_before_a_compression_are_not_used_again_by_a_worker_that_never_saw_them(
    temporal: Temporal,
) -> None:
    rule = ContextCompression(lambda messages: messages[-2:], max_messages=3)
    agent = Agent("a", tools=[echo, ask], loop=Loop(context_compression=rule))
    script = [*(asks_for(call("echo", f"c{n}", text="x")) for n in range(4)), asks_for(call("ask", "a1", question="?"))]
    async with temporal.worker(agent, llm=ScriptedModel(script)):
        run = await temporal.start(agent)
        await pending(run)
    later = ScriptedModel([asks_for(call("echo", "c0", text="again")), "done"])
    async with sqlite_store(temporal.store._path) as other, temporal.worker(agent, llm=later, store=other):
        await run.execute_update("answer", {"text": "yes"})
        await result(run)
    ids = [requested.id for message in await temporal.messages() for requested in message.tool_calls or ()]
    assert len(set(ids)) == len(ids) == 6


# --- what is kept of a session ---


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("name", ["complete", "max-iterations", "stuck"])
async def test_a_session_is_pruned_however_its_run_ends(driver: Driver, name: str) -> None:
    loop = Loop(max_iterations=1 if name == "max-iterations" else 5, stuck_threshold=1 if name == "stuck" else 0)
    agent = Agent("a", tools=[echo], loop=loop)
    first = asks_for(call("nope" if name == "stuck" else "echo", "c1", text="x"))
    for message in ("one", "two"):
        model = ScriptedModel(["done"] if name == "complete" else [first])
        ended = await driver.run(agent, model, message=message, max_stored_messages=3)
        assert ended.status == name
    assert ended.messages[0].content == "two"


@pytest.mark.parametrize("how", ["an escalation", "a late message"])
async def test_the_response_at_a_limit_is_the_last_answer_even_if_the_user_had_the_last_word(
    temporal: Temporal, how: str
) -> None:
    loop = Loop(max_iterations=1, stuck_threshold=1, on_stuck="escalate" if how == "an escalation" else "stop")
    agent = Agent("a", tools=[fail, ask], loop=loop)
    name = "fail" if how == "an escalation" else "ask"
    arguments = {} if name == "fail" else {"question": "?"}
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call(name, "c1", **arguments), text="so far")])):
        run = await temporal.start(agent)
        await pending(run)
        await run.execute_update("message", {"text": "by the way"})
        await run.execute_update("answer", {"text": "go on"})
        ended = await result(run)
    assert (ended["status"], ended["response"]) == ("max-iterations", "so far")


# --- malformed answers ---


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("calls", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_call_is_answered_with_an_error_and_never_run(temporal: Temporal, calls: list[Any]) -> None:
    ran: list[str] = []

    @tool(name="echo")
    async def heard(text: str) -> str:
        ran.append(text)
        return text

    ended = await OnTemporal(temporal).run(Agent("a", tools=[heard]), ScriptedModel([{"tool_calls": calls}, "done"]))
    assert (ended.status, ended.response, ran) == ("complete", "done", [])
    (failed,) = tool_results(ended.messages)
    assert failed.status == "failed"
    assert error_of(failed) != ""


async def test_an_answer_longer_than_a_message_may_be_is_cut_and_says_so(driver: Driver) -> None:
    ended = await driver.run(Agent("a", loop=Loop(max_message_bytes=2_000)), ScriptedModel(["é" * 5_000]))
    assert ended.status == "complete"
    assert "2,000 of 10,000 bytes" in ended.response
    assert ended.messages[-1].content == ended.response


@pytest.mark.parametrize("answer", [5, None, {"texts": "x"}, ["x"]], ids=str)
async def test_an_adapter_that_returns_nonsense_ends_the_run_with_error(driver: Driver, answer: Any) -> None:
    class Broken:
        async def chat(self, messages: Any, tools: Any, **settings: Any) -> Any:
            return answer

    ended = await driver.run(Agent("a"), Broken())
    assert (ended.status, ended.iterations) == ("error", 1)
    assert "is neither an LLMResponse" in ended.response
