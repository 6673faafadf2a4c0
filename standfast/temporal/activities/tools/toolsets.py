"""Opens the toolsets of a worker's agents. An agent is served once its tools are known; its runs wait until then."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any

from standfast.agents import Agent
from standfast.errors import DefinitionError
from standfast.messages import cut, error_text
from standfast.runtime.dependencies import with_found
from standfast.temporal.activities.worker.agent_host import AgentHost
from standfast.tools import Tool, Toolset

_LOG = logging.getLogger("standfast")

_FIRST_DELAY, _LONGEST_DELAY = 1.0, 30.0  # seconds until a toolset that could not be opened is tried again


class OpenToolsets:
    """The toolsets of a worker's agents, which are open while it serves; several workers of a process share them.

    Args:
        activity_of: returns the activity of one of the host's tools.
    """

    def __init__(self, host: AgentHost, activity_of: Callable[[str], Any]) -> None:
        self._store, self._catalogue, self._activity_of = host.store, host.catalogue, activity_of
        self._agents = {name: agent for name, agent in host.catalogue.agents.items() if agent.toolsets}
        self._found: dict[Toolset, Sequence[Tool[..., Any]]] = {}
        self._names: set[str] = set()  # of their tools, which the host has
        self._adders: list[Callable[[Any], None]] = []
        self._tasks: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def serving(self, add: Callable[[Any], None]) -> AsyncIterator[None]:
        """Open the toolsets, and serve the agents whose tools are known; the others follow.

        Args:
            add: adds an activity to a worker.
        """
        if not self._agents:
            yield
            return
        self._adders.append(add)
        for name in self._names:
            add(self._activity_of(name))
        try:
            if len(self._adders) == 1:
                await self._begin()
            yield
        finally:
            self._adders.remove(add)
            if not self._adders:
                await self._end()

    async def _begin(self) -> None:
        for name, agent in self._agents.items():
            del self._catalogue.agents[name]
            self._catalogue.waits[name] = f"Agent '{name}' waits for {', '.join(one.name for one in agent.toolsets)}"
        wanted = list(dict.fromkeys(one for agent in self._agents.values() for one in agent.toolsets))
        tried = [asyncio.Event() for _ in wanted]
        self._tasks = [
            asyncio.create_task(self._keep_open(one, first)) for one, first in zip(wanted, tried, strict=True)
        ]
        for first in tried:
            await first.wait()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for name in self._names:
            del self._catalogue.tools[name], self._catalogue.facts[name]
        self._names.clear()
        self._found.clear()
        self._catalogue.waits.clear()
        self._catalogue.agents |= self._agents

    async def _keep_open(self, toolset: Toolset, first: asyncio.Event) -> None:
        """Keep a toolset open, and retry for as long as it cannot be opened: one task opens and closes it."""
        delay, last = _FIRST_DELAY, ""
        while True:
            try:
                async with toolset.opened(self._store, partial(self._renew, toolset)) as tools:
                    self._found[toolset] = tools
                    self._serve()
                    first.set()
                    await asyncio.Event().wait()
            except Exception as error:  # whatever the error, the other agents are served
                why = cut(error_text(error), 1_000)
                if why != last:
                    _LOG.warning("%s: its tools cannot be read; retrying: %s", toolset.name, why)
                last = why
                for name, agent in self._waiting():
                    if toolset in agent.toolsets:
                        self._catalogue.waits[name] = f"Agent '{name}' waits for {toolset.name}: {why}"
            first.set()
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY)

    def _renew(self, toolset: Toolset, tools: Sequence[Tool[..., Any]]) -> None:
        """Serve its agents with other tools from now on; calls in flight keep their tools."""
        for name, agent in self._agents.items():
            if toolset in agent.toolsets and name in self._catalogue.agents:
                del self._catalogue.agents[name]
        for old in self._found[toolset]:
            if self._catalogue.tools.get(old.name) is old:
                del self._catalogue.tools[old.name], self._catalogue.facts[old.name]
                self._names.discard(old.name)
        self._found[toolset] = tools
        self._serve()

    def _waiting(self) -> Iterator[tuple[str, Agent]]:
        return ((name, agent) for name, agent in self._agents.items() if name not in self._catalogue.agents)

    def _serve(self) -> None:
        """Serve the agents whose tools are all known now."""
        for name, agent in tuple(self._waiting()):
            if not all(one in self._found for one in agent.toolsets):
                continue
            known = set(self._catalogue.tools)
            try:
                whole = with_found(agent, self._found)
                self._catalogue.add_tools(whole)
            except DefinitionError as error:  # another agent has a tool of this name
                self._catalogue.waits[name] = str(error)
                _LOG.error("Agent %s is not served: %s", name, error)
            else:
                self._catalogue.agents[name] = whole
                self._catalogue.waits.pop(name, None)
            for new in self._catalogue.tools.keys() - known:
                self._names.add(new)
                for add in self._adders:
                    add(self._activity_of(new))
