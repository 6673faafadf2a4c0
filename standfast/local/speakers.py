"""Keeps the agents of a run's conversation, and their tools with this run's handlers."""

from collections.abc import Callable, Mapping
from typing import Any

from standfast.agents import Agent, AgentContext, AgentIdentity
from standfast.llm import tools_to_descriptions
from standfast.local.model_calls import ModelCalls
from standfast.runtime.inputs import with_handlers
from standfast.runtime.users_functions import call_users
from standfast.tools import Tool


class Speakers:
    """The agents of a conversation.

    Args:
        agent: the first agent.
        handlers: replace the tools' own handlers, by tool name.
    """

    def __init__(self, agent: Agent, handlers: Mapping[str, Callable[..., Any]]) -> None:
        self._agent, self._handlers = agent, handlers
        self.current = ""  # the agent that answers now
        self._tools: dict[Agent, Mapping[str, Tool[..., Any]]] = {}

    def tools(self, name: str) -> Mapping[str, Tool[..., Any]]:
        """Return the tools of an agent of the conversation, by name; "" is the first agent."""
        agent = self._agent.speaking(name)
        if agent not in self._tools:
            self._tools[agent] = with_handlers(agent, self._handlers)
        return self._tools[agent]

    async def let_speak(self, name: str, model: ModelCalls, context: AgentContext) -> str:
        """Let an agent answer from now on, and return its system prompt."""
        agent, self.current = self._agent.speaking(name), name
        context.agent = AgentIdentity(context.agent.id, agent.name)
        model.let_speak(agent, tools_to_descriptions(self.tools(name)))
        prompt: str = await call_users(agent.system_prompt, context)
        return prompt
