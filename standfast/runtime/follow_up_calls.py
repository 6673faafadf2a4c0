"""Finds the calls that follow from the results of a turn, which are made without calling the model."""

from collections.abc import Mapping, Sequence
from typing import Any

from standfast.agent_loop import last_answer
from standfast.messages import LLMResponse, Message
from standfast.tools import Tool


async def following_calls(
    tools: Mapping[str, Tool[..., Any]], messages: Sequence[Message], session_key: str
) -> LLMResponse | None:
    """Return an answer with the following calls, instead of calling the model; None if the model must be called.

    Args:
        messages: the transcript. After a new user message, the model must be called.
    """
    if all(tool.then is None for tool in tools.values()) or (last := last_answer(messages)) is None:
        return None
    results = {message.tool_call_id: message for message in messages[last + 1 :]}
    found = []
    for call in messages[last].tool_calls or ():
        tool, result = tools.get(call.name), results.get(call.id)
        if tool is not None and tool.then is not None and result is not None:
            found.append(await tool.then(call, result, session_key))
    calls = tuple(call for call in found if call is not None)
    return LLMResponse(tool_calls=calls) if calls else None
