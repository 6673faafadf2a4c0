"""Agents of the process that the crash tests kill: with guardrails, a state, dependencies and a handoff."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

from pydantic import BaseModel
from temporalio import activity

from standfast import Agent, AgentContext, Guardrail, Message, Tool, ToolCall, ToolContext, tool


class Tally(BaseModel):
    calls: list[str] = []


class Watched(Protocol):
    """What the agents do outside of their process; see `Outside`."""

    async def at(self, call: str, point: str) -> None: ...
    def count(self, what: str, call: str) -> None: ...
    def effect(self, ctx: ToolContext) -> None: ...


def kept_agents(outside: Watched) -> list[Agent]:
    """Return the agents; each stands where a test has put a file for a case, which is the id of its session."""

    @asynccontextmanager
    async def desk(ctx: AgentContext) -> AsyncIterator[str]:
        case, kind = str(ctx.session_id), activity.info().activity_type
        outside.count(f"opened-{kind}", f"{case}.1")
        await outside.at(case, f"opening-{kind}")
        yield f"the desk of {ctx.context['user']}"
        outside.count(f"closed-{kind}", f"{case}.1")
        await outside.at(case, f"closing-{kind}")

    async def check_said(ctx: AgentContext, said: Message) -> str | None:
        outside.count("checked-said", f"{ctx.session_id}.1")
        await outside.at(str(ctx.session_id), "in-check-of-said")
        return "no" if "#bad-said" in said.content else None

    async def check_answer(ctx: AgentContext, answer: Message) -> str | None:
        outside.count("checked-answer", f"{ctx.session_id}.1")
        await outside.at(str(ctx.session_id), "in-check-of-answer")
        return "no" if answer.content.startswith("done bad-") else None

    async def check_call(ctx: AgentContext, call: ToolCall) -> str | None:
        outside.count("checked-call", call.id)
        await outside.at(call.id, "in-check-of-call")
        return "no" if call.name == "tally_badly" else None

    async def tally(ctx: ToolContext[str]) -> str:
        assert ctx.deps == "the desk of ann"
        await outside.at(ctx.tool_call_id, "before-effect")
        ctx.state.calls.append(ctx.tool_call_id)
        outside.effect(ctx)
        await outside.at(ctx.tool_call_id, "after-effect")
        return f"did {ctx.tool_call_id}"

    def declared(name: str, **options: Any) -> Tool[..., Any]:
        return tool(name=name, description="Tally.", **options)(tally)

    tools = [declared("tally"), declared("tally_safely", safe_to_retry=True), declared("tally_badly")]
    mate = Agent("mate", tools=tools)

    def keeper(name: str, check: Callable[..., Any] | Guardrail) -> Agent:
        return Agent(
            name,
            tools=tools,
            handoffs=[mate],
            state=Tally,
            context=dict[str, str],
            deps=desk,
            input_guardrails=[check],
            output_guardrails=[check_answer],
            tool_guardrails=[check_call],
        )

    return [mate, keeper("keeper", check_said), keeper("watcher", Guardrail(check_said, beside=True))]
