"""Guards an application's own tools in the Claude Agent SDK, which are the tools of in-process MCP servers.

The guard is around `SdkMcpTool.handler`, which only gets the arguments: the SDK does not pass on the ids of the call
and the session. A `PreToolUse` hook has them, but can only allow or deny a call. After a crash, Claude Code never
repeats the same call. It tells the model to try again, and that call has another id. So the key comes from the user.
"""

import json
from collections.abc import Callable
from typing import Any

from standfast.errors import DefinitionError
from standfast.integrations._guards import (
    AroundTool,
    ToolGuard,
    check_key,
    check_version,
    has_guard,
    said_safe,
    second_guard,
)
from standfast.messages import JSONObject
from standfast.stores.protocol import DurableStore

check_version("claude-agent-sdk", "0.2.187", "0.3", "claude-agent-sdk")

from claude_agent_sdk import SdkMcpTool  # noqa: E402 - only in a version that has it

__all__ = ["guarded"]


def guarded(tool: SdkMcpTool[Any], *, store: DurableStore, key: Callable[[JSONObject], str]) -> SdkMcpTool[Any]:
    """Guard a tool, and return the same object, for `create_sdk_mcp_server`.

    A tool is safe, and not guarded, if its `annotations` have `readOnlyHint` or `idempotentHint`: here the application
    itself writes them.

    Args:
        tool: changed in place.
        store: a durable one.
        key: distinguishes a call from all others of the tool, from its arguments: the subject of the call, such as the
            number of an order.

    Raises:
        DefinitionError: it is not such a tool, has no name, or is already guarded.
        MemoryStoreNotDurableError: the store is not durable.

    A call that cannot be guarded does not run, and the model reads the reason: its key was used with other arguments,
    or the store does not answer.
    """
    guard = ToolGuard(store)
    if not isinstance(tool, SdkMcpTool):
        raise DefinitionError(f"guarded needs a tool of the Claude Agent SDK, made by @tool, got {tool!r:.80}")
    if not tool.name:
        raise DefinitionError("guarded: the tool has no name")
    check_key(key, "the call's arguments", is_optional=False)
    if not said_safe(tool.annotations):
        if has_guard(tool.handler):
            raise second_guard(tool.name)
        tool.handler = _Guarded(tool.name, tool.handler, guard, key)
    return tool


class _Guarded(AroundTool):
    def __init__(self, name: str, handler: Any, guard: ToolGuard, key: Callable[[JSONObject], str]) -> None:
        self._name, self._handler, self._guard, self._key = name, handler, guard, key

    async def __call__(self, arguments: JSONObject) -> JSONObject:
        async def call() -> list[Any]:
            return [await self._handler(arguments)]

        key = self._key(arguments)
        read = await self._guard.run(self._name, key, arguments, call, key=key)
        if isinstance(read, list):
            found: JSONObject = read[0]
            return found
        return {"content": [{"type": "text", "text": json.dumps(read, ensure_ascii=False)}], "is_error": True}
