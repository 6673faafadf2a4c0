"""Conversations of pydantic-ai agents in one process: turns, resumption, permissions, and other features."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Self

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, FunctionToolset, ModelRetry, RunContext, ToolOutput, UsageLimits
from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RunUsage

from standfast import (
    Approval,
    DefinitionError,
    InputError,
    MemoryStoreNotDurableError,
    SessionAccessDeniedError,
    SessionConflictError,
    memory_store,
)
from standfast.integrations.pydantic_ai import StandfastDurability
from standfast.stores import SQLiteStore

Answer = ModelResponse | Callable[[list[ModelMessage]], ModelResponse] | BaseException


@pytest.fixture
def store(any_store: Any) -> Any:
    """A store of each kind."""
    return any_store


class Power(BaseException):
    """The power goes out: what a killed process does not catch."""


class Script:
    """A model that gives one answer after the other; an exception is raised once, and then the next answer is given."""

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.asked = list(answers), list[list[ModelMessage]]()

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked.append(list(messages))
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer(messages) if callable(answer) else answer


def calls(*calls: tuple[str, dict[str, Any]]) -> ModelResponse:
    return ModelResponse([ToolCallPart(name, args, tool_call_id=f"c{n}") for n, (name, args) in enumerate(calls)])


def says(text: str) -> ModelResponse:
    return ModelResponse([TextPart(text)])


def reads(messages: list[ModelMessage]) -> ModelResponse:
    """Say what was read of the calls."""
    return says(json.dumps([part.content for part in messages[-1].parts if isinstance(part, ToolReturnPart)]))


class Till:
    def __init__(self) -> None:
        self.charged = list[int]()

    async def charge(self, cents: int) -> int:
        self.charged.append(cents)
        return cents


def agent_of(store: SQLiteStore, script: Script, *tools: Any, **options: Any) -> Agent[Any, Any]:
    durability = {name: options.pop(name) for name in ("user_id", "tenant_id", "approval") if name in options}
    return Agent(
        FunctionModel(script),
        name=options.pop("name", "seller"),
        tools=tools,
        capabilities=[StandfastDurability(store, **durability), *options.pop("capabilities", ())],
        **options,
    )


CHARGE = calls(("charge", {"cents": 5}))


async def test_a_second_message_is_a_new_turn_that_follows_the_first(store: SQLiteStore) -> None:
    script, till = Script(CHARGE, says("Done."), says("You are welcome.")), Till()
    agent = agent_of(store, script, till.charge)
    first = await agent.run("Sell it.", conversation_id="order-7")
    second = await agent.run("Thank you.", conversation_id="order-7")
    assert (first.output, second.output, till.charged) == ("Done.", "You are welcome.", [5])
    assert len(script.asked[-1]) == 5  # the first turn's four messages stand before the second's
    assert [len(second.all_messages()), len(second.new_messages())] == [6, 2]


async def test_the_same_message_again_after_the_end_is_a_new_turn_and_with_a_run_id_the_same(
    store: SQLiteStore,
) -> None:
    script, till = Script(CHARGE, reads, CHARGE, reads), Till()
    agent = agent_of(store, script, till.charge)
    for _ in range(2):
        result = await agent.run("Sell it.", conversation_id="order-7", run_id="sale-1")
        assert (result.output, result.usage.requests) == ("[5]", 2)
    await agent.run("Sell it.", conversation_id="order-7")
    assert (till.charged, len(script.asked)) == ([5, 5], 4)
    again = await agent.run("Sell it.", conversation_id="order-7", run_id="sale-1")
    assert len(again.all_messages()) == 4  # without the turn that followed
    with pytest.raises(InputError, match="began with another message"):
        await agent.run("Sell two.", conversation_id="order-7", run_id="sale-1")


async def test_without_a_message_a_turn_continues_and_a_finished_one_is_read(store: SQLiteStore) -> None:
    script, till = Script(CHARGE, Power(), reads), Till()
    agent = agent_of(store, script, till.charge)
    with pytest.raises(Power):
        await agent.run("Sell it.", conversation_id="order-7")
    for _ in range(2):
        result = await agent.run(conversation_id="order-7")
        assert (result.output, till.charged, len(script.asked)) == ("[5]", [5], 3)
    assert result.all_messages()[0].parts[0].content == "Sell it."  # type: ignore[union-attr]


async def test_another_message_closes_a_turn_that_has_not_ended(store: SQLiteStore) -> None:
    async def fails() -> None:
        raise Power

    till = Till()
    three = calls(("charge", {"cents": 5}), ("fails", {}), ("charge", {"cents": 7}))
    script = Script(three, lambda messages: says(f"{len(messages)} messages"))
    agent = agent_of(store, script, till.charge, fails)
    with pytest.raises(Power), agent.parallel_tool_call_execution_mode("sequential"):
        await agent.run("Sell it.", conversation_id="order-7")
    result = await agent.run("What did you do?", conversation_id="order-7")
    assert (result.output, till.charged) == ("3 messages", [5])
    results = script.asked[-1][-1]  # and the question
    assert isinstance(results, ModelRequest)
    read = [part.content for part in results.parts if isinstance(part, ToolReturnPart)]
    assert read[0] == 5
    assert read[1]["kind"] == "tool-durability-error"
    assert read[2] == {"error": "Not run: the next message came first"}


async def test_two_runs_at_once_are_refused(store: SQLiteStore) -> None:
    going, go = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        going.set()
        await go.wait()
        return "waited"

    agent = agent_of(store, Script(calls(("wait", {})), says("Done.")), wait)
    first = asyncio.create_task(agent.run("Wait.", conversation_id="order-7"))
    await going.wait()
    with pytest.raises(SessionConflictError, match="order-7 has a run in flight"):
        await agent.run("Wait.", conversation_id="order-7")
    go.set()
    assert (await first).output == "Done."


async def test_a_conversation_belongs_to_its_agent_user_and_tenant(store: SQLiteStore) -> None:
    async def run(user: str | None, name: str = "seller", tenant: str | None = None) -> str:
        agent = agent_of(
            store, Script(says("Hello.")), name=name, user_id=lambda ctx: ctx.deps, tenant_id=lambda ctx: tenant
        )
        return str((await agent.run("Hello.", conversation_id="order-7", deps=user)).output)

    assert await run("ada") == "Hello."
    with pytest.raises(SessionAccessDeniedError):
        await run("bob")
    with pytest.raises(InputError, match="belongs to agent 'seller'"):
        await run("ada", name="buyer")
    assert await run("bob", tenant="acme") == "Hello."  # another conversation


async def test_agents_of_similar_names_share_no_conversation(store: SQLiteStore) -> None:
    first = agent_of(store, Script(says("For my_shop alone.")), name="my_shop")
    await first.run("Keep it secret.", conversation_id="order-7")
    with pytest.raises(InputError, match="belongs to agent 'my_shop'"):
        await agent_of(store, Script(), name="my-shop").run("What was said?", conversation_id="order-7")
    with pytest.raises(DefinitionError, match=r"'My Shop' needs a name .*: give StandfastDurability\(…, name=…\)"):
        agent_of(store, Script(), name="My Shop")
    with pytest.raises(DefinitionError, match="name must match"):
        StandfastDurability(store, name="My Shop")
    named = StandfastDurability(store, name="my_third_shop")
    other: Agent[Any, Any] = Agent(FunctionModel(Script(says("Hello."))), name="My Shop", capabilities=[named])
    await other.run("Hello.", conversation_id="order-8")
    assert {one.id: one.agent_name for one in await store.list_sessions()} == {
        "order-7": "my_shop",
        "order-8": "my_third_shop",
    }


async def test_a_run_without_a_conversation_id_is_an_ordinary_one(store: SQLiteStore) -> None:
    agent = agent_of(store, Script(says("Hello."), says("Again.")))
    first = await agent.run("Hello.")
    assert (first.output, await store.list_sessions()) == ("Hello.", [])
    # The messages of a run name a conversation, as they do everywhere in pydantic-ai.
    await agent.run("Again.", message_history=first.all_messages())
    assert [session.id for session in await store.list_sessions()] == [first.conversation_id]


async def test_a_history_that_is_given_replaces_that_of_the_store(store: SQLiteStore) -> None:
    script = Script(says("One."), says("Two."), says("Three."))
    agent = agent_of(store, script)
    first = await agent.run("1", conversation_id="order-7")
    await agent.run("2", conversation_id="order-7", message_history=first.all_messages())
    assert len(script.asked[-1]) == 3
    await agent.run("3", conversation_id="order-7", message_history=first.all_messages())
    assert [len(messages) for messages in script.asked] == [1, 3, 3]
    script.answers = [says("Four.")]
    await agent.run("4", conversation_id="order-7")
    assert len(script.asked[-1]) == 5  # after the history that was given last


async def test_tools_that_retry_fail_or_run_at_once_continue_as_they_were(store: SQLiteStore) -> None:
    tries, till = list[int](), Till()

    async def picky(n: int) -> str:
        tries.append(n)
        if n < 2:
            raise ModelRetry("more")
        return "fine"

    first = calls(("picky", {"n": 1}), ("charge", {"cents": 5}), ("charge", {"cents": 7}))
    script = Script(first, calls(("picky", {"n": 2})), Power(), reads)
    agent = agent_of(store, script, picky, till.charge)
    with pytest.raises(Power):
        await agent.run("Go.", conversation_id="order-7")
    result = await agent.run("Go.", conversation_id="order-7")
    assert (result.output, tries, sorted(till.charged)) == ('["fine"]', [1, 2], [5, 7])
    assert (result.usage.requests, result.usage.tool_calls) == (3, 3)


async def test_what_a_tool_raised_is_read_by_the_model_when_the_turn_continues(store: SQLiteStore) -> None:
    async def breaks() -> None:
        raise RuntimeError("no paper")

    agent = agent_of(store, Script(calls(("breaks", {})), reads), breaks)
    with pytest.raises(RuntimeError, match="no paper"):
        await agent.run("Print.", conversation_id="order-7")
    result = await agent.run("Print.", conversation_id="order-7")
    assert json.loads(result.output) == [{"error": "RuntimeError: no paper"}]


async def test_a_safe_tool_runs_again_only_if_its_result_was_lost(store: SQLiteStore) -> None:
    looked = list[str]()

    async def look() -> str:
        looked.append("here")
        if len(looked) == 1:
            raise Power
        return "found"

    script = Script(calls(("look", {})), Power(), reads)
    agent = agent_of(store, script)
    agent.tool_plain(metadata={"safe_to_retry": True})(look)
    for _ in range(2):
        with pytest.raises(Power):
            await agent.run("Look.", conversation_id="order-7")
    result = await agent.run("Look.", conversation_id="order-7")
    assert (result.output, len(looked)) == ('["found"]', 2)


async def test_a_safe_tool_that_timed_out_is_tried_again_and_one_with_effects_is_not(store: SQLiteStore) -> None:
    tried = list[str]()

    async def slow() -> str:
        tried.append("slow")
        if len(tried) == 1:
            await asyncio.sleep(60)
        return "done"

    def read(messages: list[ModelMessage]) -> ModelResponse:
        return says(str([getattr(part, "content", None) for part in messages[-1].parts]))

    script = Script(calls(("slow", {})), calls(("slow", {})), reads)
    agent = agent_of(store, script)
    agent.tool_plain(timeout=0.05, metadata={"safe_to_retry": True})(slow)
    assert (await agent.run("Go.", conversation_id="safe")).output == '["done"]'
    (told,) = script.asked[1][-1].parts
    assert getattr(told, "content", None) == "Timed out after 0.05 seconds."
    agent = agent_of(store, Script(calls(("slow", {})), read))
    agent.tool_plain(timeout=0.05)(slow)
    tried.clear()
    result = await agent.run("Go.", conversation_id="unsafe")
    assert ("tool-durability-error" in result.output, "Timed out after 0.05 seconds" in result.output) == (True, True)


async def test_timeouts_of_a_safe_tool_count_as_retries(store: SQLiteStore) -> None:
    async def slow() -> None:
        await asyncio.sleep(60)

    agent = agent_of(store, Script(*[calls(("slow", {}))] * 9), retries={"tools": 1})
    agent.tool_plain(timeout=0.05, metadata={"safe_to_retry": True})(slow)
    with pytest.raises(UnexpectedModelBehavior, match="slow"):
        await agent.run("Go.", conversation_id="order-7")


class Receipt(BaseModel):
    cents: int


async def test_an_output_function_runs_once_and_its_type_stays(store: SQLiteStore) -> None:
    written = list[int]()

    async def write(ctx: RunContext[Any], cents: int) -> Receipt:
        if cents < 5:
            raise ModelRetry("at least 5")
        written.append(cents)
        return Receipt(cents=cents)

    script = Script(calls(("final", {"cents": 1})), calls(("final", {"cents": 5})))
    agent = agent_of(store, script, output_type=ToolOutput(write, name="final"))
    for _ in range(2):
        result = await agent.run("Write it.", conversation_id="order-7", run_id="r")
        assert (result.output, written, len(script.asked)) == (Receipt(cents=5), [5], 2)


class Shop(BaseModel):
    town: str

    async def moved(self, town: str) -> Self:
        return self.model_copy(update={"town": town})


class Handle:
    """A type without a schema."""


async def test_an_output_function_may_return_its_own_type_or_one_without_a_schema(store: SQLiteStore) -> None:
    made = list[str]()

    async def open_shop(town: str) -> Handle:
        made.append(town)
        return Handle()

    script = Script(calls(("final", {"town": "Rome"})), calls(("final", {"town": "Rome"})))
    agent = agent_of(store, script, output_type=ToolOutput(Shop(town="Oslo").moved, name="final"))
    for _ in range(2):
        result = await agent.run("Move.", conversation_id="moved", run_id="r")
        assert result.output == Shop(town="Rome")
    with pytest.warns(UserWarning, match="Could not generate return schema"):
        agent = agent_of(store, script, output_type=ToolOutput(open_shop, name="final"))
    assert isinstance((await agent.run("Open.", conversation_id="opened")).output, Handle)
    assert made == ["Rome"]


async def test_toolsets_that_are_made_for_a_run_need_no_id(store: SQLiteStore) -> None:
    till = Till()
    toolsets = [lambda ctx: FunctionToolset([till.charge])]
    agent = agent_of(store, Script(CHARGE, Power(), reads), toolsets=toolsets)
    with pytest.raises(Power):
        await agent.run("Sell it.", conversation_id="order-7")
    assert (await agent.run("Sell it.", conversation_id="order-7")).output == "[5]"
    assert till.charged == [5]


async def test_an_output_validator_and_limits_hold_when_a_turn_continues(store: SQLiteStore) -> None:
    script = Script(says("short"), Power(), says("long enough"), says("Hello again."))
    agent = agent_of(store, script)

    @agent.output_validator
    def check(text: str) -> str:
        if len(text) < 8:
            raise ModelRetry("longer")
        return text

    with pytest.raises(Power):
        await agent.run("Say.", conversation_id="order-7")
    with pytest.raises(UsageLimitExceeded):
        await agent.run("Say.", conversation_id="order-7", usage_limits=UsageLimits(request_limit=1))
    result = await agent.run("Say.", conversation_id="order-7", usage_limits=UsageLimits(request_limit=2))
    assert (result.output, result.usage.requests) == ("long enough", 2)
    total = RunUsage()
    await agent.run("More.", conversation_id="order-7", usage=total)
    assert total.requests == 1


async def test_a_turn_that_the_agent_gave_up_is_closed_by_the_next_message(store: SQLiteStore) -> None:
    async def never() -> None:
        raise ModelRetry("no")

    script = Script(calls(("never", {})), calls(("never", {})), says("All right."))
    agent = agent_of(store, script, never)
    for _ in range(2):
        with pytest.raises(UnexpectedModelBehavior):
            await agent.run("Try.", conversation_id="order-7")
    assert len(script.asked) == 2
    assert (await agent.run("Stop.", conversation_id="order-7")).output == "All right."


async def test_an_agent_that_a_tool_asks_continues_where_it_was(store: SQLiteStore) -> None:
    till = Till()
    inner_script = Script(CHARGE, Power(), says("Charged."))
    inner = agent_of(store, inner_script, till.charge, name="cashier")
    script = Script(calls(("ask", {})), reads)
    agent = agent_of(store, script)

    @agent.tool(metadata={"safe_to_retry": True})
    async def ask(ctx: RunContext[None]) -> str:
        return str((await inner.run("Charge it.", usage=ctx.usage)).output)

    with pytest.raises(Power):
        await agent.run("Sell it.", conversation_id="order-7")
    result = await agent.run("Sell it.", conversation_id="order-7")
    assert (result.output, till.charged, len(inner_script.asked)) == ('["Charged."]', [5], 3)
    sessions = {session.agent_name: session.id for session in await store.list_sessions()}
    assert sessions["cashier"].startswith("order-7.")


async def test_the_transcript_is_the_sessions(store: SQLiteStore) -> None:
    agent = agent_of(store, Script(CHARGE, says("Done.")), Till().charge)
    await agent.run("Sell it.", conversation_id="order-7")
    messages = await store.load_messages("order-7")
    assert [(one.role, one.content) for one in messages] == [
        ("user", "Sell it."),
        ("assistant", ""),
        ("tool", "5"),
        ("assistant", "Done."),
    ]
    assert messages[1].tool_calls is not None
    assert messages[1].tool_calls[0].arguments == {"cents": 5}


async def test_a_store_that_forgets_is_refused() -> None:
    with pytest.raises(MemoryStoreNotDurableError):
        StandfastDurability(memory_store())  # type: ignore[arg-type]  # which the check is for


async def test_what_cannot_say_whose_it_is_or_who_approves_is_refused_when_it_is_made(store: SQLiteStore) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"approval": "ada"}, "approval must be a function of the ToolCall, or an Approval, got 'ada'"),
        ({"approval": Approval}, "approval must be an Approval, not the class Approval"),
        ({"approval": Approval(show=lambda ctx: [])}, "approval.show is for a pipeline's gate, not for a call"),
        ({"user_id": "ada"}, "user_id must be a function of the run's context, got 'ada'"),
        ({"tenant_id": 7}, "tenant_id must be a function of the run's context, got 7"),
    ]
    for options, said in wrong:
        with pytest.raises(DefinitionError, match=said):
            StandfastDurability(store, **options)
