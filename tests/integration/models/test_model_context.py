"""The model's view: the system prompt, the messages in order, and the rest after compression."""

from collections.abc import Sequence
from typing import Any

from support.doubles import echo
from support.transcripts import asks_for, call

from standfast import Agent, AgentContext, ContextCompression, Loop, Message, Tool, assert_complete, run
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel

# --- what the model is shown ---


async def test_the_order_is_system_then_earlier_messages_then_the_new_one() -> None:
    model = ScriptedModel(["ok"])
    earlier = [Message(role="user", content="one"), Message(role="assistant", content="two")]
    await run(Agent("a", instructions="Be brief."), messages=earlier, message="three", llm=model)
    assert [(m.role, m.content) for m in model.calls[0].messages] == [
        ("system", "Be brief."),
        ("user", "one"),
        ("assistant", "two"),
        ("user", "three"),
    ]


async def test_without_instructions_the_agent_is_introduced_by_its_name() -> None:
    model = ScriptedModel(["ok"])
    await run(Agent("helper"), message="go", llm=model)
    assert model.calls[0].messages == [
        Message(
            role="system",
            content='You are an AI agent named "helper". Use the available tools to accomplish the user\'s request.',
        ),
        Message(role="user", content="go"),
    ]


async def test_instructions_may_be_texts_and_functions_of_the_context() -> None:
    async def who(context: AgentContext) -> str:
        return f"You serve {context.user_id}."

    agent = Agent("a", instructions=["Be brief.", who, lambda context: f"You are {context.agent.name}."])
    model = ScriptedModel(["ok"])
    await run(agent, message="go", user_id="ada", llm=model)
    assert model.calls[0].messages[0].content == "Be brief.\nYou serve ada.\nYou are a."


async def test_the_system_prompt_is_neither_returned_nor_stored(store: SQLiteStore) -> None:
    result = assert_complete(
        await run(
            Agent("a", instructions="secret"), message="go", session_id="s", store=store, llm=ScriptedModel(["ok"])
        )
    )
    assert [message.role for message in result.messages] == ["user", "assistant"]
    assert await store.load_messages("s") == list(result.messages)


async def test_the_model_is_offered_the_tools_and_the_settings_of_the_agent() -> None:
    model = ScriptedModel(["ok"])
    await run(Agent("a", tools=[echo], settings={"max_tokens": 9}), message="go", llm=model)
    assert [described.name for described in model.calls[0].tools] == ["echo"]
    assert model.calls[0].settings == {"max_tokens": 9}


# --- context compression ---


def compressing(rule: ContextCompression, tools: Sequence[Tool[..., Any]] = (echo,)) -> Agent:
    return Agent("a", instructions="Be brief.", tools=tools, loop=Loop(context_compression=rule))


async def test_a_long_context_is_compressed_behind_the_system_prompt() -> None:
    given: list[list[str]] = []

    def shorten(messages: Sequence[Message]) -> list[Message]:
        given.append([message.role for message in messages])
        return [Message(role="user", content="what went before"), *messages[-2:]]

    answers = [asks_for(call("echo", f"c{n}", text="x")) for n in range(3)]
    model = ScriptedModel([*answers, "done"])
    result = assert_complete(
        await run(compressing(ContextCompression(shorten, max_messages=5)), message="go", llm=model)
    )
    assert given == [["user", *["assistant", "tool"] * 3]]
    assert [(m.role, m.content) for m in model.calls[3].messages[:2]] == [
        ("system", "Be brief."),
        ("user", "what went before"),
    ]
    assert (result.compression_count, len(result.messages)) == (1, 8)


async def test_a_compression_function_may_be_async() -> None:
    async def shorten(messages: Sequence[Message]) -> Sequence[Message]:
        return messages[-1:]

    model = ScriptedModel(["done"])
    earlier = [Message(role="user", content="one"), Message(role="assistant", content="two")]
    await run(compressing(ContextCompression(shorten, max_messages=1)), messages=earlier, message="three", llm=model)
    assert [message.content for message in model.calls[0].messages] == ["Be brief.", "three"]


async def test_compression_counts_none_when_not_configured_and_zero_when_unused() -> None:
    unused = compressing(ContextCompression(lambda messages: messages, max_messages=50))
    with_rule = assert_complete(await run(unused, message="go", llm=ScriptedModel(["ok"])))
    without = assert_complete(await run(Agent("a"), message="go", llm=ScriptedModel(["ok"])))
    assert (with_rule.compression_count, without.compression_count) == (0, None)


async def test_a_compression_to_nothing_ends_the_run_with_error() -> None:
    agent = compressing(ContextCompression(lambda messages: [], max_token_estimate=1))
    model = ScriptedModel(["never"])
    result = assert_complete(await run(agent, message="a long message", llm=model))
    assert (result.status, result.response) == ("error", "Context compression returned empty message array")
    assert model.calls == []


async def test_many_characters_are_compressed_too() -> None:
    agent = compressing(ContextCompression(lambda messages: messages[-1:], max_token_estimate=100))
    model = ScriptedModel(["done"])
    earlier = [Message(role="user", content="x" * 500), Message(role="assistant", content="y")]
    result = assert_complete(await run(agent, messages=earlier, message="go", llm=model))
    assert result.compression_count == 1
    assert [message.content for message in model.calls[0].messages] == ["Be brief.", "go"]


async def test_what_is_stored_of_a_compressed_run_is_whole_and_there_once(store: SQLiteStore) -> None:
    agent = compressing(ContextCompression(lambda messages: messages[-2:], max_messages=2))
    answers = [asks_for(call("echo", f"c{n}", text=f"x{n}")) for n in range(4)]
    model = ScriptedModel([*answers, "done"])
    result = assert_complete(await run(agent, message="go", session_id="s", store=store, llm=model))
    stored = await store.load_messages("s")
    assert result.compression_count == 4
    assert stored == list(result.messages)
    assert [message.role for message in stored] == ["user", *["assistant", "tool"] * 4, "assistant"]
