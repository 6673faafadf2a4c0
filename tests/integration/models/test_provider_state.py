"""Extra data from servers with OpenAI's format goes back to the same server, unchanged, and to no other."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.doubles import echo
from support.drivers import Driver
from support.model_server import ModelServer, Reply, calls, says, streams
from support.transcripts import asks_for, call

from standfast import Agent, Citation, LLMResponse, Loop, Message, ModelError, assert_complete, run
from standfast.llm import OpenAICompatible, create_adapter
from standfast.llm.chat_completions import joined_items
from standfast.llm.reasoning import within
from standfast.messages import Reasoning
from standfast.testing import ScriptedModel
from standfast.testing.model_server import Request

THOUGHT = "The user wants an echo."
SIGNED = {"google": {"thought_signature": "CvcBAY89hZ8="}}
DETAILS = [{"type": "reasoning.text", "text": "I should call it.", "signature": "sig", "index": 0}]
PARTS = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "Which tool? The echo."}], "closed": True},
    {"type": "text", "text": "I look."},
]
CALL = calls("echo", '{"text": "a"}')


def refused(words: str) -> Reply:
    return Reply({"error": {"message": words, "type": "invalid_request_error"}}, 400)


def answers(request: Request) -> list[dict[str, Any]]:
    return [message for message in request.body["messages"] if message["role"] == "assistant"]


def demanding(first: Reply, has_state: Callable[[dict[str, Any]], bool], words: str) -> Callable[[Request], Reply]:
    """Answer first with a call, then with a text, if the first answer came back whole; else refuse as providers do."""

    def reply(request: Request) -> Reply:
        given = answers(request)
        if not given:
            return first
        if not all(map(has_state, given)):
            return refused(words)
        return streams("Done.") if request.body.get("stream") else says("Done.")

    return reply


STATES: dict[str, tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any], str]] = {
    # the message, its deltas, the message as it has to come back, and the text of its thoughts
    "deepseek": (
        {"content": "", "reasoning_content": THOUGHT, "tool_calls": [CALL]},
        [
            {"role": "assistant", "content": None, "reasoning_content": ""},
            {"reasoning_content": "The user wants", "content": None},
            {"reasoning_content": " an echo.", "content": None},
            {"content": None, "reasoning_content": None, "tool_calls": [{**CALL, "index": 0}]},
        ],
        {"reasoning_content": THOUGHT},
        THOUGHT,
    ),
    "no thoughts this time": (
        {"content": "", "reasoning_content": "", "tool_calls": [CALL]},
        [{"content": None, "reasoning_content": ""}, {"tool_calls": [{**CALL, "index": 0}]}],
        {"reasoning_content": ""},
        "",
    ),
    "gemini": (
        {"content": None, "tool_calls": [{**CALL, "extra_content": SIGNED}]},
        [{"tool_calls": [{**CALL, "index": 0, "extra_content": SIGNED}]}],
        {"tool_calls": [{**CALL, "extra_content": SIGNED}]},
        "",
    ),
    "a signature of the text": (
        {"content": "I look.", "tool_calls": [CALL], "extra_content": SIGNED},
        [{"content": "I look."}, {"extra_content": SIGNED, "tool_calls": [{**CALL, "index": 0}]}],
        {"content": "I look.", "extra_content": SIGNED},
        "",
    ),
    "openrouter": (
        {"content": "", "reasoning": "I should call it.", "reasoning_details": DETAILS, "tool_calls": [CALL]},
        [
            {
                "reasoning": "I should",
                "reasoning_details": [{"type": "reasoning.text", "text": "I should", "signature": None, "index": 0}],
            },
            {
                "reasoning": " call it.",
                "reasoning_details": [{"type": "reasoning.text", "text": " call it.", "signature": "sig", "index": 0}],
            },
            {"tool_calls": [{**CALL, "index": 0}]},
        ],
        {"reasoning": "I should call it.", "reasoning_details": DETAILS},
        "I should call it.",
    ),
    "mistral": (
        {"content": PARTS, "prefix": False, "tool_calls": [CALL]},
        [
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Which tool?"}]}]},
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": " The echo."}], "closed": True}]},
            {"content": "I "},
            {"content": [{"type": "text", "text": "look."}]},
            {"tool_calls": [{**CALL, "index": 0}]},
        ],
        {"content": PARTS},
        "Which tool? The echo.",
    ),
}


def test_details_of_no_known_kind_are_joined_by_their_index() -> None:
    pieces = [{"type": ["unhashable"], "index": 1, "text": text} for text in ("a", "b")]
    assert joined_items(pieces) == [{"type": ["unhashable"], "index": 1, "text": "ab"}]


@pytest.fixture(params=STATES)
def state(request: pytest.FixtureRequest) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any], str]:
    return STATES[request.param]


@asynccontextmanager
async def served(script: Any) -> AsyncIterator[tuple[ModelServer, OpenAICompatible]]:
    async with ModelServer(script) as server:
        yield server, OpenAICompatible(model="m", base_url=server.url)


async def ask(model: Any, way: str, messages: list[Message]) -> LLMResponse:
    if way == "chat":
        answer: LLMResponse = await model.chat(messages, [])
        return answer
    *_, whole = [part async for part in model.stream(messages, [])]
    assert isinstance(whole, LLMResponse)
    return whole


def first_of(state: Any, way: str) -> Reply:
    message, deltas, _, _ = state
    if way == "stream":
        return streams(*deltas, finish="tool_calls")
    return Reply({"choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}]})


def said(answer: LLMResponse) -> Message:
    return Message(
        role="assistant", content=answer.text, tool_calls=answer.tool_calls or None, reasoning=answer.reasoning
    )


HI = Message(role="user", content="hi")
RESULT = Message(role="tool", content="a", tool_call_id="c1", tool_name="echo", status="completed")


@pytest.mark.parametrize("way", ["chat", "stream"])
async def test_what_a_server_needs_back_of_its_answer_comes_back_with_the_results(way: str, state: Any) -> None:
    wanted, thought = state[2], state[3]

    def is_whole(message: dict[str, Any]) -> bool:
        return all(message.get(name) == value for name, value in wanted.items())

    async with served(demanding(first_of(state, way), is_whole, "it must be passed back")) as (_, model):
        first = await ask(model, way, [HI])
        assert (first.text, [call.name for call in first.tool_calls]) == (
            "I look." if "content" in wanted else "",
            ["echo"],
        )
        assert ("" if first.reasoning is None else first.reasoning.text) == thought
        second = await ask(model, way, [HI, said(first), RESULT])
        assert second.text == "Done."


@pytest.mark.parametrize("emits", [False, True], ids=["chat", "stream"])
async def test_an_agent_with_tools_gets_on_with_a_model_that_wants_its_thoughts_back(emits: bool) -> None:
    script = demanding(
        says(None, CALL, reasoning_content=THOUGHT),
        lambda message: message.get("reasoning_content") == THOUGHT,
        "The reasoning_content in the thinking mode must be passed back to the API.",
    )
    async with served(script) as (_, model):
        ended = assert_complete(await run(Agent("a", tools=[echo]), message="hi", llm=model))
    assert ended.response == "Done."
    assert ended.messages[1].reasoning is not None
    assert ended.messages[1].reasoning.text == THOUGHT


async def test_another_server_never_sees_it() -> None:
    async with (
        ModelServer(says(None, CALL, reasoning_content=THOUGHT)) as one,
        ModelServer(says("Done.")) as other,
    ):
        first = await OpenAICompatible(model="m", base_url=one.url).chat([HI], [])
        await OpenAICompatible(model="m", base_url=other.url).chat([HI, said(first), RESULT], [])
    assert "reasoning" not in str(other.requests[0].body)


@pytest.mark.parametrize(
    ("one", "other", "is_seen"),
    [
        ({"base_url": "/deepseek/v1"}, {"base_url": "/google/v1"}, False),
        ({"model": "deepseek/v4"}, {"model": "google/gemini-3"}, False),
        ({"model": "deepseek/v4"}, {"model": "deepseek/v4-pro"}, True),
        ({"model": "m"}, {"model": "n"}, True),
    ],
    ids=["paths", "vendors", "models of a vendor", "models"],
)
async def test_another_provider_behind_the_same_gateway_never_sees_it(
    one: dict[str, str], other: dict[str, str], is_seen: bool
) -> None:
    async with ModelServer(says(None, CALL, reasoning_content=THOUGHT), says("Done.")) as gateway:

        def model(model: str = "m", base_url: str = "/v1") -> OpenAICompatible:
            return OpenAICompatible(model=model, base_url=gateway.url.removesuffix("/v1") + base_url)

        first = await model(**one).chat([HI], [])
        await model(**other).chat([HI, said(first), RESULT], [])
    assert ("reasoning" in str(gateway.requests[1].body)) == is_seen


SDK_THOUGHTS: dict[str, tuple[str, dict[str, Any]]] = {  # where the SDK adds the version, and a thought
    "openai": ("/v1", {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}),
    "anthropic": ("", {"type": "thinking", "thinking": "Hm.", "signature": "gAAA"}),
}


@pytest.mark.parametrize("provider", SDK_THOUGHTS)
@pytest.mark.parametrize(
    ("other", "is_seen"),
    [({"base_url": "/other"}, False), ({"model": "other/m"}, False), ({"model": "n"}, True), ({"way": "stream"}, True)],
    ids=["path", "vendor", "model", "same"],
)
async def test_thoughts_of_a_model_of_an_sdk_go_back_to_its_address_only(
    provider: str, other: dict[str, str], is_seen: bool
) -> None:
    version, block = SDK_THOUGHTS[provider]
    thoughtful = LLMResponse(text="I look.", reasoning=Reasoning(provider=provider, blocks=(block,)))
    async with ModelServer(thoughtful, "Done.") as server:

        def model(model: str = "m", base_url: str = "/a") -> Any:
            at = f"http://{server.address}{base_url}{version}"
            return create_adapter(provider=provider, model=model, api_key="key", base_url=at)

        way = other.get("way", "chat")
        first = said(await ask(model(), way, [HI]))
        await ask(model(**{name: value for name, value in other.items() if name != "way"}), way, [HI, first, HI])
    assert first.reasoning is not None
    assert first.reasoning.provider == f"{provider}:{server.address}/a{version}"
    assert ("gAAA" in str(server.requests[1].body)) == is_seen


@pytest.mark.parametrize("provider", SDK_THOUGHTS)
async def test_what_an_earlier_version_has_kept_by_sdk_goes_back(provider: str) -> None:
    version, block = SDK_THOUGHTS[provider]
    before = Message(role="assistant", content="I look.", reasoning=Reasoning(provider=provider, blocks=(block,)))
    async with ModelServer("Done.") as server:
        at = f"http://{server.address}{version}"
        model: Any = create_adapter(provider=provider, model="m", api_key="key", base_url=at)
        await ask(model, "chat", [HI, before, HI])
    assert "gAAA" in str(server.requests[0].body)


def kept(provider: str, size: int, number: int) -> Message:
    return Message(
        role="assistant",
        content=f"answer {number}",
        reasoning=Reasoning(provider=provider, blocks=({"thinking": "x" * (size - 17)},)),
    )


@pytest.mark.parametrize(
    ("sizes", "whole"),
    [
        ([100, 100, 100], [True, True, True]),
        ([100, 200, 200], [False, True, True]),
        ([50, 300, 150], [False, False, True]),  # no gap: what is older than one that is left out is left out
        ([100, 100, 401], [False, False, False]),
        ([], []),
    ],
)
def test_the_thoughts_that_go_back_are_the_newest_whole_ones(sizes: list[int], whole: list[bool]) -> None:
    messages = [HI, *(kept("p", size, number) for number, size in enumerate(sizes)), kept("q", 400, 9)]
    shown = within(messages, 400)
    assert [one.content for one in shown] == [one.content for one in messages]
    assert [one.reasoning is not None for one in shown[1:-1]] == whole
    assert shown[-1] == messages[-1]  # of another provider, which has its own limit
    assert messages[1].reasoning is not None


async def test_a_request_has_no_more_thoughts_than_one_message_may_have(driver: Driver) -> None:
    turns = [asks_for(call("echo", f"c{number}", text="x")) for number in range(4)]
    model = ScriptedModel(
        [turn.model_copy(update={"reasoning": kept("p", 600, 0).reasoning}) for turn in turns] + ["ok"]
    )
    ended = await driver.run(Agent("a", tools=[echo], loop=Loop(max_message_bytes=1_300)), model)
    assert [one.reasoning is not None for one in ended.messages if one.tool_calls] == [True] * 4
    sent = [[one.reasoning is not None for one in asked.messages if one.tool_calls] for asked in model.calls]
    assert sent == [[], [True], [True, True], [False, True, True], [False, False, True, True]]


async def test_what_an_earlier_version_has_kept_by_host_goes_back() -> None:
    async with ModelServer(says(None, CALL, reasoning_content=THOUGHT), says("Done.")) as server:
        model = OpenAICompatible(model="m", base_url=server.url)
        first = said(await model.chat([HI], []))
        assert first.reasoning is not None
        by_host = f"openai-compatible:{server.url.split('/')[2]}"
        kept = first.model_copy(update={"reasoning": first.reasoning.model_copy(update={"provider": by_host})})
        await model.chat([HI, kept, RESULT], [])
    assert first.reasoning.provider == f"{by_host}/v1"
    assert THOUGHT in str(server.requests[1].body)


async def test_a_server_that_refuses_its_own_fields_is_asked_without_them() -> None:
    def strict(request: Request) -> Reply:
        if any("reasoning" in message for message in answers(request)):
            return refused("'messages.1' : for 'role:assistant' the property 'reasoning' is unsupported")
        return says("Done.") if answers(request) else says(None, CALL, reasoning=THOUGHT)

    async with served(strict) as (server, model):
        first = await model.chat([HI], [])
        second = await model.chat([HI, said(first), RESULT], [])
    assert (second.text, len(server.requests)) == ("Done.", 3)


async def test_answers_of_another_model_get_the_empty_thoughts_that_a_server_insists_on() -> None:
    script = demanding(
        says("?"),
        lambda message: "reasoning_content" in message or not message.get("tool_calls"),
        "The reasoning_content in the thinking mode must be passed back to the API.",
    )
    elsewhere = await ScriptedModel([{"tool_calls": [{"id": "c1", "name": "echo", "arguments": {}}]}]).chat([HI], [])
    async with served(script) as (_, model):
        assert (await model.chat([HI, said(elsewhere), RESULT], [])).text == "Done."


async def test_any_other_refusal_is_told_as_it_was_and_nothing_is_asked_twice() -> None:
    async with served(lambda request: refused("temperature is too high")) as (server, model):
        with pytest.raises(ModelError, match="temperature is too high"):
            await model.chat([HI, Message(role="assistant", content="ok"), HI], [])
    assert len(server.requests) == 1


async def test_what_is_too_long_to_be_kept_is_left_out_and_the_run_continues() -> None:
    script = demanding(
        says(None, CALL, reasoning_content="x" * 2_000),
        lambda message: "reasoning_content" in message,
        "The reasoning_content in the thinking mode must be passed back to the API.",
    )
    async with served(script) as (_, model):
        agent = Agent("a", tools=[echo], loop=Loop(max_message_bytes=1_024))
        ended = assert_complete(await run(agent, message="hi", llm=model))
    assert (ended.response, ended.messages[1].reasoning) == ("Done.", None)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([], ""),
        (["a", {"type": "text", "text": "b"}], "ab"),
        ([{"type": "text", "text": None}, {"type": "new", "of": [1]}, {"type": "refusal", "refusal": "no"}, 7], "no"),
    ],
)
async def test_parts_of_any_kind_are_read(content: Any, text: str) -> None:
    async with served(lambda request: says(content)) as (_, model):
        assert (await model.chat([HI], [])).text == text


@pytest.mark.parametrize("way", ["chat", "stream"])
async def test_a_refusal_and_the_sources_of_an_answer_are_read(way: str) -> None:
    cited = {"type": "url_citation", "url_citation": {"url": "https://yr.no", "title": "Yr", "start_index": 0}}
    said = {"refusal": "I will not.", "annotations": [cited, cited, 5]}
    whole = {"message": {"role": "assistant", "content": None, **said}, "finish_reason": "stop"}
    pieces = [{"choices": [{"delta": said}], "citations": ["https://met.no"]}, b"[DONE]"]
    body = pieces if way == "stream" else {"choices": [whole], "citations": ["https://met.no"]}
    async with served(lambda request: Reply(body)) as (_, model):
        answer = await ask(model, way, [HI])
    assert (answer.text, answer.not_whole) == ("I will not.", "refusal")
    assert answer.citations == (Citation(url="https://met.no"), Citation(url="https://yr.no", title="Yr"))
    assert answer.reasoning is None
