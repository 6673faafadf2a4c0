"""The catalogue of a worker: its agents, pipelines, tools and models, as its activities look them up."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from standfast.agents import ACCEPTED, Agent, ForeignAgent, Loop, adopted
from standfast.agents.samplers import with_samplers
from standfast.errors import DefinitionError
from standfast.llm import LLM, LLMAdapter, ToolDescription, tools_to_descriptions
from standfast.llm.providers import named
from standfast.messages import with_article
from standfast.pipelines import Pipeline
from standfast.temporal.wire import names
from standfast.temporal.wire.snapshots import Surroundings, ToolFacts, tool_facts
from standfast.temporal.wire.turn_records import CalledTool
from standfast.tools import Tool

T = TypeVar("T")

TRIES = 4  # to reach a worker that has an activity's agent and tool


class Catalogue:
    """The agents, pipelines, tools and models of one worker.

    Args:
        surroundings: returns the facts that a run needs about its namespace and its worker.

    Attributes:
        agents: by name, those that are served now.
        given: by name, as passed in, without the tools of their toolsets.
        facts: of tools, by name.
        called: the records of turns, by agent and tool.
        descriptions: of tools, by agent.
        waits: by the name of an agent that is not served yet: the reason.

    Raises:
        DefinitionError: naming the agent or tool that is missing or duplicated.
    """

    def __init__(
        self,
        agents: Iterable[Agent | ForeignAgent],
        pipelines: Iterable[Pipeline],
        llm: LLM | None,
        handlers: Mapping[str, Callable[..., Any]],
        surroundings: Callable[[], Surroundings],
    ) -> None:
        self._surroundings = surroundings
        self.agents: dict[str, Agent] = {}
        if isinstance(agents, Agent):
            raise DefinitionError("agents must be a list of agents")
        for given in map(adopted, agents):
            if not isinstance(given, Agent):
                raise DefinitionError(f"agents: {given!r:.80} is not {ACCEPTED}")
            for name, agent in with_samplers(given):  # runs continue under their agent's former name
                if name in self.agents:
                    raise DefinitionError(f"agents: two are named '{name}'")
                self.agents[name] = agent
        self.given = dict(self.agents)
        self.tools: dict[str, Tool[..., Any]] = {}
        self.facts: dict[str, ToolFacts] = {}
        self.called: dict[Agent, dict[str, CalledTool]] = {}
        self.descriptions: dict[Agent, Sequence[ToolDescription]] = {}
        self.waits: dict[str, str] = {}
        self._handlers = handlers
        for agent in self.agents.values():
            self._check_handoffs(agent)
            self.add_tools(agent)
        self.pipelines: dict[str, Pipeline] = {}
        if isinstance(pipelines, Pipeline):
            raise DefinitionError("pipelines must be a list of pipelines")
        for pipeline in pipelines:
            self._add_pipeline(pipeline)
        if missing := sorted(handlers.keys() - self.tools.keys()):
            raise DefinitionError(f"tools: no agent has a tool named '{missing[0]}'")
        self._llm = llm
        self._check_models()
        self._adapters: dict[tuple[str, str | None], LLMAdapter] = {}

    def _check_models(self) -> None:
        for agent in self.agents.values():
            for model in (None, *agent.fallback_models):
                named(self._llm, agent, model)

    def _add_pipeline(self, pipeline: Pipeline) -> None:
        if not isinstance(pipeline, Pipeline):
            kind = with_article(type(pipeline).__name__)
            raise DefinitionError(f"pipelines: expected a Pipeline, got {kind}; end a builder with .build()")
        for name in pipeline.names:
            if name in self.pipelines or name in self.agents:
                raise DefinitionError(f"pipelines: two workflows are named '{name}'")
            self.pipelines[name] = pipeline
        for step in pipeline.every_step():
            if step.agent is not None and self.agents.get(step.agent.name) is not step.agent:
                raise DefinitionError(
                    f"Pipeline '{pipeline.name}' uses the agent '{step.agent.name}', which agents= does not give"
                )
            if step.run is not None:
                self._add_tool(f"Pipeline '{pipeline.name}'", step.run)

    def _check_handoffs(self, agent: Agent) -> None:
        for target in agent.handoffs:
            name = target if isinstance(target, str) else target.name
            if (self.given.get(name) is not target) if isinstance(target, Agent) else name not in self.given:
                raise DefinitionError(f"Agent '{agent.name}' hands over to '{name}', which agents= does not give")

    def add_tools(self, agent: Agent) -> None:
        children = {item.name: item for item in agent.tools if isinstance(item, Agent)}
        also = {item.name: item for toolset in agent.toolsets for item in toolset.agents}
        for name, child in {**also, **children}.items():
            if self.given.get(name) is not child:
                raise DefinitionError(f"Agent '{agent.name}' uses the agent '{name}', which agents= does not give")
        for name, tool in agent.tool_map.items():
            if name not in children:
                self._add_tool(f"Agent '{agent.name}'", tool)
        for speaker in {agent, *agent.speakers.values()}:
            within = {item.name for item in speaker.tools if isinstance(item, Agent)}
            known = speaker.tool_map.items()
            self.descriptions[speaker] = tools_to_descriptions(speaker.tool_map)
            self.called[speaker] = {name: CalledTool.of(tool, agent=name in within) for name, tool in known}

    def _add_tool(self, owner: str, tool: Tool[..., Any]) -> None:
        name = tool.name
        if name == names.CALL_MODEL:
            raise DefinitionError(f"{owner}: a tool cannot be named {name!r}, an activity of standfast")
        given = tool.with_handler(self._handlers[name]) if name in self._handlers else tool
        if given.handler is None:
            raise DefinitionError(
                f"{owner}: its tool '{name}' has no handler; declare it with one, or give "
                f'tools={{"{name}": handler}} to the plugin'
            )
        known = self.tools.get(name)
        if known is not None and known is not tool and known.handler is not given.handler:
            raise DefinitionError(
                f"{owner}: another tool of this worker is also named '{name}'; on Temporal a tool's name is the "
                "name of its activity"
            )
        self.tools[name], self.facts[name] = given, tool_facts(given)

    def agent(self) -> Agent:
        """Return the agent of the workflow that runs this activity."""
        return self.here("agent", activity.info().workflow_type or "", self.agents)

    def speaker(self, name: str | None) -> Agent:
        """Return an agent of the conversation that the workflow's agent has begun, as it speaks there."""
        agent = self.agent()
        return agent.speaking(self.here("agent", name, {**agent.speakers, agent.name: agent}).name if name else "")

    def caller(self, name: str | None) -> Agent:
        """Return the caller of a tool: the agent that asks for it, or the pipeline as an agent of its name."""
        of = activity.info().workflow_type or ""
        return Agent(of) if of in self.pipelines else self.speaker(name)

    def pipeline(self) -> Pipeline:
        """Return the pipeline of the workflow that runs this activity."""
        return self.here("pipeline", activity.info().workflow_type or "", self.pipelines)

    @property
    def max_message_bytes(self) -> int:
        """The agent's limit; the default if this worker does not have the agent."""
        agent = self.agents.get(activity.info().workflow_type or "")
        return (Loop() if agent is None else agent.loop).max_message_bytes

    def tool(self, name: str) -> Tool[..., Any]:
        return self.here("tool", name, self.tools)

    def here(self, kind: str, name: str, known: Mapping[str, T]) -> T:
        if name in known:
            return known[name]
        usual = f"This worker has no {kind} '{name}'; it has {', '.join(known) or 'none'}"
        raise self.not_here(name, self.waits.get(name, usual))

    def not_here(self, name: str, text: str, *, step: str | None = None) -> ApplicationError:
        """Return the error of an activity that needs an agent, tool or step that this worker does not have.

        The error is not final: another worker of the queue may have it, or this one after the next deploy.
        """
        info = activity.info()
        return ApplicationError(
            text,
            {"name": name, "step": step, **self._surroundings()},
            type=names.NOT_HERE,
            category=ApplicationErrorCategory.BENIGN,  # not worth a traceback at every attempt
            next_retry_delay=timedelta(seconds=min(0.25 * info.attempt, 5)),
            # Then the run itself waits, so that people see it.
            non_retryable=info.attempt >= TRIES and info.activity_type not in (names.OPEN, names.OPEN_PIPELINE),
        )

    def adapter(self, agent: Agent, model: str | None) -> LLMAdapter:
        """Return the adapter for an agent, or for the model that a person chose instead of its own."""
        if agent.adapter is not None:
            return named(None, agent, model)
        if self._llm is not None:
            return self._llm if hasattr(self._llm, "chat") else named(self._llm, agent, model)
        key = (agent.name, model)
        if key not in self._adapters:  # provider adapters are made once
            self._adapters[key] = named(None, agent, model)
        return self._adapters[key]
