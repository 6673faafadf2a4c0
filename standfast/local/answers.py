"""Gets the next answer of an in-process run, from its current agent's model or from the gate that holds it."""

from collections.abc import Callable, Mapping
from typing import Any

from standfast.agent_loop import CallModel, Held, released, with_dropped
from standfast.agents import Agent, AgentContext, AgentIdentity
from standfast.checkpoints import Question
from standfast.llm import tools_to_descriptions
from standfast.local.model_calls import ModelCalls
from standfast.local.sessions import RunTranscript
from standfast.messages import LLMResponse, Message
from standfast.runtime.guardrails import Guardrails
from standfast.runtime.inputs import with_handlers
from standfast.runtime.model_answers import following_calls, note_failure
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
        self._tools: dict[str, Mapping[str, Tool[..., Any]]] = {}

    def tools(self, name: str) -> Mapping[str, Tool[..., Any]]:
        """Return the tools of an agent of the conversation, by name; "" is the first agent."""
        if name not in self._tools:
            self._tools[name] = with_handlers(self._agent.speaking(name), self._handlers)
        return self._tools[name]

    async def let_speak(self, name: str, model: ModelCalls, context: AgentContext) -> str:
        """Let an agent answer from now on, and return its system prompt."""
        agent, self.current = self._agent.speaking(name), name
        context.agent = AgentIdentity(context.agent.id, agent.name)
        model.let_speak(agent, tools_to_descriptions(self.tools(name)))
        prompt: str = await call_users(agent.system_prompt, context)
        return prompt


def guardrails_in(agent: Agent, context: AgentContext, passed: Question | None = None) -> Guardrails:
    """Return the guardrails of an agent in this process; see `Guardrails`."""
    return Guardrails(agent, lambda check: call_users(check, context), passed)


class Answers:
    """The answers of a run. The guardrails of the answering agent check each one."""

    def __init__(
        self, agent: Agent, speakers: Speakers, model: ModelCalls, transcript: RunTranscript, context: AgentContext
    ) -> None:
        self._agent, self._speakers, self._model = agent, speakers, model
        self._transcript, self._context = transcript, context

    def guardrails(self, speaker: str, passed: Question | None = None) -> Guardrails:
        """Return the guardrails of an agent of the conversation."""
        return guardrails_in(self._agent.speaking(speaker), self._context, passed)

    async def next(self, action: CallModel, turn: int) -> Message | Held | Exception:
        """Return the next message to write, the answer that people must decide on first, or why the model failed."""
        decided, guardrails = action.decided, self.guardrails(action.agent, action.decided)
        self._model.begin(action, turn)
        if decided is not None and (answer := released(decided)) is not None:
            return self._ended(turn, await guardrails.validated(answer))
        tools, messages = self._speakers.tools(action.agent), self._transcript.messages
        try:
            if action.agent != self._speakers.current:
                self._model.prompt(await self._speakers.let_speak(action.agent, self._model, self._context))
            response = await following_calls(tools, messages, self._transcript.log.session.key)
            response = response or await guardrails.around(messages, lambda: self._model.ask(action))
        except Exception as error:
            if error is guardrails.raised:
                raise
            self._model.failed(turn, error)
            note_failure(self._agent, action.model, error)
            return error
        said = self._transcript.answer(response or LLMResponse(), action, tools.keys())
        checked = await guardrails.checked(said if decided is None else with_dropped(said, decided))
        return checked if isinstance(checked, Held) else self._ended(turn, checked)

    def _ended(self, turn: int, answer: Message) -> Message:
        self._model.ended(turn, answer)
        return answer
