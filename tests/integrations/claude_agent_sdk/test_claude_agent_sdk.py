"""Claude Agent SDK tools under the guard, with the real Claude Code, with and without processes that die."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import (
    HookMatcher,
    PermissionResultAllow,
    PermissionResultDeny,
    ToolAnnotations,
    UserMessage,
    create_sdk_mcp_server,
    query,
    tool,
)
from claude_agent_sdk._internal.sdk_mcp_bridge import SdkMcpBridge
from integrations.claude_agent_sdk.shop import model, options, text_of
from support.documents import run_examples
from support.mortal_programs import bare_and_guarded, run_until_complete

from standfast import DefinitionError, MemoryStoreNotDurableError, memory_store
from standfast.effects import effect
from standfast.integrations.claude_agent_sdk import guarded
from standfast.stores import SQLiteStore
from standfast.testing import ModelServer

SHOP = "integrations.claude_agent_sdk.shop"


# --- processes that die ---


async def test_a_tool_that_dies_charges_each_time_if_the_model_does_as_it_is_told_and_with_the_guard_once(
    tmp_path: Path,
) -> None:
    bare, told = await bare_and_guarded(tmp_path, lambda folder, kind: run_until_complete(SHOP, folder, kind, "2"))
    assert bare == {"read": "charged 5", "is_error": False, "said": "done"}
    read = json.loads(told["read"])
    assert (read["kind"], read["toolName"]) == ("tool-durability-error", "charge")
    assert (told["is_error"], told["said"]) == (True, "done")


# --- in one process ---


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}], **more}


class Shop:
    """A tool on an MCP server of the SDK, and what it was called with."""

    def __init__(
        self,
        store: SQLiteStore,
        run: Callable[[int], Any] = lambda cents: text(f"ran {cents}"),
        key: Callable[[Any], str] = lambda arguments: "order-7",
        annotations: ToolAnnotations | None = None,
    ) -> None:
        self.charges: list[int] = []

        @tool("charge", "Charge the card", {"cents": int}, annotations)
        async def charge(arguments: dict[str, Any]) -> dict[str, Any]:
            self.charges.append(arguments["cents"])
            found: dict[str, Any] = run(arguments["cents"])
            return found

        self.tool = guarded(charge, store=store, key=key)

    async def call(self, cents: int = 5) -> tuple[str, bool]:
        """Call the tool by the messages of Claude Code; return what is read, and whether it is an error."""
        bridge = SdkMcpBridge("shop", create_sdk_mcp_server("shop", tools=[self.tool])["instance"])
        who = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        call = {"name": "charge", "arguments": {"cents": cents}}
        await bridge.handle({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": who})
        await bridge.handle({"jsonrpc": "2.0", "method": "notifications/initialized"})
        answer = await bridge.handle({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})
        await bridge.aclose()
        assert answer is not None
        return answer["result"]["content"][0]["text"], answer["result"].get("isError", False)


async def test_a_call_that_is_made_again_reads_what_is_kept(store: SQLiteStore) -> None:
    shop = Shop(store)
    assert [await shop.call(), await shop.call()] == [("ran 5", False)] * 2
    assert shop.charges == [5]


async def test_a_result_that_is_an_error_is_kept_as_one(store: SQLiteStore) -> None:
    shop = Shop(store, lambda cents: text("declined", is_error=True))
    assert [await shop.call(), await shop.call()] == [("declined", True)] * 2
    assert shop.charges == [5]


async def test_what_has_raised_is_read_by_the_model_and_not_run_again(store: SQLiteStore) -> None:
    def decline(cents: int) -> Any:
        raise RuntimeError("the card was declined")

    shop = Shop(store, decline)
    first, second = await shop.call(), await shop.call()
    assert "the card was declined" in first[0]
    assert json.loads(second[0]) == {"error": "RuntimeError: the card was declined"}
    assert (first[1], second[1], shop.charges) == (True, True, [5])


async def test_an_error_that_leaves_the_outcome_open_is_told_as_such(store: SQLiteStore) -> None:
    def reset(cents: int) -> Any:
        raise ConnectionResetError("the connection broke behind the request")

    shop = Shop(store, reset)
    for _ in range(2):
        read, is_error = await shop.call()
        told = json.loads(read)
        assert (is_error, told["kind"]) == (True, "tool-durability-error")
        assert "the connection broke" in told["error"]
    assert shop.charges == [5]


async def test_a_result_that_is_not_json_is_lost_and_the_model_reads_that_it_ran(store: SQLiteStore) -> None:
    shop = Shop(store, lambda cents: {"content": [{"type": "text", "text": object()}]})
    assert "its result was lost" in (await shop.call())[0]
    assert "its result was lost" in (await shop.call())[0]
    assert shop.charges == [5]


async def test_a_key_that_is_used_with_other_arguments_is_refused_before_anything_runs(store: SQLiteStore) -> None:
    shop = Shop(store)
    await shop.call()
    read, is_error = await shop.call(6)
    assert "other arguments" in read
    assert (is_error, shop.charges) == (True, [5])


async def test_a_key_that_is_not_one_is_refused_before_anything_runs(store: SQLiteStore) -> None:
    shop = Shop(store, key=lambda arguments: "")
    read, is_error = await shop.call()
    assert "its key must be" in read
    assert (is_error, shop.charges) == (True, [])


async def test_other_keys_are_other_calls(store: SQLiteStore) -> None:
    shop = Shop(store, key=lambda arguments: f"order-{arguments['cents']}")
    await shop.call(5)
    await shop.call(6)
    assert shop.charges == [5, 6]


# --- people ---


async def test_a_call_that_is_not_permitted_is_not_claimed_and_runs_once_permitted(
    store: SQLiteStore, tmp_path: Path
) -> None:
    shop, asked = Shop(store), []

    async def sell(answer: Any) -> str:
        async def permit(name: str, arguments: Any, context: Any) -> Any:
            asked.append((name, arguments))
            return answer

        async def prompt() -> AsyncIterator[Any]:
            yield {"type": "user", "message": {"role": "user", "content": "Charge it."}}

        async with ModelServer(model) as server:
            given = options(tmp_path, server, shop.tool, can_use_tool=permit)
            messages = [message async for message in query(prompt=prompt(), options=given)]
        [read] = [message.content[0] for message in messages if isinstance(message, UserMessage)]
        return text_of(read)

    assert "not today" in await sell(PermissionResultDeny(message="not today"))
    assert shop.charges == []
    assert [await sell(PermissionResultAllow()), await sell(PermissionResultAllow())] == ["ran 5"] * 2
    assert asked == [("mcp__shop__charge", {"cents": 5})] * 3
    assert shop.charges == [5]


async def test_no_hook_hears_that_a_call_which_was_let_through_before_was_denied_after_it(
    store: SQLiteStore, tmp_path: Path
) -> None:
    """The guard is not a hook, because a call that a hook claimed may never run, and the hook is not told."""
    shop, heard = Shop(store), list[str]()

    async def hear(told: Any, call_id: str | None, context: Any) -> Any:
        heard.append(told["hook_event_name"])
        return {}

    async def deny(name: str, arguments: Any, context: Any) -> Any:
        heard.append("denied")
        return PermissionResultDeny(message="not today")

    async def prompt() -> AsyncIterator[Any]:
        yield {"type": "user", "message": {"role": "user", "content": "Charge it."}}

    events: Any = ("PreToolUse", "PostToolUse", "PostToolUseFailure")
    hooks: Any = {event: [HookMatcher(hooks=[hear])] for event in events}
    async with ModelServer(model) as server:
        given = options(tmp_path, server, shop.tool, can_use_tool=deny, hooks=hooks)
        assert [message async for message in query(prompt=prompt(), options=given)]
    assert (heard, shop.charges) == (["PreToolUse", "denied"], [])


# --- declarations ---


@pytest.mark.parametrize(
    ("annotations", "runs"),
    [(ToolAnnotations(readOnlyHint=True), 2), (ToolAnnotations(idempotentHint=True), 2),
     (ToolAnnotations(readOnlyHint=False), 1), (None, 1)],
)  # fmt: skip
async def test_only_a_tool_that_is_declared_safe_runs_again(store: SQLiteStore, annotations: Any, runs: int) -> None:
    shop = Shop(store, annotations=annotations)
    assert [await shop.call(), await shop.call()] == [("ran 5", False)] * 2
    assert shop.charges == [5] * runs


async def test_what_cannot_be_guarded_is_refused(store: SQLiteStore) -> None:
    async def charge(arguments: dict[str, Any]) -> dict[str, Any]:
        return text("ran")

    with pytest.raises(DefinitionError, match="needs a tool of the Claude Agent SDK"):
        guarded(charge, store=store, key=str)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="has no name"):
        guarded(tool("", "", {})(charge), store=store, key=str)
    with pytest.raises(DefinitionError, match="key must be a function"):
        guarded(tool("charge", "", {})(charge), store=store, key="order-7")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="already guarded"):
        guarded(guarded(tool("charge", "", {})(charge), store=store, key=str), store=store, key=str)
    with pytest.raises(DefinitionError, match="already guarded"):
        guarded(tool("charge", "", {})(effect(store)(charge)), store=store, key=str)
    with pytest.raises(MemoryStoreNotDurableError):
        guarded(tool("charge", "", {})(charge), store=memory_store(), key=str)  # type: ignore[arg-type]


async def test_its_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    await run_examples("integrations/claude-agent-sdk.md")
