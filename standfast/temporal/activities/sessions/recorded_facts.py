"""Records with a turn the facts that its calls need, from this worker's version of the agent.

After a deploy the model may see, and call, tools that the run did not begin with. Facts that are unchanged since the
start are not repeated: histories are long.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from standfast.agents import Agent
from standfast.messages import ToolCall
from standfast.temporal.activities.worker.agent_host import AgentHost
from standfast.temporal.wire.activity_types import Declared
from standfast.temporal.wire.snapshots import ToolFacts, read_tool_facts
from standfast.temporal.wire.turn_records import CalledTool, TurnRecord, read_record


async def started_facts(host: AgentHost, run: str) -> Mapping[str, Any]:
    """Return the facts that steer a run, as recorded at its start."""
    known = host.records.cache.facts.get(run)
    if known is None:
        known = host.records.cache.facts[run] = json.loads(await host.records.load_kept(f"{run}/open", 0))["facts"]
    return known


def called_tools(
    host: AgentHost, agent: Agent, calls: Iterable[ToolCall]
) -> tuple[dict[str, CalledTool], tuple[str, ...] | None]:
    """Return the records of the tools that calls name.

    The records include the names of all the agent's tools, if a call names an unknown tool.
    """
    known, named = host.catalogue.called[agent], {call.name for call in calls}
    tools = {name: tool for name, tool in known.items() if name in named}
    return tools, None if len(tools) == len(named) else tuple(known)


async def called_before(
    host: AgentHost, agent: Agent, before: str | None, calls: Sequence[ToolCall], known: dict[str, Any]
) -> dict[str, CalledTool]:
    """Return the records of tools that an earlier run has called: its own records, or stricter ones."""
    called, _ = called_tools(host, agent, calls)
    run, _, turn = (before or "").rpartition("/")
    kept = await host.store.load_reply(run, int(turn)) if run else None
    then = {} if kept is None else read_record(run, int(turn), kept).tools
    for name in called.keys() & then.keys():
        if "safe_to_retry" not in then[name].facts:
            called[name] = at_most_once(called[name])
            known[name] = dict(called[name].facts)
    return called


async def news(host: AgentHost, run: str, record: TurnRecord) -> Declared:
    """Return the changes in a turn's tools since the start of its workflow, which only knows the tools of that time."""
    known, names = (await started_facts(host, run))["tools"], record.available
    changed = {name: dict(tool.facts) for name, tool in record.tools.items() if known.get(name) != tool.facts}
    told: Declared = {} if names is None or list(names) == list(known) else {"available": list(names)}
    return {**told, "tools": changed} if changed else told


def strictest(recorded: CalledTool | None, today: ToolFacts) -> ToolFacts:
    """Return the facts that decide how a call runs: the recorded ones, unless its tool is stricter today."""
    if recorded is None:
        return today
    then = read_tool_facts(recorded.facts)
    return replace(
        then,
        parallel=then.parallel or today.parallel,
        safe_to_retry=then.safe_to_retry and today.safe_to_retry,
        timeout=min(then.timeout, today.timeout),
    )


def at_most_once(called: CalledTool) -> CalledTool:
    """Return the record of a tool as if running it twice were harmful."""
    facts = {name: value for name, value in called.facts.items() if name not in ("safe_to_retry", "attempts")}
    return called.model_copy(update={"facts": facts})
