"""The readable part of a model's thoughts comes before its text, whole or in pieces, and not before it was checked."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from support.doubles import echo
from support.drivers import Driver
from support.model_server import ModelServer, Reply, says, streams
from support.transcripts import asks_for, call

from integration.models.test_hosted_tools import streamed
from integration.models.test_provider_state import HI, STATES, first_of
from integration.temporal.test_partial_answers import Speaker, thinking
from standfast import (
    Agent,
    AgentContext,
    Approval,
    Event,
    Guardrail,
    LLMResponse,
    Message,
    ReasoningDelta,
    TextDelta,
    Tripped,
    TurnEnded,
)
from standfast.llm import create_adapter
from standfast.runtime.model_answers import answer
from standfast.stores.partial_answers import reasoning_key
from standfast.testing import ScriptedModel

SECRET = "The password is hunter2."
LONG = "Hm. " * 200  # a history has 300 characters of it


def thoughts(events: Sequence[Any]) -> list[str]:
    return [event.text for event in events if isinstance(event, ReasoningDelta)]


def ended(events: Sequence[Event]) -> list[TurnEnded]:
    return [event for event in events if isinstance(event, TurnEnded)]


# --- adapters ---


async def pieces_of(model: Any) -> tuple[list[str], list[str], LLMResponse]:
    """Return the pieces of thoughts and of text that an adapter streams, and its whole answer."""
    *pieces, whole = [piece async for piece in model.stream([HI], [])]
    assert isinstance(whole, LLMResponse)
    return thoughts(pieces), [piece for piece in pieces if isinstance(piece, str)], whole


def event(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **data}


SUMMED = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": text} for text in ("**Echo**\n\nFirst", "Then")],
    "encrypted_content": "SECRET",
}
PLAIN = {"type": "reasoning", "id": "rs_1", "content": [{"type": "reasoning_text", "text": "First, then"}]}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}


def responses(item: dict[str, Any], *pieces: dict[str, Any]) -> Reply:
    whole = {"object": "response", "status": "completed", "output": [item, SAID]}
    text = event("output_text.delta", output_index=1, delta="Done.")
    return Reply([*pieces, text, event("completed", response=whole)])


def thought(*pieces: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": "".join(pieces), "signature": "SECRET"}


HIDDEN = {"type": "redacted_thinking", "data": "SECRET"}
OTHERS: dict[str, tuple[str, Reply, list[str]]] = {
    "a summary of openai": (
        "openai",
        responses(
            SUMMED,
            event("reasoning_summary_text.delta", output_index=0, summary_index=0, delta="**Echo**\n\n"),
            event("reasoning_summary_text.delta", output_index=0, summary_index=0, delta="First"),
            event("reasoning_summary_text.delta", output_index=0, summary_index=1, delta="Then"),
        ),
        ["**Echo**\n\n", "First", "\n\nThen"],
    ),
    "thoughts of an open model": (
        "openai",
        responses(
            PLAIN,
            event("reasoning_text.delta", output_index=0, content_index=0, delta="First, "),
            event("reasoning_text.delta", output_index=0, content_index=0, delta="then"),
        ),
        ["First, ", "then"],
    ),
    "thoughts of openai that are encrypted": ("openai", responses({**SUMMED, "summary": []}), []),
    "anthropic": (
        "anthropic",
        streamed(thought("First"), HIDDEN, thought("Then"), {"type": "text", "text": "Done."}, stop="end_turn"),
        ["First", "\n\nThen"],
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
async def test_an_sdks_thoughts_come_in_pieces_that_are_their_text(kind: str) -> None:
    provider, reply, pieces = OTHERS[kind]
    async with ModelServer(reply) as server:
        at = f"http://{server.address}" + ("/v1" if provider == "openai" else "")
        model: Any = create_adapter(provider=provider, model="m", api_key="key", base_url=at)
        told, _, whole = await pieces_of(model)
    assert told == pieces
    assert "".join(told) == ("" if whole.reasoning is None else whole.reasoning.text)
    assert "SECRET" not in "".join(told)


async def test_a_paused_answers_thoughts_are_apart_from_those_before_it() -> None:
    script = [
        streamed(thought("First"), stop="pause_turn", id="msg_1"),
        streamed(thought("Then"), {"type": "text", "text": "Done."}, stop="end_turn", id="msg_2"),
    ]
    async with ModelServer(*script) as server:
        model: Any = create_adapter(provider="anthropic", model="m", api_key="key", base_url=f"http://{server.address}")
        told, _, whole = await pieces_of(model)
    assert whole.reasoning is not None
    assert "".join(told) == whole.reasoning.text == "First\n\nThen"


async def test_thoughts_that_openai_has_not_encrypted_are_kept_for_people_and_not_sent_back() -> None:
    async with ModelServer(responses(PLAIN), "Again.") as server:
        model: Any = create_adapter(provider="openai", model="m", api_key="key", base_url=f"http://{server.address}/v1")
        _, _, whole = await pieces_of(model)
        said = Message(role="assistant", content=whole.text, reasoning=whole.reasoning)
        await model.chat([HI, said, HI], [])
    assert said.reasoning is not None
    assert said.reasoning.text == "First, then"
    assert "First" not in str(server.requests[1].body)


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("way", ["chat", "stream"])
async def test_a_servers_thoughts_are_the_same_whole_and_in_pieces_and_come_first(kind: str, way: str) -> None:
    wanted = STATES[kind][3]
    async with ModelServer(first_of(STATES[kind], way)) as server:
        model: Any = create_adapter(provider="openai-compatible", model="m", base_url=server.url)
        if way == "chat":
            model.stream = None  # so the whole answer is requested
        told = list[Any]()
        whole = await answer(model, [HI], [], {}, told.append, 1_000_000)
    assert "".join(thoughts(told)) == wanted == ("" if whole.reasoning is None else whole.reasoning.text)
    kinds = [type(one) for one in told]
    assert kinds == sorted(kinds, key=[ReasoningDelta, TextDelta].index)


async def test_thoughts_between_texts_are_apart() -> None:
    deltas: list[dict[str, Any]] = [
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]} if is_thought else text]}
        for text, is_thought in (("Fir", True), ("st", True), ("I look.", False), ("Then", True), ("", False))
    ]
    async with ModelServer(streams(*deltas)) as server:
        model: Any = create_adapter(provider="openai-compatible", model="m", base_url=server.url)
        told, text, whole = await pieces_of(model)
    assert (told, text) == (["Fir", "st", "\n\nThen"], ["I look."])
    assert whole.reasoning is not None
    assert whole.reasoning.text == "".join(told)


async def test_an_answer_in_json_gives_its_thoughts_before_its_text() -> None:
    said = says('{"answer": "Done."}', reasoning_content="Hm.")
    async with ModelServer(said) as server:
        model: Any = create_adapter(provider="openai-compatible", model="m", base_url=server.url, tool_mode="json")
        described: Any = [Agent("a", tools=[echo])]
        from standfast.llm import tools_to_descriptions

        tools = tools_to_descriptions(described[0].tool_map)
        pieces = [piece async for piece in model.stream([HI], tools)]
    assert pieces[:-1] == [ReasoningDelta("Hm."), "Done."]


async def test_an_adapter_that_streams_its_text_alone_gives_its_thoughts_at_the_end() -> None:
    class Older:
        async def stream(self, messages: Any, tools: Any, **settings: Any) -> Any:
            yield "Do"
            yield "ne."
            yield {"text": "Done.", "reasoning": thinking("Hm.\ud800")}

    told = list[Any]()
    await answer(Older(), [HI], [], {}, told.append, 1_000_000)  # type: ignore[arg-type]
    assert told == [TextDelta("Do"), TextDelta("ne."), ReasoningDelta("Hm.\ufffd")]


# --- runs ---


async def test_thoughts_come_while_they_are_thought_and_make_up_those_of_the_turn(driver: Driver) -> None:
    model = Speaker(ReasoningDelta("It "), ReasoningDelta("is wet."), "It ", "rains.")

    def hear(event: Event) -> None:
        if isinstance(event, TextDelta | ReasoningDelta):
            model.go_on()

    events = await driver.events(Agent("a"), model, hear=hear)
    told = [(type(event), event.text) for event in events if isinstance(event, TextDelta | ReasoningDelta)]
    assert told == [
        (ReasoningDelta, "It "),
        (ReasoningDelta, "is wet."),
        (TextDelta, "It "),
        (TextDelta, "rains."),
    ]
    assert [(one.text, one.thoughts) for one in ended(events)] == [("It rains.", "It is wet.")]
    assert "SIGNED" not in repr([event for event in events if isinstance(event, ReasoningDelta | TurnEnded)])


class Hesitant:
    """Thinks and says nothing, and is asked again; says a piece whenever it is let."""

    def __init__(self, *pieces: str | ReasoningDelta) -> None:
        self._answers = [Speaker(ReasoningDelta("Hm. Nothing")), Speaker(*pieces)]
        self._now = self._answers[0]

    async def chat(self, messages: Any, tools: Any, **settings: Any) -> Any:
        raise AssertionError("It is asked to stream")

    async def stream(self, messages: Any, tools: Any, **settings: Any) -> AsyncIterator[Any]:
        self._now = self._answers.pop(0)
        async for piece in self._now.stream(messages, tools):
            yield (
                {"text": "", "reasoning": thinking("Hm. Nothing")}
                if isinstance(piece, dict) and self._answers
                else piece
            )

    def go_on(self) -> None:
        self._now.go_on()


@pytest.mark.parametrize("thought", ["Aha.", None])
async def test_the_thoughts_of_an_empty_answer_are_void(driver: Driver, thought: str | None) -> None:
    model = Hesitant(*(() if thought is None else (ReasoningDelta(thought),)), "Done.")
    shown = {ReasoningDelta: "", TextDelta: ""}
    before = list[str]()

    def hear(event: Event) -> None:
        if isinstance(event, TextDelta | ReasoningDelta):
            shown[type(event)] = ("" if event.offset == 0 else shown[type(event)]) + event.text
            before.append(shown[ReasoningDelta])
            if event.text:
                model.go_on()

    events = await driver.events(Agent("a"), model, hear=hear)
    assert before[0] == "Hm. Nothing"
    assert (shown[ReasoningDelta], shown[TextDelta]) == (thought or "", "Done.")
    assert [(one.text, one.thoughts) for one in ended(events)] == [("Done.", thought)]
    for key in (await _run_key(driver), reasoning_key(await _run_key(driver))):
        assert await driver.temporal.store.load_partial(key) is None


async def _run_key(driver: Driver) -> str:
    session = await driver.temporal.store.load_session(driver.temporal.session())
    assert session is not None
    return str(session.journal_key).rpartition("/")[0]


async def test_a_turn_has_its_thoughts_whole(driver: Driver) -> None:
    model = ScriptedModel(
        [
            asks_for(call("echo", "c1", text="x")).model_copy(update={"reasoning": thinking(LONG)}),
            LLMResponse(text="Done.", reasoning=thinking("Short.")),
        ]
    )
    events = await driver.events(Agent("a", tools=[echo]), model)
    assert [one.thoughts for one in ended(events)] == [LONG, "Short."]


def no_secrets(ctx: AgentContext, answer: Message) -> str | None:
    return "it has a password" if "bad" in answer.content else None


async def test_no_thought_is_shown_before_the_answer_was_checked(driver: Driver) -> None:
    agent = Agent("guarded", output_guardrails=[no_secrets])
    events = await driver.events(agent, ScriptedModel([LLMResponse(text="bad", reasoning=thinking(SECRET))]))
    assert "hunter2" not in repr(events)
    (message,) = [one for one in await driver.temporal.messages() if one.role == "assistant"]
    assert message.reasoning is None


async def test_the_thoughts_of_an_answer_that_passes_are_shown(driver: Driver) -> None:
    agent = Agent("guarded", output_guardrails=[no_secrets])
    events = await driver.events(agent, ScriptedModel([LLMResponse(text="fine", reasoning=thinking(SECRET))]))
    assert [(one.text, one.thoughts) for one in ended(events)] == [("fine", SECRET)]
    told = [event for event in events if isinstance(event, TextDelta | ReasoningDelta)]
    assert told in ([], [ReasoningDelta(SECRET), TextDelta("fine")])  # on Temporal the turn alone has them


async def test_thoughts_wait_for_a_guardrail_beside_the_model(driver: Driver) -> None:
    def stop(ctx: AgentContext, said: Message) -> str:
        return "no"

    agent = Agent("guarded", input_guardrails=[Guardrail(stop, beside=True)])
    events = await driver.events(agent, ScriptedModel([LLMResponse(text="fine", reasoning=thinking(SECRET))]))
    assert "hunter2" not in repr(events)


@pytest.mark.parametrize("guardrails", [[], [no_secrets]], ids=["unguarded", "guarded"])
async def test_after_a_handoff_the_first_agents_guardrails_hold_for_thoughts(driver: Driver, guardrails: Any) -> None:
    other = Agent("other", instructions="other")
    first = Agent("first", instructions="first", handoffs=[other], output_guardrails=guardrails)

    def think(messages: list[Message], tools: Any) -> LLMResponse:
        if messages[0].content.startswith("other"):
            return LLMResponse(text="bad", reasoning=thinking(SECRET))
        return asks_for(call("transfer_to_other", "c1")).model_copy(update={"reasoning": thinking("Not mine.")})

    events = await driver.events(first, ScriptedModel(think), also=[other])
    assert [one.thoughts for one in ended(events)] == ["Not mine.", None if guardrails else SECRET]
    assert ("hunter2" in repr(events)) is not bool(guardrails)


async def test_the_thoughts_of_an_agent_that_is_called_are_its_own(driver: Driver) -> None:
    inner = Agent("inner", instructions="inner")
    outer = Agent("outer", instructions="outer", tools=[inner])

    def think(messages: list[Message], tools: Any) -> LLMResponse:
        if messages[0].content.startswith("inner"):
            return LLMResponse(text="told", reasoning=thinking(SECRET))
        if messages[-1].role == "tool":
            return LLMResponse(text="Done.", reasoning=thinking("So."))
        return asks_for(call("inner", "c1", message="go")).model_copy(update={"reasoning": thinking("Inner knows.")})

    events = await driver.events(outer, ScriptedModel(think), also=[inner])
    assert [one.thoughts for one in ended(events)] == ["Inner knows.", "So."]
    assert "hunter2" not in repr(events)


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_the_thoughts_of_a_held_answer_are_kept_only_if_it_is_approved(driver: Driver, decision: str) -> None:
    def hold(ctx: AgentContext, answer: Message) -> Tripped:
        return Tripped("look at it")

    agent = Agent("guarded", output_guardrails=[Guardrail(hold, approval=Approval(message="ok?"))])
    model = ScriptedModel([LLMResponse(text="fine", reasoning=thinking(SECRET))])
    found = await driver.run(agent, model, decisions=[{"decision": decision, "by": "ada"}])
    assert "hunter2" not in str(found.waits)
    kept = [one.reasoning for one in found.messages if one.role == "assistant"]
    assert kept == [thinking(SECRET) if decision == "approve" else None]


async def test_thoughts_of_a_hostile_size_are_shown_in_pieces_and_not_kept(driver: Driver) -> None:
    from standfast import Loop

    agent = Agent("a", loop=Loop(max_message_bytes=10_000))
    events = await driver.events(agent, ScriptedModel([LLMResponse(text="fine", reasoning=thinking("x" * 20_000))]))
    assert [(one.text, one.thoughts) for one in ended(events)] == [("fine", None)]
