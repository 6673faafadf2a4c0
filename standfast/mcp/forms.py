"""Phrases an MCP server's question for a person, and converts the person's answer to the server's form."""

import json
from collections.abc import Mapping
from typing import Any

from standfast.mcp.schemas import checked_by
from standfast.messages import clean_text, cut

_LONGEST_QUESTION = 4 * 1024  # bytes
_TRUE, _FALSE = ("yes", "true", "y", "ok"), ("no", "false", "n")
NO = ("decline", "no answer")


def in_words(server: str, tool: str, message: str, schema: Mapping[str, Any], fault: str) -> str:
    """Return a question in words for a person.

    Args:
        fault: why earlier answers do not fit, as lines.
    """
    fields = schema.get("properties") or {}
    lines = [f"The MCP server {server} asks, in its tool {tool}: {clean_text(message)}"]
    for name, one in fields.items() if isinstance(fields, Mapping) else ():
        said = one if isinstance(one, Mapping) else {}
        choices = f", one of {', '.join(map(str, said['enum']))}" if isinstance(said.get("enum"), list) else ""
        lines.append(
            f"- {name} ({said.get('type', 'text')}{choices}): {said.get('description', said.get('title', ''))}"
        )
    how = {0: 'Answer "yes"', 1: "Answer with the value"}.get(len(fields), "Answer with a JSON object of these")
    lines.append(f'{how}, or with "decline".')
    return cut(f"{fault}{chr(10).join(lines)}", _LONGEST_QUESTION)


def content_of(answer: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer in the server's form.

    Raises:
        ValueError: the answer does not fit.
    """
    fields = schema.get("properties") or {}
    try:
        found = json.loads(answer)
    except ValueError:
        found = answer.strip()
    if not isinstance(found, dict):
        if len(fields) > 1:
            raise ValueError("a JSON object is needed")
        if not fields and str(found).lower() not in _TRUE:
            raise ValueError('"yes" or "decline" is needed')
        found = {name: _as_said(found, answer, one) for name, one in fields.items()}
    return checked_by({"type": "object", **schema})(found)


def _as_said(found: Any, answer: str, field_schema: Any) -> Any:
    kind = field_schema.get("type") if isinstance(field_schema, Mapping) else None
    if kind == "string":
        return answer.strip()
    if kind == "boolean" and isinstance(found, str) and found.lower() in (*_TRUE, *_FALSE):
        return found.lower() in _TRUE
    return found
