"""Arguments that a tool's validators never finish with: the call fails, and nothing else waits for it."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator
from support.drivers import Driver, Ended
from support.mcp_http import GatewayedServer
from support.temporal_runs import Temporal, pending, result, until
from support.transcripts import asks_for, call, tool_results

from integration.models.test_hostile_mcp_servers import described
from standfast import Agent, Approval, Happened, Tool, ToolContext, is_interrupted, mcp, run, tool
from standfast.agent_loop import ToolState
from standfast.mcp import servers
from standfast.runtime import users_functions
from standfast.testing import ScriptedModel
from standfast.tools import KeptState, Unknown


class Endless:
    """A text that is never done with reading if it is "hang", and the posts whose text was read."""

    def __init__(self) -> None:
        self.posted: list[str] = []
        self.is_reading, self.release = threading.Event(), threading.Event()

    def read(self, text: str) -> str:
        if text == "hang":
            self.is_reading.set()
            assert self.release.wait(20), "nobody has released it"
        return text

    def tool(self, **options: Any) -> Tool[..., Any]:
        @tool(**options)
        async def post(text: Annotated[str, AfterValidator(self.read)]) -> str:
            """Post a text."""
            self.posted.append(text)
            return "posted"

        return post


@pytest.fixture
def endless() -> Iterator[Endless]:
    made = Endless()
    yield made
    made.release.set()


def asks(text: str) -> ScriptedModel:
    return ScriptedModel([asks_for(call("post", "c1", text=text)), "done"])


def told(ended: Ended) -> list[str]:
    return [json.loads(item.content)["error"] for item in tool_results(ended.messages)]


TOO_LONG = 'Invalid input for tool "post": the arguments could not be read within 0.2 s'


@pytest.mark.parametrize(
    ("reading", "options"),
    [(0.2, {}), (10.0, {"timeout": 0.2}), (0.2, {"approval": Approval()}), (0.2, {"approval": lambda _: None})],
    ids=["longer than reading may take", "longer than the tool may take", "before a gate", "to see if there is a gate"],
)
async def test_arguments_that_are_never_done_with_reading_are_an_error_of_the_call(
    driver: Driver, endless: Endless, monkeypatch: pytest.MonkeyPatch, reading: float, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(users_functions, "READ_SECONDS", reading)
    ended = await driver.run(Agent("a", tools=[endless.tool(**options)]), asks("hang"))
    assert (ended.status, endless.posted) == ("complete", [])
    assert told(ended) == [TOO_LONG]


async def test_an_edit_that_is_never_done_with_reading_is_refused_in_words(
    driver: Driver, endless: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users_functions, "READ_SECONDS", 0.2)
    edit = {"gate": "c1", "decision": "approve", "by": "ada", "edit": {"text": "hang"}}
    plain = {"gate": "c1", "decision": "approve", "by": "ada"}
    ended = await driver.run(Agent("a", tools=[endless.tool(approval=Approval())]), asks("hi"), decisions=[edit, plain])
    assert (ended.status, endless.posted) == ("complete", ["hi"])
    assert TOO_LONG in ended.refused[0]


@pytest.mark.parametrize("options", [{}, {"approval": Approval()}], ids=["a call", "a gate"])
@pytest.mark.parametrize("driver_name", ["in process", "on Temporal"])
async def test_another_run_continues_while_arguments_are_read(
    temporal: Temporal, driver_name: str, endless: Endless, options: dict[str, Any]
) -> None:
    @tool
    async def let_go() -> str:
        """Let the other one go on."""
        endless.release.set()
        return "gone"

    agent = Agent("a", tools=[endless.tool(**options), let_go])
    goes_on = asks_for(call("let_go", "c1"))
    model = ScriptedModel([asks_for(call("post", "c1", text="hang")), goes_on, "done", "done"])
    if driver_name == "in process":
        slow = asyncio.create_task(run(agent, message="go", llm=model))
        await until(endless.is_reading.is_set)
        status = (await run(agent, message="go", llm=model)).status
        ended = await slow
        waiting = len(ended.approvals) if is_interrupted(ended) else 0
    else:
        async with temporal.worker(agent, llm=model):
            handle = await temporal.start(agent, session="slow")
            await until(endless.is_reading.is_set)
            status = (await result(await temporal.start(agent, session="other")))["status"]
            waiting = len(await pending(handle)) if options else 0
            await (handle.terminate() if options else result(handle))
    assert (status, waiting) == ("complete", len(options))
    assert endless.posted == ([] if options else ["hang"])


async def test_a_run_that_is_cancelled_while_arguments_are_read_runs_nothing(endless: Endless) -> None:
    running = asyncio.create_task(run(Agent("a", tools=[endless.tool()]), message="go", llm=asks("hang")))
    await until(endless.is_reading.is_set)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert endless.posted == []


async def test_a_verify_whose_arguments_are_never_done_with_reading_settles_nothing(
    endless: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users_functions, "READ_SECONDS", 0.2)
    post = endless.tool(verify=lambda text: Happened(text))
    outcome = await users_functions.run_bounded(
        post.ask_whether_it_happened,
        post,
        post,
        {"text": "hang"},
        ToolContext(agent_name="a", tool_call_id="c1"),
        state=ToolState(Agent("a"), KeptState(0, "{}")),
        limit=10_000,
        seconds=None,
    )
    assert outcome == Unknown(f"verify failed: {TOO_LONG}")


async def test_what_a_server_says_of_its_arguments_is_checked_beside_the_event_loop(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[threading.Thread] = []

    def checked_by(schema: Any) -> Any:
        return lambda given: checked.append(threading.current_thread()) or given

    monkeypatch.setattr(servers, "checked_by", checked_by)
    async with GatewayedServer([described("post")]) as server, mcp.mcp_tools(server.url) as tools:
        await driver.run(Agent("a", tools=tools), asks("hi"))
        assert server.effects == ["post"]
    assert {thread.name for thread in checked} == {"tool"}  # neither the loop's nor the handlers' shared one
