"""Stores the results of LangGraph tools in the form of a checkpoint; internal.

Only types that LangGraph considers safe are restored: anyone who can write to the store must not be able to run code
here. Other objects come back as their plain data.
"""

import json
from base64 import b64decode, b64encode
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command

from standfast.integrations._foreign_agents import data_of
from standfast.messages import with_article

_UPDATE = "graph_update"  # in a tool's result: its updates to the graph, besides its text


def dump(result: Any) -> list[str]:
    """Return a result as plain data."""
    kind, data = JsonPlusSerializer(allowed_msgpack_modules=None).dumps_typed(result)
    return [kind, b64encode(data).decode()]


def load(kept: Any) -> Any:
    """Return the stored result."""
    if not isinstance(kept, list):
        return kept
    return JsonPlusSerializer(allowed_msgpack_modules=None).loads_typed((kept[0], b64decode(kept[1])))


def written(result: Any, call_id: str, *, keeps: bool) -> Any:
    """Return a tool's result in our form: its text, and its changes to the graph.

    Args:
        keeps: whether the graph continues from its current state, so that a change can be applied to it.

    Raises:
        RuntimeError: the tool has reported an error.
        TypeError: the result cannot be passed to the graph.
    """
    if isinstance(result, ToolMessage):
        if result.status == "error":
            raise RuntimeError(str(result.content))
        content = result.content
        is_alike = (
            isinstance(found := data_of(content) if isinstance(content, str) else content, dict) and _UPDATE in found
        )
        return {"result": content} if is_alike else content  # a tool's text does not change the graph
    if not keeps:
        raise TypeError(
            f"it ran, and returned {with_article(type(result).__name__)} for the graph, which cannot accept it: "
            "compile the graph with a checkpointer"
        )
    said = next((one for one in _messages(result) if one.tool_call_id == call_id), None)
    return {"result": None if said is None else said.content, _UPDATE: dump(result)}


def for_graph(call: Any, content: str, *, failed: bool) -> Any:
    """Return a tool's result from our transcript in the graph's form."""
    found = data_of(content)
    if failed or not isinstance(found, dict) or found.keys() != {"result", _UPDATE}:
        status = "error" if failed else "success"
        return ToolMessage(content, name=call["name"], tool_call_id=call["id"], status=status)
    result = load(found[_UPDATE])
    if json.loads(content) != found:  # people have changed the call, and the model reads that
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
