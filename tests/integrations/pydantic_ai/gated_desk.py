"""An agent of pydantic-ai whose calls wait for people, and that is killed; see `support.gated_runs`.

With `durable` in its folder it runs by itself, with `StandfastDurability`; otherwise standfast runs it.
"""

import json
from typing import Any

from pydantic_ai import Agent, CallDeferred, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from support.gated_runs import Desk, play, running

from standfast import InterruptError
from standfast.integrations.pydantic_ai import StandfastDurability, as_agent


def agent_of(desk: Desk, **options: Any) -> Agent[Any, Any]:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        calls = desk.answer([part.tool_call_id for part in returned(messages)])
        parts = [ToolCallPart(name, arguments, tool_call_id=id_) for id_, name, arguments in calls]
        return ModelResponse(parts or [TextPart("sold")])

    agent = Agent[Any, Any](FunctionModel(model), name="shop", instructions="Sell.", **options)

    @agent.tool_plain(requires_approval=True)
    async def charge(cents: int) -> str:
        """Charge a card."""
        return str(desk.charge(cents))

    @agent.tool_plain
    async def ask() -> str:
        """Ask which card to charge."""
        raise CallDeferred if options else InterruptError("Which card?")

    return agent


def returned(messages: list[ModelMessage]) -> list[ToolReturnPart]:
    requests = [one for one in messages if isinstance(one, ModelRequest)]
    return [part for one in requests for part in one.parts if isinstance(part, ToolReturnPart)]


async def live_by_itself(desk: Desk) -> dict[str, str]:
    store: Any = desk.store()
    durability = StandfastDurability(store)
    agent = agent_of(desk, output_type=[str, DeferredToolRequests], capabilities=[durability])
    own, sale = StandfastDurability.from_agent(agent), {"conversation_id": "order-7", "run_id": "sale"}
    assert own is not None
    async with store:
        result: Any = await agent.run("Sell it.", **sale)
        while isinstance(asked := result.output, DeferredToolRequests):
            waiting = await own.pending("order-7")
            if not waiting:
                answers = DeferredToolResults(calls={call.tool_call_id: "visa" for call in asked.calls})
                result = await agent.run("Sell it.", deferred_tool_results=answers, **sale)
                continue
            if (item := waiting[0]).gate in ("c0", "c3", "c5"):
                await desk.decide_outside("in-process:shop/order-7", item.gate)
            else:
                await own.decide("order-7", [desk.verdict(item.gate, item.digest)])
            result = await agent.run("Sell it.", **sale)
        assert result.output == "sold"
        parts = returned(result.all_messages())
        return {part.tool_call_id: json.dumps(part.content, default=str) for part in parts}


async def live(desk: Desk) -> dict[str, str]:
    is_durable = "durable" in desk.folder.parts
    return await (live_by_itself(desk) if is_durable else running(lambda desk: as_agent(agent_of(desk)))(desk))


if __name__ == "__main__":
    play(live)
