"""Models of other libraries, each by the SDK that it uses, against a server that speaks its provider's format.

The same promises for all: `make test-providers` runs this file in an environment of each library.
"""

import base64
import importlib.util
import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.worker import Worker

from standfast import (
    Agent,
    DefinitionError,
    Image,
    LLMResponse,
    Loop,
    Message,
    ModelError,
    ReasoningDelta,
    RetryPolicy,
    ToolCall,
    Usage,
    run,
    sqlite_store,
    tool,
)
from standfast.llm import AnswerLimits, Price, ToolDescription, create_adapter, pydantic_ai_model
from standfast.messages import Reasoning
from standfast.temporal import StandfastPlugin, connect, start_agent
from standfast.testing import DevServer, Fault, ModelServer, Reply, dev_server

LIBRARY = "any-llm" if importlib.util.find_spec("any_llm") else "pydantic-ai"
KEY = "key-of-the-test"
HI = [Message(role="user", content="hi")]
ECHO = ToolDescription(
    name="echo",
    description="Return the text.",
    input_schema={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)
OTHER = ECHO.model_copy(update={"name": "other"})
USAGE = Usage(input_tokens=100, output_tokens=7, cached_tokens=60)
CALLS = (ToolCall(id="c1", name="echo", arguments={"text": "a"}), ToolCall(id="c2", name="echo", arguments={}))


@dataclass(frozen=True)
class Case:
    """A provider of the library, and what its format is like."""

    provider: str
    path: str
    has_version: bool = False  # the SDK brings the version in its paths

    def address(self, server: ModelServer) -> str:
        return f"http://{server.address}" if self.has_version else server.url


CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
CASES = {
    "any-llm": [Case("openai", CHAT), Case("openrouter", CHAT), Case("anthropic", MESSAGES, True)],
    "pydantic-ai": [Case("openai-chat", CHAT), Case("openai", RESPONSES), Case("anthropic", MESSAGES, True)],
}[LIBRARY]
ANTHROPIC = next(case for case in CASES if case.path == MESSAGES)
OPENAI = next(case for case in CASES if case.path == CHAT)


@pytest.fixture(params=CASES, ids=lambda case: case.provider)
def case(request: pytest.FixtureRequest) -> Case:
    given: Case = request.param
    return given


@pytest.fixture(params=["chat", "stream"])
def way(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def adapter(case: Case, server: ModelServer, **options: Any) -> Any:
    if LIBRARY == "any-llm":
        at = {"api_key": KEY, "base_url": case.address(server)}
        return create_adapter(provider="any-llm", model=f"{case.provider}:m", **at, **options)
    return pydantic_ai_model(theirs(case, server), **options)


def theirs(case: Case, server: ModelServer) -> Any:
    """Return a model of pydantic-ai, as a user makes one."""
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    at = {"api_key": KEY, "base_url": case.address(server)}
    match case.path:
        case "/v1/messages":
            return AnthropicModel("claude-sonnet-4-6", provider=AnthropicProvider(**at))
        case "/v1/responses":
            return OpenAIResponsesModel("gpt-5", provider=OpenAIProvider(**at))
    return OpenAIChatModel("m", provider=OpenAIProvider(**at))


@asynccontextmanager
async def served(case: Case, *script: Any, **options: Any) -> AsyncIterator[tuple[ModelServer, Any]]:
    async with ModelServer(*script) as server:
        yield server, adapter(case, server, **options)


async def ask(
    model: Any, way: str = "chat", messages: Sequence[Message] = HI, tools: Sequence[Any] = (), **settings: Any
) -> tuple[LLMResponse, list[str]]:
    """Return a whole answer, and the pieces of its text; the pieces of its thoughts are its readable ones."""
    if way == "chat":
        answer = await model.chat(messages, tools, **settings)
        return answer, [answer.text]
    *parts, answer = [part async for part in model.stream(messages, tools, **settings)]
    thoughts = "".join(part.text for part in parts if isinstance(part, ReasoningDelta))
    assert thoughts == ("" if answer.reasoning is None else answer.reasoning.text)
    return answer, [part for part in parts if isinstance(part, str)]


def said(answer: LLMResponse) -> Message:
    return Message(
        role="assistant", content=answer.text, tool_calls=answer.tool_calls or None, reasoning=answer.reasoning
    )


def done(call: str) -> Message:
    return Message(role="tool", content=f"done {call}", tool_call_id=call, tool_name="echo", status="completed")


# --- requests and answers ---


async def test_a_request_goes_where_it_belongs_with_the_key(case: Case) -> None:
    async with served(case, "hello") as (server, model):
        answer, _ = await ask(model, max_tokens=50)
    (request,) = server.requests
    assert request.path.partition("?")[0] == case.path
    assert request.body["model"] in ("m", "gpt-5", "claude-sonnet-4-6")
    assert KEY in (request.headers.get("authorization") or request.headers.get("x-api-key") or "")
    limits = {"max_tokens", "max_completion_tokens", "max_output_tokens"}
    assert [request.body[name] for name in limits if name in request.body] == [50]
    assert answer.text == "hello"


async def test_an_answer_is_text_with_its_usage(case: Case, way: str) -> None:
    async with served(case, LLMResponse(text="Hello, it is me.", usage=USAGE)) as (_, model):
        answer, pieces = await ask(model, way)
    assert (answer.text, answer.tool_calls, answer.not_whole) == ("Hello, it is me.", (), None)
    assert "".join(pieces) == answer.text
    assert len(pieces) == (1 if way == "chat" else 4)
    assert answer.usage == USAGE


async def test_calls_of_tools_are_read(case: Case, way: str) -> None:
    async with served(case, LLMResponse(text="I look.", tool_calls=CALLS)) as (_, model):
        answer, _ = await ask(model, way, tools=[ECHO])
    assert answer.text == "I look."
    found = [(call.id, call.name, call.arguments) for call in answer.tool_calls]
    assert found == [("c1", "echo", {"text": "a"}), ("c2", "echo", {})]


async def test_a_conversation_is_written_with_its_calls_and_results(case: Case) -> None:
    messages = [
        Message(role="system", content="Be brief."),
        *HI,
        Message(role="assistant", content="I look.", tool_calls=(CALLS[0], CALLS[1].model_copy(update={"id": "x.1"}))),
        done("c1"),
        Message(role="tool", content="no", tool_call_id="x.1", tool_name="echo", status="failed"),
        Message(role="user", content="and?"),
    ]
    async with served(case, "hello") as (server, model):
        await ask(model, "chat", messages, [ECHO, OTHER], tool_choice={"name": "echo"})
    written = json.dumps(server.requests[0].body)
    places = [written.index(text) for text in ("I look.", "c1", "done c1", "and?")]
    assert places == sorted(places)
    assert "Be brief." in written
    assert "x.1" not in written, "an id that some provider refuses"
    assert written.count("x_1_") == 2
    assert '"echo"' in json.dumps(server.requests[0].body["tool_choice"])


async def test_images_are_sent_beside_the_text(case: Case) -> None:
    picture = base64.b64encode(b"\x89PNG").decode()
    images = (Image(url="https://x.example/a.png"), Image(data=picture, media_type="image/png"))
    async with served(case, "a cat") as (server, model):
        await ask(model, "chat", [Message(role="user", content="What is it?", images=images)])
    written = json.dumps(server.requests[0].body)
    places = [written.index(text) for text in ("https://x.example/a.png", picture, "What is it?")]
    assert places == sorted(places)


@pytest.mark.parametrize(("chat", "messages", "meaning"), [("length", "max_tokens", "max-tokens")])
async def test_an_answer_that_was_cut_off_says_so(chat: str, messages: str, meaning: str, way: str) -> None:
    for case, word in ((OPENAI, chat), (ANTHROPIC, messages)):
        async with served(case, LLMResponse(text="Hel", stop_reason=word)) as (_, model):
            answer, _ = await ask(model, way)
        assert (answer.text, answer.not_whole) == ("Hel", meaning)


async def test_an_output_is_enforced_by_the_provider_beside_no_tools() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for case in (next(one for one in CASES if one.provider == "openai"), ANTHROPIC):
        async with served(case, '{"a": 1}', '{"a": 1}') as (server, model):
            assert model.native_output
            await ask(model, output_schema=schema)
            await ask(model, tools=[ECHO], output_schema=schema)
        with_schema, without = (json.dumps(request.body) for request in server.requests)
        assert '"json_schema"' in with_schema
        assert '"json_schema"' not in without


async def test_the_price_of_an_answer_is_computed(case: Case) -> None:
    async with served(case, LLMResponse(text="a", usage=USAGE), price=Price(input=1, output=10, cached=0)) as (
        _,
        model,
    ):
        answer, _ = await ask(model)
    assert answer.cost == pytest.approx((40 * 1 + 7 * 10) / 1_000_000)


# --- thoughts ---

THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "Eo8C"}


THOUGHTFUL = LLMResponse(
    text="I look.", tool_calls=CALLS[:1], reasoning=Reasoning(provider="anthropic", blocks=(THINKING,))
)


async def test_signed_thoughts_go_back_where_they_stood(way: str) -> None:
    async with served(ANTHROPIC, THOUGHTFUL, "ok") as (server, model):
        answer, _ = await ask(model, way, tools=[ECHO])
        stored = Message.model_validate_json(said(answer).model_dump_json())
        await ask(model, "chat", [*HI, stored, done("c1")], [ECHO])
    written = server.requests[1].body["messages"][1]["content"]
    assert [block["type"] for block in written] == ["thinking", "text", "tool_use"]
    assert {name: written[0][name] for name in THINKING} == THINKING


async def test_a_signature_of_gemini_goes_back_with_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    signature = base64.b64encode(b"a signature").decode()
    call = {"functionCall": {"name": "echo", "args": {"text": "a"}}, "thoughtSignature": signature}
    answers = [
        {"candidates": [{"content": {"role": "model", "parts": [{"text": "I look."}, call]}, "finishReason": "STOP"}],
         "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 3, "thoughtsTokenCount": 4,
                           "cachedContentTokenCount": 6}},
        {"candidates": [{"content": {"role": "model", "parts": [{"text": "ok"}]}, "finishReason": "STOP"}]},
    ]  # fmt: skip
    async with ModelServer(*map(Reply, answers)) as server:
        at = f"http://{server.address}"
        if LIBRARY == "any-llm":
            model: Any = create_adapter(provider="any-llm", model="gemini:gemini-3-pro", api_key=KEY, base_url=at)
        else:
            monkeypatch.setenv("GOOGLE_API_KEY", KEY)
            monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", at)
            model = create_adapter(provider="pydantic-ai", model="google:gemini-3-pro-preview")
        answer, _ = await ask(model, tools=[ECHO])
        assert (answer.text, [one.arguments for one in answer.tool_calls]) == ("I look.", [{"text": "a"}])
        assert answer.usage is not None
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (10, 7)
        assert (answer.usage.cached_tokens, answer.usage.reasoning_tokens) == (6, 4)
        call_id = answer.tool_calls[0].id
        last, _ = await ask(model, "chat", [*HI, said(answer), done(call_id)], [ECHO])
    assert last.text == "ok"
    parts = server.requests[1].body["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts if "functionCall" in part] == [signature]
    assert [part["text"] for part in parts if "text" in part] == ["I look."]


def thoughtful(provider: str, server: ModelServer) -> Any:
    """Return a model of a provider that says its thoughts in Chat Completions, and wants them back."""
    if LIBRARY == "any-llm":
        return create_adapter(provider="any-llm", model=f"{provider}:m", api_key=KEY, base_url=server.url)
    return adapter(OPENAI, server)


@pytest.mark.parametrize("provider", ["deepseek", "moonshot", "vllm"])
async def test_thoughts_in_chat_completions_go_back_with_the_results(way: str, provider: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": "{}"}}

    def reply(request: Any) -> Reply:
        answers = [one for one in request.body["messages"] if one["role"] == "assistant"]
        if answers and answers[0].get("reasoning_content") != "Let me see.":
            words = "The reasoning_content in the thinking mode must be passed back to the API."
            return Reply({"error": {"message": words, "type": "invalid_request_error"}}, 400)
        said: dict[str, Any] = {"role": "assistant", "content": "ok"}
        deltas: list[dict[str, Any]] = [said]
        if not answers:
            said = {"role": "assistant", "content": "", "reasoning_content": "Let me see.", "tool_calls": [call]}
            deltas = [{"reasoning_content": "Let me"}, {"reasoning_content": " see."}]
            deltas.append({"tool_calls": [{**call, "index": 0}]})
        head = {"id": "1", "created": 1, "model": "m"}
        end = "stop" if answers else "tool_calls"
        if not request.body.get("stream"):
            choice = {"index": 0, "message": said, "finish_reason": end}
            return Reply({**head, "object": "chat.completion", "choices": [choice]})
        pieces = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        pieces.append({"index": 0, "delta": {}, "finish_reason": end})
        return Reply([*({**head, "object": "chat.completion.chunk", "choices": [one]} for one in pieces), b"[DONE]"])

    async with ModelServer(reply) as server:
        model = thoughtful(provider, server)
        answer, _ = await ask(model, way, tools=[ECHO])
        assert answer.reasoning is not None
        assert answer.reasoning.text == "Let me see."
        stored = Message.model_validate_json(said(answer).model_dump_json())
        last, _ = await ask(model, way, [*HI, stored, done("c1")], [ECHO])
    assert (last.text, len(server.requests)) == ("ok", 2)


async def test_thoughts_of_another_provider_stay_here() -> None:
    async with served(ANTHROPIC, THOUGHTFUL.model_copy(update={"tool_calls": ()})) as (_, model):
        answer, _ = await ask(model)
    assert answer.reasoning is not None
    async with served(OPENAI, "ok") as (server, model):
        await ask(model, "chat", [*HI, said(answer), *HI])
    assert "Eo8C" not in json.dumps(server.requests[0].body)


async def test_thoughts_go_back_to_their_own_address_only(way: str) -> None:
    async with served(ANTHROPIC, THOUGHTFUL, "ok") as (server, model):
        first, _ = await ask(model, way, tools=[ECHO])
        async with served(ANTHROPIC, "ok", "ok") as (other, elsewhere):
            await ask(elsewhere, way, [*HI, said(first), done("c1")], [ECHO])
            await ask(elsewhere, way, [*HI, by_earlier_version(first), done("c1")], [ECHO])
        await ask(model, way, [*HI, said(first), done("c1")], [ECHO])
    assert ["Eo8C" in json.dumps(request.body) for request in other.requests] == [False, True]
    assert "Eo8C" in json.dumps(server.requests[1].body)


def by_earlier_version(answer: LLMResponse) -> Message:
    """Return an answer as versions stored it that kept thoughts by the library, or the provider in it, alone."""
    assert answer.reasoning is not None
    name = f"any-llm:{ANTHROPIC.provider}" if LIBRARY == "any-llm" else LIBRARY
    return said(answer.model_copy(update={"reasoning": answer.reasoning.model_copy(update={"provider": name})}))


# --- faults ---


@pytest.mark.parametrize(
    ("status", "transient"), [(400, False), (401, False), (404, False), (408, True), (409, True), (429, True),
                              (500, True), (503, True), (529, True)],
)  # fmt: skip
async def test_a_fault_says_whether_it_may_pass_after_one_request(
    case: Case, way: str, status: int, transient: bool
) -> None:
    async with served(case, Fault(status, retry_after=7, words=f"no, {KEY}")) as (server, model):
        with pytest.raises(ModelError) as fault:
            await ask(model, way)
    assert fault.value.transient is transient, str(fault.value)
    assert fault.value.retry_after == 7
    assert len(server.requests) == 1
    assert str(status) in str(fault.value)
    assert KEY not in str(fault.value)


async def test_no_server_may_pass(case: Case, way: str) -> None:
    async with ModelServer() as server:
        model = adapter(case, server)
    with pytest.raises(ModelError) as fault:
        await ask(model, way)
    assert fault.value.transient


@pytest.mark.parametrize("end", ["cut", "reset"])
async def test_an_answer_that_breaks_off_may_pass(case: Case, way: str, end: Any) -> None:
    async with served(case, Fault(200, answer="Hello, it is me.", end=end)) as (server, model):
        with pytest.raises(ModelError) as fault:
            await ask(model, way)
    assert fault.value.transient
    assert len(server.requests) == 1


async def test_what_a_broken_answer_has_used_is_with_its_error() -> None:
    """Anthropic reports it when an answer begins; other servers with each piece, if at all."""
    half = Fault(status=200, answer=LLMResponse(text="hello there", usage=Usage(input_tokens=100)), end="cut")
    async with served(ANTHROPIC, half, price=Price(input=1, output=2)) as (_, model):
        with pytest.raises(ModelError) as raised:
            await ask(model, "stream")
    if LIBRARY == "any-llm":  # it passes on only what the provider reports at the end
        assert raised.value.usage is None
        return
    assert isinstance(raised.value.usage, Usage)
    assert raised.value.usage.plain() == pytest.approx(Usage(input_tokens=100, output_tokens=1, cost=102e-6).plain())


async def test_silence_ends_after_the_timeout(case: Case, way: str) -> None:
    async with served(case, Fault(200, answer="Hello", end="silent"), timeout="1s") as (server, model):
        with pytest.raises(ModelError) as fault:
            await ask(model, way)
        await server.hung_up.wait()
    assert fault.value.transient
    assert len(server.requests) == 1


async def test_an_answer_that_takes_too_long_is_not_asked_for_again(case: Case, way: str) -> None:
    limits = AnswerLimits(max_seconds=0.3)
    async with served(case, Fault(200, answer="Hello", end="silent"), limits=limits) as (server, model):
        with pytest.raises(ModelError, match=r"more than 0\.3 s") as fault:
            await ask(model, way)
        await server.hung_up.wait()
    assert not fault.value.transient


@pytest.mark.skipif(LIBRARY == "pydantic-ai", reason="pydantic-ai reads answers of any size")
async def test_an_answer_in_openais_format_is_read_up_to_its_limit(way: str) -> None:
    async with served(OPENAI, "word " * 100_000, limits=AnswerLimits(max_bytes=50_000)) as (_, model):
        with pytest.raises(ModelError, match="more than 50,000 bytes") as fault:
            await ask(model, way)
    assert not fault.value.transient


async def test_an_answer_in_another_format_may_pass(case: Case, way: str) -> None:
    for body in (b"<html>", b"[1]", b'{"choices": 1}'):
        async with served(case, Reply(body, headers={"Content-Type": "application/json"})) as (_, model):
            with pytest.raises(ModelError) as fault:
                await ask(model, way)
        assert fault.value.transient, str(fault.value)


# --- what is missing is said before a run ---


@pytest.mark.parametrize("name", ["nosuch:m", "cohere:command-r", "openai", "openai:", ":m", ""])
async def test_what_a_model_lacks_is_said_before_a_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    agent = Agent("host", model=f"{LIBRARY}:{name}")
    with pytest.raises((DefinitionError, ImportError)):
        StandfastPlugin(agents=[agent], store=sqlite_store(":memory:"))


async def test_the_errors_name_the_variable_or_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(DefinitionError, match="OPENAI_API_KEY"):
        create_adapter(provider=LIBRARY, model="openai:gpt-5")
    with pytest.raises(ImportError, match=r"pip install .*cohere"):
        create_adapter(provider=LIBRARY, model="cohere:command-r")
    if LIBRARY == "any-llm":
        with pytest.raises(
            ImportError, match=r"^Models of any-llm's provider 'cohere' need more: pip install 'any-llm-sdk\["
        ):
            create_adapter(provider="any-llm", model="cohere:command-r")


@pytest.mark.skipif(LIBRARY != "pydantic-ai", reason="of pydantic-ai alone")
def test_what_pydantic_ai_cannot_be_told_is_refused() -> None:
    with pytest.raises(DefinitionError, match="does not take api_key"):
        create_adapter(provider="pydantic-ai", model="openai:gpt-5", api_key=KEY)
    with pytest.raises(DefinitionError, match="needs a model of pydantic-ai"):
        pydantic_ai_model(object())  # type: ignore[arg-type]


def test_importing_standfast_loads_no_library() -> None:
    program = (
        "import sys, standfast, standfast.llm, standfast.temporal; "
        "print([name for name in ('any_llm', 'pydantic_ai', 'openai', 'anthropic') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"


# --- agents ---

posted: list[str] = []


@tool
async def post(text: str) -> str:
    """Post a text."""
    posted.append(text)
    return f"posted {text}"


@pytest.fixture
def in_environment(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModelServer], str]:
    """Where a model is named by a string, its key and address are in the environment."""

    def write(server: ModelServer) -> str:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://{server.address}")
        return f"{LIBRARY}:anthropic:m"

    return write


SCRIPT = (LLMResponse(tool_calls=(ToolCall(id="c1", name="post", arguments={"text": "a"}),)), "done")


async def test_an_agent_names_its_model_by_a_string(
    in_environment: Callable[[ModelServer], str], tmp_path: Path
) -> None:
    posted.clear()
    async with ModelServer(*SCRIPT) as server:
        agent = Agent("host", model=in_environment(server), tools=[post], settings={LIBRARY: {"max_tokens": 77}})
        result = await run(agent, message="go", session_id="s", store=sqlite_store(str(tmp_path / "store.db")))
    assert (result.status, result.response, posted) == ("complete", "done", ["a"])
    assert [request.body["max_tokens"] for request in server.requests] == [77, 77]
    assert "posted a" in json.dumps(server.requests[1].body)


async def test_temporal_makes_the_attempts(
    in_environment: Callable[[ModelServer], str], temporal_server: DevServer, tmp_path: Path
) -> None:
    posted.clear()
    queue, store = f"q-{uuid.uuid4().hex}", sqlite_store(str(tmp_path / "store.db"))
    retry = RetryPolicy(maximum_attempts=5, initial_interval=0.1)
    async with ModelServer(Fault(503), *SCRIPT[:1], Fault(429, retry_after=0), *SCRIPT[1:]) as server:
        agent = Agent("host", model=in_environment(server), tools=[post], loop=Loop(model_retry=retry))
        plugin = StandfastPlugin(agents=[agent], store=store, stream=True)
        client = await connect(temporal_server.address)
        async with Worker(client, task_queue=queue, plugins=[plugin]):
            handle = await start_agent(client, "host", message="go", task_queue=queue)
            result = await handle.result()
    assert (result["status"], result["response"], posted) == ("complete", "done", ["a"])
    assert len(server.requests) == 4


@pytest.fixture
async def temporal_server() -> AsyncIterator[DevServer]:
    async with dev_server() as server:
        yield server
