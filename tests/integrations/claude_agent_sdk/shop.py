"""An agent of the Claude Agent SDK, with the real Claude Code, whose tool dies behind its charge.

`shop FOLDER (bare | guarded) DEATHS`. Claude Code speaks to a model server on loopback, whose model does what Claude
Code tells it after a crash: it calls the tool again. Started again, the program resumes the session, and prints what
the model has read last.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ResultMessage,
    SystemMessage,
    UserMessage,
    create_sdk_mcp_server,
    query,
    tool,
)
from support.mortal_programs import charge_and_die

from standfast import LLMResponse, ToolCall, sqlite_store
from standfast.integrations.claude_agent_sdk import guarded
from standfast.testing import ModelServer, Request


def model(request: Request) -> LLMResponse:
    """Charge until a call has another answer than Claude Code's own."""
    parts = [part for message in request.body["messages"] for part in message["content"] if isinstance(part, dict)]
    results = [part["content"] for part in parts if part["type"] == "tool_result"]
    if any("was interrupted before a result was received" not in str(result) for result in results):
        return LLMResponse(text="done")
    call = ToolCall(id=f"toolu_{len(results)}", name="mcp__shop__charge", arguments={"cents": 5})
    return LLMResponse(tool_calls=[call])


def options(folder: Path, server: ModelServer, *tools: Any, **more: Any) -> ClaudeAgentOptions:
    """Return options by which Claude Code sees only our tools, and talks only to the server."""
    return ClaudeAgentOptions(
        mcp_servers={"shop": create_sdk_mcp_server("shop", tools=[*tools])},
        tools=[],
        setting_sources=[],
        cwd=folder,
        env={
            "ANTHROPIC_BASE_URL": f"http://{server.address}",
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "0",
            "CLAUDE_CONFIG_DIR": str(folder / "claude"),
            "HOME": str(folder),
        },
        **more,
    )


def text_of(result: Any) -> str:
    return str(result.content if isinstance(result.content, str) else result.content[0]["text"])


async def main(folder: Path, kind: str, deaths: int) -> None:
    @tool("charge", "Charge the card", {"cents": int})
    async def charge(arguments: dict[str, Any]) -> dict[str, Any]:
        charge_and_die(str(folder), deaths, arguments["cents"])
        return {"content": [{"type": "text", "text": f"charged {arguments['cents']}"}]}

    if kind == "guarded":
        guarded(charge, store=sqlite_store(folder / "effects.db"), key=lambda arguments: "order-7")
    kept = folder / "session"
    session = kept.read_text() if kept.exists() else None
    read, said = None, None
    async with ModelServer(model) as server:
        given = options(folder, server, charge, allowed_tools=["mcp__shop__charge"], resume=session)
        async for message in query(prompt="Go on." if session else "Charge it.", options=given):
            match message:
                case SystemMessage(subtype="init"):
                    kept.write_text(message.data["session_id"])
                case UserMessage(content=[result]):
                    read = result
                case ResultMessage():
                    said = message.result
    assert read is not None
    print(json.dumps({"read": text_of(read), "is_error": bool(read.is_error), "said": said}))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
