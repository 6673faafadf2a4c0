"""Guards the tools of Strands agents: each call runs at most once in its session."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from standfast.effects.keys import in_activity
from standfast.errors import InputError
from standfast.integrations._guards import ToolGuard, check_key, check_version, key_of, said_safe
from standfast.messages import JSONObject
from standfast.stores.protocol import DurableStore
from standfast.tools.open_errors import leaves_open

check_version("strands-agents", "1.62", "2", "strands")

from strands.interrupt import InterruptException  # noqa: E402 - only in a version that has it
from strands.middleware import ExecuteToolContext, ExecuteToolStage, ToolResultEvent  # noqa: E402
from strands.plugins import Plugin  # noqa: E402
from strands.tools.mcp import MCPAgentTool  # noqa: E402
from strands.types._events import ToolInterruptEvent  # noqa: E402

__all__ = ["AtMostOnce"]


class _AskedError(Exception):
    """The tool asks a person, and has not run."""


class AtMostOnce(Plugin):
    """A plugin that runs a tool's call at most once: `Agent(plugins=[AtMostOnce(store)], session_manager=…)`.

    A tool is safe, and not guarded, if the `annotations` of its spec have `{"safe_to_retry": True}`. All others have
    effects. A server's hints in the annotations of an MCP tool count only with `trust_hints`.

    Args:
        store: a durable one, which may be shared.
        key: distinguishes a call from all others, from the context of its execution. By default, the ids of the
            session, the agent and the model's call; in a Temporal activity, the activity's id.
        trust_hints: trust MCP servers' hints: a tool is safe if its `readOnlyHint` or `idempotentHint` is set.

    Raises:
        MemoryStoreNotDurableError: the store is not durable.

    A call that cannot be guarded does not run, and the model reads the reason: without a session it has no key; or it
    was made before with other arguments; or the store does not answer.
    """

    name = "standfast"

    def __init__(
        self,
        store: DurableStore,
        *,
        key: Callable[[ExecuteToolContext], str] | None = None,
        trust_hints: bool = False,
    ) -> None:
        check_key(key, "the call's ExecuteToolContext")
        super().__init__()
        self._guard = ToolGuard(store, not_run=(_AskedError, InterruptException))
        self._key, self._trust_hints = key, trust_hints

    def init_agent(self, agent: Any) -> None:
        agent.add_middleware(ExecuteToolStage, self._execute)

    async def _execute(self, context: ExecuteToolContext, next_fn: Callable[..., Any]) -> AsyncIterator[Any]:
        if self._is_safe(context.tool):
            async for event in next_fn(context):
                yield event
            return
        use, events = context.tool_use, list[Any]()

        async def call() -> Any:
            async for event in next_fn(context):
                events.append(event)
                if isinstance(event, ToolInterruptEvent):
                    raise _AskedError
            *_, last = (event for event in events if isinstance(event, ToolResultEvent))
            if last.exception is not None and leaves_open(last.exception):  # Strands has turned it into a result
                events[:] = [event for event in events if not isinstance(event, ToolResultEvent)]
                raise last.exception
            return last.tool_result

        try:
            read = await self._guard.run(
                use["name"], str(use["toolUseId"]), {"input": use["input"]}, call, key=self._key_of(context)
            )
        except _AskedError:
            read = None
        for event in events:
            yield event
        if read is not None and not any(
            isinstance(event, ToolResultEvent) and event.tool_result == read for event in events
        ):
            yield ToolResultEvent(_result(str(use["toolUseId"]), read))

    def _is_safe(self, tool: Any) -> bool:
        said = (tool.tool_spec.get("annotations") if tool is not None else None) or {}
        if said.get("safe_to_retry") is True and not isinstance(tool, MCPAgentTool):
            return True
        return self._trust_hints and said_safe(said)

    def _key_of(self, context: ExecuteToolContext) -> str | None:
        if self._key is not None:
            return self._key(context)
        if in_activity():
            return None
        session = getattr(getattr(context.agent, "_session_manager", None), "session_id", None)
        if session is None:
            raise InputError(
                f"Tool '{context.tool_use['name']}' cannot be guarded: its agent has no session, which identifies "
                "repeated calls. Give it a session_manager, or AtMostOnce a key=. Nothing was run"
            )
        call_id = str(context.tool_use["toolUseId"])
        # A model may count its calls from the beginning in each answer, so ids may repeat.
        answered = sum(
            block["toolResult"]["toolUseId"] == call_id
            for message in context.agent.messages
            for block in message["content"]
            if "toolResult" in block
        )
        again = [str(answered)] if answered else []  # the first call has the key from earlier versions
        return key_of(str(session), str(context.agent.agent_id), call_id, *again)


def _result(call_id: str, read: JSONObject) -> Any:
    """Return a stored result, or one that tells the model that there is none."""
    if "status" in read:
        return read
    return {"toolUseId": call_id, "status": "error", "content": [{"text": json.dumps(read, ensure_ascii=False)}]}
