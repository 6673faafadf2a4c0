"""Results that a tool's types never finish with: the call has run, and nothing else waits for it."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, field_serializer
from support.drivers import Driver
from support.temporal_runs import Temporal, result, until
from support.tools import Point
from support.transcripts import asks_for, call, tool_results

from standfast import Agent, Happened, Tool, ToolContext, run, tool
from standfast.agent_loop import ToolState
from standfast.runtime import users_functions
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel
from standfast.tools import Failed, KeptState, Outcome, Returned


class Endless:
    """Types whose values are not done with writing before they are released, and the posts that ran."""

    def __init__(self) -> None:
        self.posted: list[str] = []
        self.is_writing, self.release = threading.Event(), threading.Event()

    def write(self, text: str) -> str:
        self.is_writing.set()
        assert self.release.wait(20), "nobody has released it"
        return text

    def results(self) -> dict[str, tuple[Any, object]]:
        """Return types of results, each with a value that a handler may return."""
        write = self.write

        class Receipt(BaseModel):
            text: str

            @field_serializer("text")
            def written(self, text: str) -> str:
                return write(text)

        read = Annotated[str, AfterValidator(write)]
        return {"a validator": (read, "paid"), "a serializer": (Receipt, Receipt(text="paid")),
                "a value of any type": (Any, [Receipt(text="paid")])}  # fmt: skip

    def tool(self, kind: str = "a validator", **options: Any) -> Tool[..., Any]:
        output, value = self.results()[kind]

        async def post() -> object:
            self.posted.append("paid")
            return value

        return Tool("post", description="Post.", output=output, handler=post, **options)


@pytest.fixture
def endless() -> Iterator[Endless]:
    made = Endless()
    yield made
    made.release.set()


LOST = 'Tool "post" ran, but its result was lost: it could not be written within 0.2 s'


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("kind", Endless().results())
@pytest.mark.parametrize("options", [{}, {"timeout": 60}, {"safe_to_retry": True}], ids=str)
async def test_of_a_result_that_is_never_done_with_writing_the_model_reads_that_the_call_ran(
    driver: Driver, endless: Endless, monkeypatch: pytest.MonkeyPatch, kind: str, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(users_functions, "READ_SECONDS", 0.2)
    model = ScriptedModel([asks_for(call("post", "c1")), "done"])
    ended = await driver.run(Agent("a", tools=[endless.tool(kind, **options)]), model)
    assert (ended.status, endless.posted) == ("complete", ["paid"])
    assert [json.loads(item.content)["error"] for item in tool_results(ended.messages)] == [LOST]


@pytest.mark.parametrize("driver_name", ["in process", "on Temporal"])
async def test_another_run_continues_while_a_result_is_written(
    temporal: Temporal, driver_name: str, endless: Endless
) -> None:
    @tool
    async def let_go() -> str:
        """Let the other one go on."""
        endless.release.set()
        return "gone"

    agent = Agent("a", tools=[endless.tool(), let_go])
    model = ScriptedModel([asks_for(call("post", "c1")), asks_for(call("let_go", "c1")), "done", "done"])
    if driver_name == "in process":
        slow = asyncio.create_task(run(agent, message="go", llm=model))
        await until(endless.is_writing.is_set)
        status = (await run(agent, message="go", llm=model)).status
        read = tool_results((await slow).messages)
    else:
        async with temporal.worker(agent, llm=model):
            handle = await temporal.start(agent, session="slow")
            await until(endless.is_writing.is_set)
            status = (await result(await temporal.start(agent, session="other")))["status"]
            await result(handle)
        read = tool_results(await temporal.messages("slow"))
    assert (status, [item.content for item in read]) == ("complete", ["paid"])


async def test_the_result_of_a_run_that_is_cancelled_while_it_is_written_is_kept(
    endless: Endless, store: SQLiteStore
) -> None:
    model = ScriptedModel([asks_for(call("post", "c1"))])
    running = asyncio.create_task(
        run(
            Agent("a", tools=[endless.tool()]),
            message="go",
            llm=model,
            store=store,
            session_id="s",
            create_session=True,
        )
    )
    await until(endless.is_writing.is_set)
    running.cancel()
    endless.release.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [item.content for item in tool_results(await store.load_messages("s"))] == ["paid"]


async def bounded(subject: Tool[..., Any], ask: Any, seconds: float | None = None) -> Outcome | None:
    context = ToolContext(agent_name="a", tool_call_id="c1")
    state = ToolState(Agent("a"), KeptState(0, "{}"))
    return await users_functions.run_bounded(
        ask, subject, subject, {}, context, state=state, limit=10_000, seconds=seconds
    )


async def test_a_run_that_is_cancelled_does_not_wait_for_a_result_for_ever(
    endless: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users_functions, "READ_SECONDS", 0.2)
    post = endless.tool()
    asked = asyncio.create_task(bounded(post, post.attempt))
    await until(endless.is_writing.is_set)
    asked.cancel()
    assert await asked == Failed(LOST)


async def test_a_result_that_a_handler_returns_in_its_last_moment_is_not_lost() -> None:
    async def give() -> Point:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return Point(x=1)
        raise AssertionError

    subject = Tool("give", description="Give it.", output=Point, handler=give)
    assert await bounded(subject, subject.attempt, seconds=0.1) == Returned('{"x":1,"y":0}')


async def test_a_verify_whose_result_is_never_done_with_writing_says_that_the_call_ran(
    endless: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users_functions, "READ_SECONDS", 0.2)
    post = endless.tool(verify=lambda: Happened("paid"))
    assert await bounded(post, post.ask_whether_it_happened) == Failed(LOST)
