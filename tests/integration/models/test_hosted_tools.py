"""Provider-run tools: declared, stored, sent back, paid for and shown, but never run here."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from support.drivers import Driver
from support.temporal_runs import Temporal, ask_models_once, has_ended, result, until, waiting

from integration.models.test_providers import adapter
from standfast import (
    Agent,
    Citation,
    DefinitionError,
    HostedCall,
    LLMResponse,
    Message,
    ModelError,
    Reasoning,
    Tool,
    assert_complete,
    hosted,
    run,
    tool,
)
from standfast.llm import Price, create_adapter
from standfast.testing import Fault, ModelServer, Reply, ScriptedModel

HI = [Message(role="user", content="hi")]
PRICE = Price(input=1, output=1, hosted={"web_search": 0.5})


@tool(safe_to_retry=True)
async def echo(text: str) -> str:
    """Return the text."""
    return text


def claude(server: ModelServer, **options: Any) -> Any:
    return create_adapter(provider="anthropic", model="m", api_key="k", base_url=f"http://{server.address}", **options)


# --- Anthropic ---

SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "weather Oslo"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {"type": "web_search_result", "url": "https://yr.no", "title": "Yr", "encrypted_content": "EqgfCioIARgB"}
    ],
}
SOURCE = {
    "type": "web_search_result_location",
    "url": "https://yr.no",
    "title": "Yr",
    "encrypted_index": "Eo8BCioIAhgB",
    "cited_text": "Rain.",
}
CITED = {"type": "text", "text": "It rains.", "citations": [SOURCE]}
ASKED = {"type": "tool_use", "id": "toolu_1", "name": "echo", "input": {"text": "a"}}
FAILED = {
    **FOUND,
    "content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
}


def streamed(*blocks: dict[str, Any], stop: str, usage: dict[str, Any] | None = None, **message: Any) -> Reply:
    """Return a streamed answer of Anthropic: texts and inputs in pieces, other blocks whole."""
    events: list[Any] = [
        {
            "type": "message_start",
            "message": {"content": [], "usage": {"input_tokens": 10, "output_tokens": 1}, **message},
        }
    ]
    for index, block in enumerate(blocks):
        begun, pieces = dict(block), list[dict[str, Any]]()
        if "input" in block:
            begun, text = {**block, "input": {}}, json.dumps(block["input"])
            pieces = [{"type": "input_json_delta", "partial_json": part} for part in (text[:9], text[9:])]
        elif block["type"] == "text":
            begun = {"type": "text", "text": "", "citations": []}
            pieces = [{"type": "citations_delta", "citation": one} for one in block.get("citations", ())]
            pieces += [{"type": "text_delta", "text": part} for part in (block["text"][:2], block["text"][2:])]
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        events += [{"type": "content_block_delta", "index": index, "delta": piece} for piece in pieces]
        events.append({"type": "content_block_stop", "index": index})
    used = {"output_tokens": 5, **(usage or {})}
    events.append({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": used})
    return Reply([*events, {"type": "message_stop"}])


async def test_a_search_of_anthropic_is_kept_sent_back_paid_and_cited(driver: Driver) -> None:
    first = streamed(SEARCH, FOUND, CITED, ASKED, stop="tool_use")
    async with ModelServer(first, "Done.", "Again.") as server:
        agent = Agent("a", tools=[echo, hosted("web_search", anthropic={"max_uses": 3})])
        model = claude(server, price=PRICE)
        ended = await driver.run(agent, model)
        assert (ended.status, ended.response) == ("complete", "Done.")
        again = await driver.run(agent, model, message="and now?")
    assert again.response == "Again."
    declared = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    assert [request.body["tools"][-1] for request in server.requests] == [declared] * 3
    for request in server.requests[1:]:
        assert request.body["messages"][1] == {"role": "assistant", "content": [SEARCH, FOUND, CITED, ASKED]}
    answer = ended.messages[1]
    assert [call.name for call in answer.tool_calls or ()] == ["echo"]
    assert answer.hosted == (HostedCall(name="web_search", input='{"query": "weather Oslo"}'),)
    assert answer.citations == (Citation(url="https://yr.no", title="Yr", text="Rain."),)
    assert answer.cost == pytest.approx(15 / 1_000_000 + 0.5)


async def test_a_paused_answer_is_continued_and_is_one(driver: Driver) -> None:
    box = {"id": "container_1", "expires_at": "2099-01-01T00:00:00Z"}
    code = {"type": "server_tool_use", "id": "srvtoolu_2", "name": "code_execution", "input": {"code": "1 + 1"}}
    ran = {
        "type": "code_execution_tool_result",
        "tool_use_id": "srvtoolu_2",
        "content": {"type": "code_execution_result", "stdout": "2", "stderr": "", "return_code": 0, "content": []},
    }
    thought = {"type": "thinking", "thinking": "", "signature": "Eo8C"}
    script = [
        streamed(thought, SEARCH, stop="pause_turn"),
        streamed(FOUND, code, ran, stop="pause_turn", container=box),
        streamed(CITED, stop="end_turn"),
        "Later.",
    ]
    async with ModelServer(*script) as server:
        agent = Agent("a", tools=[hosted("web_search"), hosted("code_execution")])
        ended = await driver.run(agent, claude(server))
        await driver.run(agent, claude(server), message="and now?")
    assert (ended.status, ended.response, ended.iterations) == ("complete", "It rains.", 1)
    whole = [thought, SEARCH, FOUND, code, ran, CITED]
    sent = [request.body["messages"][1:] for request in server.requests]
    assert sent[1] == [{"role": "assistant", "content": whole[:2]}]
    assert sent[2] == [{"role": "assistant", "content": whole[:2]}, {"role": "assistant", "content": whole[2:5]}]
    assert sent[3][0] == {"role": "assistant", "content": whole}
    assert [request.body.get("container") for request in server.requests] == [None, None, "container_1", "container_1"]
    assert [call.outcome for call in ended.messages[1].hosted or ()] == ["ran", "ran"]
    assert ended.usage is not None
    assert (ended.usage.input_tokens, ended.usage.output_tokens) == (30, 15)


@pytest.mark.parametrize(
    ("blocks", "stop", "call"),
    [
        ((SEARCH, FAILED, CITED), "end_turn", {"outcome": "failed", "error": "max_uses_exceeded"}),
        ((CITED, SEARCH), "max_tokens", {"outcome": "unknown"}),
        ((CITED, SEARCH, ASKED), "tool_use", {"outcome": "unknown"}),
    ],
    ids=["refused by its provider", "cut", "runs with the next request"],
)
async def test_the_outcome_of_a_hosted_call_is_said(blocks: Sequence[dict[str, Any]], stop: str, call: Any) -> None:
    async with ModelServer(streamed(*blocks, stop=stop)) as server:
        answer = await claude(server, price=PRICE).chat(HI, [], hosted_tools=(hosted("web_search"),))
    assert answer.hosted == (HostedCall(name="web_search", input='{"query": "weather Oslo"}', **call),)
    assert answer.cost == pytest.approx(15 / 1_000_000 + (0 if call["outcome"] == "failed" else 0.5))


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
async def test_a_stream_that_breaks_says_what_may_have_run_at_the_provider(provider: str) -> None:
    async with ModelServer(Fault(answer="It rai", end="cut")) as server:
        model: Any = adapter(provider, server)
        with pytest.raises(ModelError, match=r"\(web_search\) may have run, and may run again") as broken:
            _ = [part async for part in model.stream(HI, [], hosted_tools=(hosted("web_search"),))]
    assert broken.value.transient


async def test_a_call_that_was_cut_off_does_not_go_back_without_its_result() -> None:
    """The provider refuses such a request, and so the session could never go on."""
    async with ModelServer(streamed(CITED, SEARCH, stop="max_tokens"), "ok") as server:
        answer = await claude(server).chat(HI, [])
        said = Message(role="assistant", content=answer.text, reasoning=answer.reasoning)
        await claude(server).chat([*HI, said, *HI], [])
    assert server.requests[1].body["messages"][1]["content"] == [CITED]


async def test_blocks_and_deltas_that_are_new_go_back_as_they_came() -> None:
    new = {"type": "compaction", "content": None}
    events = [
        {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 1, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": new},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "compaction_delta", "content": "The story "}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "compaction_delta", "content": "so far."}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "other_delta", "count": 2}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "ok"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "citations_delta", "citation": None}},
        {"type": "brand_new_event"},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
        {"type": "message_stop"},
    ]
    async with ModelServer(Reply(events), "ok") as server:
        answer = await claude(server).chat(HI, [])
        said = Message(role="assistant", content=answer.text, reasoning=answer.reasoning)
        await claude(server).chat([*HI, said, *HI], [])
    blocks = server.requests[1].body["messages"][1]["content"]
    assert blocks[0] == {"type": "compaction", "content": "The story so far.", "count": 2}
    assert (answer.text, answer.hosted, answer.citations) == ("ok", None, None)


# --- OpenAI ---

THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAA"}
WEB = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": "weather Oslo"},
}
CODE = {
    "type": "code_interpreter_call",
    "id": "ci_1",
    "status": "completed",
    "code": "1 + 1",
    "container_id": "cntr_1",
    "outputs": [{"type": "logs", "logs": "2"}],
}
FILES = {"type": "file_search_call", "id": "fs_1", "status": "incomplete", "queries": ["rain"], "results": None}
NEW = {"type": "something_new", "id": "x_1", "of": {"a": 1}}
URL = {"type": "url_citation", "url": "https://yr.no", "title": "Yr", "start_index": 0, "end_index": 9}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "phase": "commentary",
    "content": [{"type": "output_text", "text": "It rains.", "annotations": [URL, URL], "logprobs": []}],
}
CALLED = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "echo", "arguments": '{"text": "a"}'}


def responded(*items: dict[str, Any], streams: bool) -> Reply:
    usage = {"input_tokens": 10, "output_tokens": 5}
    body = {"id": "resp_1", "object": "response", "status": "completed", "output": list(items), "usage": usage}
    if not streams:
        return Reply(body)
    events = [{"type": "response.web_search_call.searching", "item_id": "ws_1"}, {"type": "response.brand.new"}]
    return Reply([*events, {"type": "response.completed", "response": body}])


@pytest.mark.parametrize("way", ["chat", "stream"])
async def test_items_of_openai_go_back_in_their_places(way: str) -> None:
    items = (THOUGHT, WEB, THOUGHT, CODE, FILES, NEW, SAID, CALLED)
    tools = (
        hosted("web_search", openai={"search_context_size": "low"}),
        hosted("code_execution"),
        hosted("file_search", openai={"vector_store_ids": ["vs_1"]}),
    )
    script = [responded(*items, streams=way == "stream"), responded(SAID, streams=way == "stream")]
    async with ModelServer(*script) as server:
        model = create_adapter(provider="openai", model="gpt-5", api_key="k", base_url=server.url, price=PRICE)

        async def ask(messages: list[Message]) -> LLMResponse:
            if way == "chat":
                return LLMResponse.read(await model.chat(messages, [], hosted_tools=tools))
            return [part async for part in model.stream(messages, [], hosted_tools=tools)][-1]  # type: ignore[attr-defined,no-any-return]

        answer = await ask(HI)
        kept = Reasoning.model_validate_json(answer.reasoning.model_dump_json()) if answer.reasoning else None
        said = Message(role="assistant", content=answer.text, tool_calls=answer.tool_calls, reasoning=kept)
        result = Message(role="tool", content="a", tool_call_id="c1", tool_name="echo", status="completed")
        await ask([*HI, said, result])
    assert server.requests[0].body["tools"] == [
        {"type": "web_search", "search_context_size": "low"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "file_search", "vector_store_ids": ["vs_1"]},
    ]
    assert server.requests[0].body["include"] == [
        "reasoning.encrypted_content",
        "code_interpreter_call.outputs",
        "file_search_call.results",
    ]
    text = {"role": "assistant", "content": "It rains.", "phase": "commentary"}
    called = {"type": "function_call", "call_id": "c1", "name": "echo", "arguments": '{"text": "a"}'}
    assert server.requests[1].body["input"][1:9] == [THOUGHT, WEB, THOUGHT, CODE, FILES, NEW, text, called]
    assert [(call.name, call.outcome) for call in answer.hosted or ()] == [
        ("web_search", "ran"),
        ("code_interpreter", "ran"),
        ("file_search", "unknown"),
    ]
    assert answer.citations == (Citation(url="https://yr.no", title="Yr"),)
    assert answer.cost == pytest.approx(15 / 1_000_000 + 0.5 + 0.0025)


async def test_another_provider_sees_the_text_alone() -> None:
    async with ModelServer(streamed(SEARCH, FOUND, CITED, stop="end_turn")) as one:
        answer = await claude(one).chat(HI, [])
    said = Message(role="assistant", content=answer.text, reasoning=answer.reasoning, citations=answer.citations)
    async with ModelServer("ok", "ok") as other:
        await adapter("openai", other).chat([*HI, said, *HI], [])
        await adapter("openai-compatible", other).chat([*HI, said, *HI], [])
    assert other.requests[0].body["input"][1] == {"role": "assistant", "content": "It rains."}
    assert other.requests[1].body["messages"][1] == {"role": "assistant", "content": "It rains."}


# --- never run here ---


async def test_a_call_of_the_models_own_with_such_a_name_runs_nothing() -> None:
    model = ScriptedModel([{"tool_calls": [{"id": "c1", "name": "web_search", "arguments": {}}]}, "Done."])
    model.hosts = "anthropic"  # type: ignore[attr-defined]
    ended = assert_complete(await run(Agent("a", tools=[echo, hosted("web_search")]), message="hi", llm=model))
    assert 'Tool \\"web_search\\" not found' in ended.messages[2].content


async def test_a_result_names_the_sources_of_its_answer() -> None:
    async with ModelServer(streamed(SEARCH, FOUND, CITED, stop="end_turn")) as server:
        ended = await run(Agent("a", tools=[hosted("web_search")]), message="hi", llm=claude(server))
    assert ended.citations == (Citation(url="https://yr.no", title="Yr", text="Rain."),)


# --- declarations ---


@pytest.mark.parametrize(
    ("model", "fallbacks"), [("openai-compatible:m", ()), ("anthropic:m", ()), ("openai:m", ("cloudflare:m",))]
)
async def test_a_model_whose_provider_cannot_run_it_is_refused_when_it_is_chosen(
    model: str, fallbacks: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "CLOUDFLARE_API_TOKEN", "CLOUDFLARE_ACCOUNT_ID")
    for name in names:
        monkeypatch.setenv(name, "k")
    monkeypatch.setenv("OPENAI_COMPATIBLE_BASE_URL", "http://127.0.0.1:9")
    files = hosted("file_search", openai={"vector_store_ids": ["vs_1"]})
    with pytest.raises(DefinitionError, match=r"'file_search', which the model '.*' cannot run: it is run by openai"):
        await run(Agent("a", model=model, fallback_models=fallbacks, tools=[files]), message="hi")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: hosted("telepathy"), "unknown tool 'telepathy'"),  # type: ignore[arg-type]
        (lambda: hosted("web_search", cloudflare={}), "run by openai and anthropic, not by 'cloudflare'"),
        (lambda: hosted("file_search"), "needs openai="),
        (lambda: hosted("web_search", openai={"a": {1}}), "are not JSON"),
        (lambda: hosted("web_search", openai=[1]), "must be a dict"),  # type: ignore[arg-type]
        (
            lambda: Agent("a", tools=[hosted("web_search"), Tool("web_search", handler=echo, description="x")]),
            "two are named 'web_search'",
        ),
    ],
)
def test_what_cannot_be_a_hosted_tool_is_refused_when_it_is_declared(make: Any, text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        make()


async def test_a_person_cannot_choose_a_model_that_lacks_it(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {"main": ScriptedModel([ModelError("down", transient=True), "done"]), "spare": ScriptedModel(["no"])}
    models["main"].hosts = "openai"  # type: ignore[attr-defined]
    agent = Agent("a", model="main", tools=[hosted("web_search")])
    ask_models_once(monkeypatch)

    async with temporal.worker(agent, llm=lambda name: models[str(name)]):
        run = await temporal.start(agent)
        await until(lambda: waiting(run))
        await temporal.people.resume(run.id, model="spare")

        async def is_told() -> bool:
            return "run by openai and anthropic" in str(await waiting(run)) or await has_ended(run)

        await until(is_told)
        await temporal.people.resume(run.id, model="main")
        assert (await result(run))["response"] == "done"
