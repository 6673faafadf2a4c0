"""Random agents, limits and answers: both drivers show the model the same, and store the same."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from support.temporal_runs import Run, Temporal, chain, has_ended, result, until, waiting, wedges
from support.transcripts import without_ids

from standfast import (
    Agent,
    ContextCompression,
    DiminishingReturns,
    InterruptError,
    Loop,
    Message,
    TerminalError,
    TokenBudget,
    Tool,
    ToolContext,
    ToolDurabilityError,
    assert_complete,
    is_interrupted,
    resume,
    run,
    tool,
)
from standfast.agents import LANES, Lane
from standfast.temporal.workflows.run import agent_workflows
from standfast.testing import ScriptedModel


@tool(safe_to_retry=True, parallel=True)
async def look(text: str, ctx: ToolContext) -> dict[str, Any]:
    """Look something up beside others."""
    return {"text": text, "key": ctx.idempotency_key.partition("/")[2], "user": ctx.user_id}


@tool
def post(text: str, count: int = 1) -> list[str]:
    """Post a text, in a plain function."""
    return [text] * count


@tool
async def ask(text: str) -> str:
    """Ask a person."""
    raise InterruptError(f"{text}?")


@tool
async def fail(text: str = "") -> str:
    """Fail."""
    raise ValueError(f"no luck {text}")


@tool
async def give_up(text: str = "") -> str:
    """Fail for good."""
    raise TerminalError("gone", status_code=410, metadata={"text": text})


@tool
async def lose(text: str = "") -> str:
    """Leave the outcome unknown."""
    raise ToolDurabilityError("lose", "x", reason="the line went dead")


SEEDS = 20  # of each kind; raise it after a change to the loop or to a driver
TOOLS: list[Tool[..., Any]] = [look, post, ask, fail, give_up, lose]


def shorten(messages: Sequence[Message]) -> list[Message]:
    """Keep the last turn that is whole."""
    at = max(index for index, message in enumerate(messages) if message.role != "tool" and index < len(messages))
    at = next((index for index in range(at, -1, -1) if messages[index].role in ("user", "assistant")), at)
    return [Message(role="user", content=f"{at} before"), *messages[at:]]


def make_agent(dice: random.Random, *, asks: bool) -> Agent:
    """Make an agent; one that asks has no limit on turns, since a resume in process starts counting again."""
    maybe = dice.random
    counting: dict[str, Any] = {
        "stuck_threshold": dice.randint(0, 3),
        "on_stuck": dice.choice(["stop", "retry"]),
        "stuck_retries": dice.randint(0, 2),
        "token_budget": TokenBudget(dice.randint(50, 600)) if maybe() < 0.4 else None,
        "diminishing_returns": DiminishingReturns(dice.randint(2, 3), 50) if maybe() < 0.2 else None,
        "context_compression": ContextCompression(shorten, max_messages=dice.randint(4, 9)) if maybe() < 0.3 else None,
    }
    asking: dict[str, Any] = {
        "stuck_threshold": dice.randint(0, 1), "on_stuck": "escalate", "on_unknown": dice.choice(["tell", "ask"]),
    }  # fmt: skip
    loop = Loop(
        max_iterations=dice.randint(1, 7),
        max_tool_calls=dice.choice([2, 64]),
        max_tool_concurrency=dice.choice([1, 5]),
        **(asking if asks else counting),
    )
    return Agent(
        "twin",
        tools=TOOLS if asks else [item for item in TOOLS if item is not ask],
        loop=loop,
        instructions="Be brief.",
        initial_state={"runs": 10},
        on_terminal_tool_error=dice.choice(["message", "message", "stop", "fail"]),
        output=dict[str, int] if maybe() < 0.2 else None,
    )


def make_script(dice: random.Random) -> list[dict[str, Any]]:
    """Return more answers than are needed: calls of every kind, now and then a final text."""
    script = []
    for turn in range(40):
        usage = {"input_tokens": dice.randint(1, 90), "output_tokens": dice.randint(0, 20)}
        answer: dict[str, Any] = {"text": dice.choice(["", f"text {turn}"]), "usage": dice.choice([usage, None])}
        if dice.random() < 0.75:
            answer["tool_calls"] = [make_call(dice, turn, place) for place in range(dice.randint(1, 4))]
        else:
            answer["text"] = dice.choice(["done", '{"n": 1}', ""])
        script.append(answer)
    return script


def make_call(dice: random.Random, turn: int, place: int) -> dict[str, Any]:
    name = dice.choice(["look", "look", "post", "post", "ask", "fail", "fail", "give_up", "lose", "nope", ""])
    arguments = dice.choice(
        [{"text": f"{turn}.{place}"}] * 8 + [{}, {"text": 5}, '{"text": "a"', {"text": "x", "count": "2"}]
    )
    return {"id": dice.choice([f"c{turn}_{place}", f"c{turn}_{place}", "c", ""]), "name": name, "arguments": arguments}


@dataclass
class Story:
    """What was seen of some runs in one session: by the caller, the model and the store."""

    ends: list[Any] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    seen: list[list[Message]] = field(default_factory=list)
    stored: list[Message] = field(default_factory=list)
    state: str = ""


MESSAGES = ("first", "second", "third")


async def in_process(temporal: Temporal, agent: Agent, script: list[Any], keep: int) -> Story:
    story, model, session = Story(), ScriptedModel(script), temporal.session("twin")
    options: dict[str, Any] = {"llm": model, "store": temporal.store, "user_id": "ada", "max_stored_messages": keep}
    for text in MESSAGES:
        try:
            ended = await run(agent, message=text, session_id=session, **options)
            while is_interrupted(ended):
                story.questions.append(ended.question)
                answer = f"answer {len(story.questions)}"
                ended = await resume(agent, ended.checkpoint, answer, **options)
            done = assert_complete(ended)
            usage = None if done.usage is None else done.usage.model_dump()
            story.ends.append((done.status, done.response, usage, done.output))
        except TerminalError as error:
            story.ends.append(("raised", str(error), error.metadata))
    await _tell(story, temporal, session, model)
    return story


async def on_temporal(temporal: Temporal, agent: Agent, script: list[Any], keep: int) -> Story:
    story, model, session = Story(), ScriptedModel(script), temporal.session("twin")
    async with temporal.worker(agent, llm=model, max_stored_messages=keep):
        for text in MESSAGES:
            handle = await temporal.start(agent, text, session="twin", user_id="ada")
            await _answer_all(handle, story)
            try:
                ended = await result(handle)
                story.ends.append((ended["status"], ended["response"], ended["usage"], ended.get("output")))
            except Exception as error:
                cause: Any = error.__cause__
                story.ends.append(("raised", cause.message, cause.details[0]["metadata"]))
            assert [wedges(history) for history in await chain(temporal.client, handle)].count([]) >= 1
    await _tell(story, temporal, session, model)
    return story


async def _answer_all(handle: Run, story: Story) -> None:
    """Answer whatever a run asks, one after the other, until it has ended."""
    latest: Any = handle._client.get_workflow_handle(handle.id)

    async def asked_or_ended() -> Any:
        return await waiting(latest) or await has_ended(latest)

    while (found := await until(asked_or_ended)) is not True:
        story.questions.append(found[0]["message"])
        data = {"text": f"answer {len(story.questions)}", "by": "ada"}  # as in process, where the user answers
        if found[0]["name"]:
            data["tool_call_id"] = found[0]["name"]
        left = len(found)
        await latest.execute_update("answer", data)

        async def taken(left: int = left) -> bool:
            return len(await waiting(latest)) < left or await has_ended(latest)

        await until(taken)


async def _tell(story: Story, temporal: Temporal, session: str, model: ScriptedModel) -> None:
    story.seen = [without_ids(asked.messages) for asked in model.calls]
    story.stored = without_ids(await temporal.store.load_messages(session))
    found = await temporal.store.load_session(session)
    story.state = "" if found is None else found.state
    await temporal.store.delete_session(session)


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("asks", [True, False], ids=["with questions", "without"])
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_both_drivers_tell_the_same_story(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch, seed: int, asks: bool, lane: Lane
) -> None:
    dice = random.Random(seed)
    agent, script, keep = make_agent(dice, asks=asks), make_script(dice), 200
    monkeypatch.setattr(agent_workflows, "STEPS", dice.choice([1, 2, 100]))
    expected = await in_process(temporal, agent, script, keep)
    story = await on_temporal(replace(temporal, lane=lane), agent, script, keep)
    assert story.ends == expected.ends
    assert story.questions == expected.questions
    for number, (seen, also) in enumerate(zip(story.seen, expected.seen, strict=False)):
        assert seen == also, f"model call {number}"
    assert len(story.seen) == len(expected.seen)
    assert story.stored == expected.stored
    assert story.state == expected.state
