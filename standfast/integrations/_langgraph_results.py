"""Keeps what tools of LangGraph return, as a checkpoint keeps it; internal.

Only what LangGraph holds to be safe is made anew: those who can write to the store must not be able to run code here.
Other objects come back as the data that they consist of.
"""

import json
from base64 import b64decode, b64encode
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command

from standfast.integrations._foreign_agents import data_of
from standfast.messages import with_article

_UPDATE = "graph_update"  # in a tool's result: what it gives to the graph besides its words


def dump(result: Any) -> list[str]:
    """Return a result as plain data."""
    kind, data = JsonPlusSerializer(allowed_msgpack_modules=None).dumps_typed(result)
    return [kind, b64encode(data).decode()]


def load(kept: Any) -> Any:
    """Return what was kept."""
    if not isinstance(kept, list):
        return kept
    return JsonPlusSerializer(allowed_msgpack_modules=None).loads_typed((kept[0], b64decode(kept[1])))


def written(result: Any, call_id: str, *, keeps: bool) -> Any:
    """Return what a tool has returned, as a result of ours: its words, and what it changes in the graph.

    Args:
        keeps: whether the graph goes on where it stands, so that a change can be given to it.

    Raises:
        RuntimeError: the tool has reported an error.
        TypeError: the graph cannot be given what it returned.
    """
    if isinstance(result, ToolMessage):
        if result.status == "error":
            raise RuntimeError(str(result.content))
        content = result.content
        is_alike = (
            isinstance(found := data_of(content) if isinstance(content, str) else content, dict) and _UPDATE in found
        )
        return {"result": content} if is_alike else content  # a tool's words change nothing in the graph
    if not keeps:
        raise TypeError(
            f"it ran, and returned {with_article(type(result).__name__)} for the graph, which cannot be given to it: "
            "compile the graph with a checkpointer"
        )
    said = next((one for one in _messages(result) if one.tool_call_id == call_id), None)
    return {"result": None if said is None else said.content, _UPDATE: dump(result)}


def for_graph(call: Any, content: str, *, failed: bool) -> Any:
    """Return the form that a tool's result in our transcript has in the graph."""
    found = data_of(content)
    if failed or not isinstance(found, dict) or found.keys() != {"result", _UPDATE}:
        status = "error" if failed else "success"
        return ToolMessage(content, name=call["name"], tool_call_id=call["id"], status=status)
    result = load(found[_UPDATE])
    if json.loads(content) != found:  # people have changed the call, and the model is told so
        for one in _messages(result):
            if one.tool_call_id == call["id"]:
                one.content = json.dumps({**json.loads(content), "result": one.content}, ensure_ascii=False)
    return result


def _messages(result: Any) -> list[ToolMessage]:
    found = list[Any]()
    for one in result if isinstance(result, list) else [result]:
        update = one.update if isinstance(one, Command) else {"messages": [one]}
        found += update.get("messages", ()) if isinstance(update, dict) else ()
    return [one for one in found if isinstance(one, ToolMessage)]
