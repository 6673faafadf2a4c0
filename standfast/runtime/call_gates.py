"""Asks who must approve calls, and tells a developer where their approvals are at fault."""

import logging
from collections.abc import Iterable
from typing import Any

from standfast.agent_loop import open_gates
from standfast.agents import Agent
from standfast.checkpoints import Question
from standfast.messages import ToolCall

_LOG = logging.getLogger("standfast")


def ask_at_gates(agent: Agent, calls: Iterable[ToolCall], **options: Any) -> tuple[list[Question], dict[str, str]]:
    """Return the gates that calls have to pass, and by id why some cannot run at all; see `open_gates`."""
    questions, refused, faults = open_gates(agent, calls, **options)
    for fault in faults:
        _LOG.warning("Agent %s: %s", agent.name, fault)
    return questions, refused
