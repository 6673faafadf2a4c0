"""An agent that requests two payments, and checks each reported outcome against the real one."""

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from standfast import (
    Agent,
    Approval,
    Guardrail,
    LLMResponse,
    Loop,
    Message,
    TerminalError,
    Tool,
    ToolContext,
    Tripped,
    Usage,
    tool,
)
from standfast.runtime.call_ledger import last_dispatch
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel
from standfast.tools.calls import call_key, turn_scope
from support.transcripts import DURABILITY, asks_for, call

TEAM = Approval(approvers=["ada", "bob"], quorum=2)
SOON = replace(TEAM, timeout=0.3)
ASKS = {
    "cancelled before it started": ("pay_slowly", "pay"),
    "unapproved": ("pay_soon", "pay"),
    "stopped": ("fail", "pay"),
    "cancelled while the second runs": ("pay", "pay_slowly"),
    "not found": ("pay", "ghost"),
    **dict.fromkeys(("rejected", "cancelled at a gate", "too many gates"), ("pay_if_approved", "pay_if_approved")),
}


def no_second(context: Any, asked: Any) -> Tripped | None:
    return Tripped("only one") if asked.id == "c2" else None


class Shop:
    """An agent that asks for two payments at once, and an account of the payments made."""

    def __init__(self, name: str) -> None:
        self.paid: list[str] = []
        self.began, self.may_return = threading.Event(), threading.Event()
        self.told: list[list[Message]] = []  # the results that the model has read, at each call
        self.has_dependencies, self.loses_them = True, name == "no dependencies"
        self.asks = ASKS.get(name, ("pay", "pay"))
        self.stop_reason = "max-tokens" if name == "cut" else None
        options: dict[str, dict[str, Any]] = {
            "guardrail": {"tool_guardrails": [no_second]},
            "a stopped call is not approved": {"tool_guardrails": [Guardrail(no_second, approval=SOON)]},
            "no dependencies": {"deps": self._dependencies},
            "stopped": {"on_terminal_tool_error": "fail"},
            "too many": {"loop": Loop(max_tool_calls=1)},
            "max iterations": {"loop": Loop(max_iterations=1)},
            "spent": {"loop": Loop(token_budget=10)},
            "denied": {"loop": Loop(token_budget=10, on_budget="ask")},
        }
        self.agent = Agent("shop", tools=self._tools(), **options.get(name, {}))
        self.llm = ScriptedModel(self._answer)

    def _tools(self) -> list[Tool]:
        async def paying(ctx: ToolContext) -> str:
            self.paid.append(ctx.tool_call_id)
            return f"paid {ctx.tool_call_id}"

        @tool
        async def pay(ctx: ToolContext) -> str:
            """Pay."""
            return await paying(ctx)

        @tool(approval=TEAM)
        async def pay_if_approved(ctx: ToolContext) -> str:
            """Pay, if two people approve."""
            return await paying(ctx)

        @tool(approval=SOON)
        async def pay_soon(ctx: ToolContext) -> str:
            """Pay, if two people approve at once."""
            return await paying(ctx)

        @tool
        def pay_slowly(ctx: ToolContext) -> str:
            """Pay, and return when that is let go."""
            self.paid.append(ctx.tool_call_id)
            self.began.set()
            self.may_return.wait()
            return f"paid {ctx.tool_call_id}"

        @tool
        async def fail(ctx: ToolContext) -> str:
            """Fail for good."""
            raise TerminalError("closed")

        return [pay, pay_if_approved, pay_soon, pay_slowly, fail]

    def _dependencies(self, ctx: Any) -> str:
        if not self.has_dependencies:
            raise ConnectionError("the shop's database is away")
        return "database"

    def _answer(self, messages: Sequence[Message], tools: Any) -> Any:
        results = [message for message in messages if message.role == "tool"]
        if not results:
            first, second = self.asks
            self.has_dependencies = not self.loses_them
            asked = asks_for(call(first, "c1"), call(second, "c2"))
            return LLMResponse(
                tool_calls=asked.tool_calls,
                stop_reason=self.stop_reason,  # type: ignore[arg-type]
                usage=Usage(input_tokens=20, output_tokens=1),
            )
        self.told.append(results)
        return "done"


async def check_told(store: SQLiteStore, session_id: str, shop: Shop, *, in_process: bool = False) -> None:
    """Check that what was told of each call is what happened, in the transcript and in the ledger."""
    messages = await store.load_messages(session_id)
    session = await store.load_session(session_id)
    assert session is not None
    (asked,) = [number for number, message in enumerate(messages) if message.tool_calls]
    scope = turn_scope(session.key, session.last_seq - (len(messages) - 1 - asked))
    for position, one in enumerate(messages[asked].tool_calls or ()):
        (told,) = [message for message in messages if message.tool_call_id == one.id]
        count = shop.paid.count(one.id)
        if told.content == f"paid {one.id}":
            assert count == 1, f"{one.id} was paid {count} times"
            if in_process:  # the transcript is the record
                continue
        elif DURABILITY in told.content:
            assert count <= 1
        else:
            assert count == 0, f"{told.content}, and it was paid {count} times"
        if in_process and told.tool_name == "fail":
            continue
        last = await last_dispatch(store, scope, position, one.id)
        entry = (await store.load_entries(scope, [key := call_key(position, one.id, last)])).get(key)
        assert entry is not None, f"{one.id} is not in the ledger: {told.content}"
        assert entry.result is not None, f"{one.id} has no result in the ledger: {told.content}"
        said = next(iter(json.loads(entry.result).values()))
        assert said in told.content or said in json.loads(told.content).get("error", ""), (entry.result, told.content)
    stored = {message.tool_call_id: message.content for message in messages if message.role == "tool"}
    for results in shop.told:
        assert {message.tool_call_id: message.content for message in results} == stored
