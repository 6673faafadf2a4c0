"""Makes the tool that asks people an MCP server's questions, and the calls that follow without the model."""

import json
from typing import Annotated, Any

from pydantic import Field, create_model

from standfast.errors import InputError, InterruptError
from standfast.mcp.kept_questions import KeptQuestions
from standfast.messages import Message, ToolCall
from standfast.stores.protocol import session_key_of
from standfast.tools import Then, Tool, ToolContext


def asking_tool(name: str, store: Any) -> Tool[..., Any]:
    """Return the tool that asks a person the server's question, in the server's words."""

    async def ask(given: Any, ctx: ToolContext) -> str:
        session = await store.load_session(session_key_of(ctx.tenant_id, str(ctx.session_id)))
        kept = None if session is None else KeptQuestions(store, session.key)
        asked = None if kept is None else await kept.asked(given.question)
        if kept is None or asked is None:
            raise InputError(f"No MCP server has asked the question {given.question!r:.80}")
        await kept.ask_person(given.question, ctx.tool_call_id)
        raise InterruptError(str(asked["question"]))

    async def then(call: ToolCall, result: Message, session_key: str) -> ToolCall | None:
        """Return the call that continues with a person's answer."""
        question = call.arguments.get("question") if isinstance(call.arguments, dict) else None
        if result.status != "completed" or not isinstance(question, str):
            return None
        asked = await KeptQuestions(store, session_key).asked(question)
        return None if asked is None or "then" not in asked else ToolCall(**asked["then"])

    fields: Any = {"question": (Annotated[str, Field(description="its id, as the tool gave it")], ...)}
    return Tool(
        name,
        description="Ask a person a tool's question, so that it can continue; the result is the person's answer.",
        input=create_model("Question", **fields),
        handler=ask,
        safe_to_retry=True,
        then=then,
    )


def then_asks(asking: str, store: Any) -> Then:
    """Return a function that returns the call to ask a person, after a call that has ended with a question."""

    async def then(call: ToolCall, result: Message, session_key: str) -> ToolCall | None:
        try:
            said = json.loads(result.content) if '"question"' in result.content else None
        except ValueError:
            return None
        question = said.get("question") if isinstance(said, dict) else None
        if question is None or await KeptQuestions(store, session_key).waits_for(call.id) != question:
            return None
        return ToolCall(name=asking, arguments={"question": question})

    return then
