"""Stands in for the model of the `documents` agents: answers made from their input, and marked as such."""

import json
import re
from collections.abc import Sequence

from standfast import Message
from workflows.documents import editor, researcher, reviewer, writer

_SECRET = re.compile(r"(?i)\b(password|api[_-]?key|secret)\b\s*[:=]\s*\S+")


def answer(messages: Sequence[Message]) -> str | None:
    """Return the answer of the agent whose instructions come first; None for any other agent."""
    prompt = next((message.content for message in messages if message.role == "system"), "")
    asked = next((message.content for message in reversed(messages) if message.role == "user"), "")
    said = asked.partition(": ")[2] or asked
    for agent, reply in (
        (researcher, {"findings": f"No model researched {said}.", "sources": []}),
        (writer, {"draft": said, "word_count": len(said.split())}),
        (editor, {"final": said.strip()}),
        (reviewer, _review(asked)),
    ):
        if prompt.startswith(str(agent.instructions)):
            return json.dumps(reply)
    return None


def _review(text: str) -> dict[str, object]:
    lines = text.splitlines()
    findings = [f"line {number}: looks like a secret" for number, line in enumerate(lines, -1) if _SECRET.search(line)]
    findings += [f"line {number}: TODO" for number, line in enumerate(lines, -1) if "TODO" in line]
    return {"approved": not findings, "findings": findings}
