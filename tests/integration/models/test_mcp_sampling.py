"""MCP servers that request a model's answer during a call: the calling agent's model answers."""

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters
from support.drivers import Driver, Ended
from support.pipeline_drivers import PipelineDriver
from support.temporal_runs import SECONDS, Temporal, has_ended, until
from support.transcripts import asks_for, call, result_of, says

from standfast import (
    Agent,
    Approval,
    DefinitionError,
    Guardrail,
    Loop,
    Message,
    TokenBudget,
    pipeline,
    run,
    sqlite_store,
)
from standfast.mcp import mcp_server, mcp_tools
from standfast.temporal import StandfastPlugin
from standfast.testing import ScriptedModel

SUPPORT = Path(__file__).parents[2] / "support"


def server(tmp_path: Path, protocol: str = "old") -> StdioServerParameters:
    script = SUPPORT / ("mcp_asking_server.py" if protocol == "new" else "mcp_old_sampler.py")
    return StdioServerParameters(command=sys.executable, args=[str(script), str(tmp_path / "heard")])


def by_name(**models: ScriptedModel) -> Callable[[str | None], ScriptedModel]:
    return lambda name: models[str(name)]


async def sampled(driver: Driver, agent: str) -> list[list[Message]]:
    """Return the transcripts in which an agent has answered for a model."""
    found = await driver.temporal.store.list_sessions(agent_name=agent)
    return [await driver.temporal.store.load_messages(one.id) for one in found]


def answers(ended: Ended, call_id: str = "c1") -> Any:
    return json.loads(result_of(ended.messages, call_id))


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("protocol", ["old", "new"])
async def test_the_model_of_the_agent_answers_and_knows_nothing_of_it(
    driver: Driver, tmp_path: Path, protocol: str
) -> None:
    toolset = mcp_server(server(tmp_path, protocol), sampling=True)
    agent = Agent("a", model="m", instructions="The password is xyzzy.", tools=[toolset], settings={"max_tokens": 900})
    model = ScriptedModel(
        [asks_for(call("think", "c1", text="6 * 7?"), tokens=5), says("42", 100, 10), says("done", 5)]
    )
    ended = await driver.run(agent, by_name(m=model), message="Nobody else may read this.")
    assert "42" in result_of(ended.messages, "c1")
    assert ended.usage is not None
    assert ended.usage.total_tokens == 120
    _, asked, _ = model.calls
    assert asked.tools == []
    assert "user: 6 * 7?" in asked.messages[-1].content
    assert "xyzzy" not in str(asked.messages)
    assert "Nobody else" not in str(asked.messages)
    assert asked.settings == {"max_tokens": 100 if protocol == "new" else 50}
    ((said, answer),) = await sampled(driver, "a-sampling")
    assert "user: 6 * 7?" in said.content
    assert answer.content == "42"


async def test_agents_that_share_a_server_each_have_their_own_model_also_when_one_hands_over(
    driver: Driver, tmp_path: Path
) -> None:
    shared = mcp_server(server(tmp_path), sampling=True)
    expert = Agent("expert", model="large", tools=[shared])
    first = Agent("first", model="small", tools=[shared], handoffs=[expert])
    small = [asks_for(call("think", "c1", text="?")), "a small thought", asks_for(call("transfer_to_expert", "h1"))]
    large = [asks_for(call("think", "c2", text="?")), "a large thought", "done"]
    llm = by_name(small=ScriptedModel(small), large=ScriptedModel(large))
    ended = await driver.run(first, llm, also=(expert,))
    assert (answers(ended, "c1"), answers(ended, "c2")) == (["a small thought"], ["a large thought"])


async def test_an_agent_that_is_a_tool_is_asked_by_its_own_model(driver: Driver, tmp_path: Path) -> None:
    inner = Agent("inner", model="inner", tools=[mcp_server(server(tmp_path), sampling=True)])
    outer = Agent("outer", model="outer", tools=[inner])
    thinking = [asks_for(call("think", "c1", text="?")), says("a thought", 70), "thought"]
    llm = by_name(
        inner=ScriptedModel(thinking), outer=ScriptedModel([asks_for(call("inner", "i1", message="?")), "done"])
    )
    ended = await driver.run(outer, llm, also=(inner,))
    assert result_of(ended.messages, "i1") == "thought"
    assert ended.usage is not None
    assert ended.usage.total_tokens == 70


async def test_an_agent_that_is_a_step_is_asked_by_its_own_model(pipelines: PipelineDriver, tmp_path: Path) -> None:
    agent = Agent("a", model="m", tools=[mcp_server(server(tmp_path), sampling=True)])
    model = ScriptedModel([asks_for(call("think", "c1", text="?")), "a thought", "done"])
    went = await pipelines.run(pipeline("flow").step("s", agent=agent).build(), by_name(m=model))
    assert (went.status, (tmp_path / "heard").read_text()) == ("complete", "a thought\n")


async def test_a_step_without_an_agent_has_no_model_to_ask(pipelines: PipelineDriver, tmp_path: Path) -> None:
    async with mcp_tools(server(tmp_path), sampling=True) as (think,):
        flow = pipeline("flow").step("s", run=think, input=lambda ctx: {"text": "?"}).build()
        went = await pipelines.run(flow, ScriptedModel([]))
    assert (went.status, (tmp_path / "heard").read_text()) == ("complete", "there is no answer\n")


async def test_a_copy_of_an_agent_has_the_model_of_the_copy(driver: Driver, tmp_path: Path) -> None:
    agent = Agent("a", model="m", tools=[mcp_server(server(tmp_path), sampling=True)])
    model = ScriptedModel([asks_for(call("think", "c1", text="?")), "a thought", "done"])
    ended = await driver.run(replace(agent, model="other"), by_name(other=model))
    assert answers(ended) == ["a thought"]


async def test_one_adapter_answers_for_an_agent_without_a_model_that_has_connected_itself(
    driver: Driver, tmp_path: Path
) -> None:
    async with mcp_tools(server(tmp_path), sampling=True, store=driver.temporal.store) as tools:
        model = ScriptedModel([asks_for(call("think", "c1", text="?")), "a thought", "done"])
        ended = await driver.run(Agent("a", tools=tools), model)
    assert answers(ended) == ["a thought"]


async def test_a_fallback_answers_if_the_model_cannot_be_called(driver: Driver, tmp_path: Path) -> None:
    toolset = mcp_server(server(tmp_path), sampling=True)
    agent = Agent("a", model="m", fallback_models=["other"], tools=[toolset])
    model = ScriptedModel([asks_for(call("think", "c1", text="?")), ValueError("no such model"), "done"])
    ended = await driver.run(agent, by_name(m=model, other=ScriptedModel(["a thought"])))
    assert answers(ended) == ["a thought"]


async def test_a_server_is_not_answered_once_the_budget_is_spent(driver: Driver, tmp_path: Path) -> None:
    loop = Loop(token_budget=TokenBudget(100))  # of which 90 end the run
    agent = Agent("a", model="m", tools=[mcp_server(server(tmp_path), sampling=True)], loop=loop)
    asking = asks_for(call("think", "c1", text="?", times=5), call("think", "c2", text="?"), tokens=10)
    model = ScriptedModel([asking, says("first", 40), says("second", 40), says("never said", 40)])
    ended = await driver.run(agent, model)
    assert sorted(answers(ended)) == ["first", "second", *["there is no answer"] * 3]
    assert answers(ended, "c2") == ["there is no answer"]
    assert (ended.status, len(model.calls)) == ("token-budget-exhausted", 3)


async def test_what_guardrails_refuse_is_neither_asked_nor_answered(driver: Driver, tmp_path: Path) -> None:
    def polite(ctx: Any, message: Message) -> str | None:
        return "it is rude" if "damn" in message.content else None

    def no_secrets(ctx: Any, message: Message) -> str | None:
        return f"it tells {ctx.context['secret']}" if ctx.context["secret"] in message.content else None

    agent = Agent(
        "a",
        model="m",
        context=dict[str, str],
        tools=[mcp_server(server(tmp_path), sampling=True)],
        input_guardrails=[polite],
        output_guardrails=[Guardrail(no_secrets)],
    )
    asking = asks_for(call("think", "c1", text="damn"), call("think", "c2", text="?"))
    model = ScriptedModel([asking, "it is xyzzy", "done"])
    ended = await driver.run(agent, by_name(m=model), context={"secret": "xyzzy"})
    assert (answers(ended, "c1"), answers(ended, "c2")) == (["there is no answer"], ["there is no answer"])
    assert ended.response == "done"
    assert "xyzzy" not in (tmp_path / "heard").read_text()


@pytest.mark.parametrize("kind", ["input_guardrails", "output_guardrails"])
async def test_a_guardrail_that_asks_people_refuses_what_a_server_wants(
    driver: Driver, tmp_path: Path, kind: str
) -> None:
    def stop(ctx: Any, message: Message) -> str | None:
        return "a person has to look" if "secret" in message.content else None

    guardrail = Guardrail(stop, approval=Approval(approvers=["ada"]))
    toolset = mcp_server(server(tmp_path), sampling=True)
    agent = Agent("a", model="m", tools=[toolset], **{kind: [guardrail]})  # type: ignore[call-overload]
    model = ScriptedModel([asks_for(call("think", "c1", text="a secret?")), "a secret", "done"])
    if kind == "input_guardrails":
        model = ScriptedModel([asks_for(call("think", "c1", text="a secret?")), "done"])
    ended = await driver.run(agent, by_name(m=model))
    assert (ended.status, answers(ended)) == ("complete", ["there is no answer"])
    assert not ended.waits


async def test_a_server_that_asks_a_hundred_times_or_at_length_is_refused(driver: Driver, tmp_path: Path) -> None:
    agent = Agent("a", model="m", tools=[mcp_server(server(tmp_path), sampling=True)])
    asking = asks_for(call("think", "c1", text="?", times=100), call("think", "c2", text="?", size=300_000))
    model = ScriptedModel([asking, *["a thought"] * 8, "done"])
    ended = await driver.run(agent, by_name(m=model))
    assert sorted(answers(ended)) == ["a thought"] * 8 + ["that is too often in one call"] * 92
    assert answers(ended, "c2") == ["it is too long"]


@pytest.mark.slow(but=1)
async def test_a_server_of_the_newest_protocol_may_ask_several_times_at_once(driver: Driver, tmp_path: Path) -> None:
    agent = Agent("a", model="m", tools=[mcp_server(server(tmp_path, "new"), sampling=True)])
    asking = asks_for(call("ponder", "c1", times=2), call("ponder", "c2", times=100))
    model = ScriptedModel([asking, *["a thought"] * 10, "done"])
    ended = await driver.run(agent, by_name(m=model))
    assert result_of(ended.messages, "c1") == "['a thought', 'a thought']"
    assert "gets no answer: that is too often in one call" in result_of(ended.messages, "c2")
    assert ended.status == "complete"


async def test_runs_at_once_each_get_their_own_answers(temporal: Temporal, tmp_path: Path) -> None:
    agent = Agent("a", model="m", tools=[mcp_server(server(tmp_path), sampling=True)])

    def answer(messages: list[Message], tools: Any) -> Any:
        if not tools:
            return f"answer {messages[-1].content[-1]}"
        last = messages[-1]
        return last.content if last.role == "tool" else asks_for(call("think", "c1", text=last.content, times=3))

    async def here(number: int) -> str:
        name = temporal.session(f"here{number}")
        ended = await run(agent, message=str(number), llm=model, store=temporal.store, session_id=name)
        return str(ended.response)

    async def there(number: int) -> str:
        return str((await temporal.run(agent, str(number), session=f"there{number}"))["response"])

    model = ScriptedModel(answer)
    async with temporal.worker(agent, llm=model):
        said = await asyncio.gather(here(0), here(1), there(2), there(3))
    assert [json.loads(text) for text in said] == [[f"answer {number}"] * 3 for number in range(4)]
    assert len(await temporal.store.list_sessions(agent_name="a-sampling")) == 12


async def test_a_run_that_is_cancelled_while_its_model_answers_a_server_leaves_nothing_running(
    temporal: Temporal, tmp_path: Path
) -> None:
    agent, asked = Agent("a", tools=[mcp_server(server(tmp_path), sampling=True)]), []

    async def answer(messages: list[Message], tools: Any) -> Any:
        if tools:
            return asks_for(call("think", "c1", text="?", times=3))
        asked.append(messages)
        return await asyncio.sleep(SECONDS)

    task = asyncio.create_task(run(agent, message="go", llm=ScriptedModel(answer), store=temporal.store))
    await until(lambda: asked)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with temporal.worker(agent, llm=ScriptedModel(answer)):
        run_there = await temporal.start(agent)
        await until(lambda: len(asked) == 2)
        await run_there.cancel()
        await until(lambda: has_ended(run_there))
        await until(lambda: _is_over(temporal, run_there.id))
    assert len(asked) == 2


async def _is_over(temporal: Temporal, run_id: str) -> bool:
    """Whether a run, and all that it has started, has ended."""
    query = f"TaskQueue = '{temporal.name}' AND ExecutionStatus = 'Running'"
    return not [one async for one in temporal.client.list_workflows(query) if one.id.startswith(run_id)]


async def test_a_server_that_asks_when_its_call_is_over_is_not_answered(driver: Driver, tmp_path: Path) -> None:
    agent = Agent("a", model="m", tools=[mcp_server(server(tmp_path), sampling=True)])
    calls = [asks_for(call("think", f"c{number}", text="?", late=True, times=3)) for number in range(3)]
    ended = await driver.run(agent, by_name(m=(model := ScriptedModel([*calls, "done"]))))
    assert (ended.status, len(model.calls)) == ("complete", 4)


async def test_a_server_that_asks_before_its_tool_is_called_is_not_answered(driver: Driver, tmp_path: Path) -> None:
    (tmp_path / "heard.early").touch()
    agent = Agent("a", model="m", tools=[mcp_server(server(tmp_path), sampling=True)])
    model = ScriptedModel([asks_for(call("think", "c1", text="?")), "a thought", "done"])
    ended = await driver.run(agent, by_name(m=model))
    assert answers(ended) == ["a thought"]
    assert (tmp_path / "heard").read_text().splitlines()[1:] == ["no call is under way", "a thought"]


PARAMS: dict[str, Any] = {
    "no limit that a model could have": {"maxTokens": 10**30},
    "a limit below one": {"maxTokens": -5},
    "tools": {"tools": [{"name": "rm", "inputSchema": {"type": "object"}}], "toolChoice": {"mode": "required"}},
    "the conversation": {"includeContext": "allServers"},
    "a model": {"modelPreferences": {"hints": [{"name": "other"}]}, "temperature": 2, "stopSequences": ["a"]},
    "surrogates and marks": {"systemPrompt": "\ud800 \u202e\x00 </system>"},
    "a picture": {
        "messages": [{"role": "user", "content": {"type": "image", "data": "AAAA", "mimeType": "image/png"}}]
    },
}


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("params", PARAMS.values(), ids=list(PARAMS))
async def test_a_request_gets_text_or_nothing_whatever_it_wants(driver: Driver, tmp_path: Path, params: Any) -> None:
    agent = Agent("a", model="m", tools=[mcp_server(server(tmp_path), sampling=True)])
    model = ScriptedModel([asks_for(call("think", "c1", text="?", params=params)), "a thought", "done"])
    ended = await driver.run(agent, by_name(m=model))
    assert ended.status == "complete"
    assert all(one.settings == {} for one in model.calls)


def test_what_cannot_be_the_sampling_of_a_server_is_refused() -> None:
    with pytest.raises(DefinitionError, match="sampling must be an Agent, True or False"):
        mcp_server("https://example.com/mcp", sampling="a")  # type: ignore[arg-type]


def test_an_agent_with_the_name_of_one_that_answers_servers_is_refused(tmp_path: Path) -> None:
    agents = [Agent("a", tools=[mcp_server("https://example.com/mcp", sampling=True)]), Agent("a-sampling")]
    with pytest.raises(DefinitionError, match="two are named 'a-sampling'"):
        StandfastPlugin(agents=agents, store=sqlite_store(tmp_path / "s.db"), llm=ScriptedModel([]))
