"""A shop: its clerk looks up orders, and refunds one only after a person has approved it.

    standfast dev examples/shop.py

The model is a script, so that this runs without a key. For a real one, leave out `llm` and set `Agent(model=…)`.
"""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from standfast import Agent, Approval, Message, Step, pipeline, tool
from standfast.testing import ScriptedModel


@tool(safe_to_retry=True)
async def get_order(order: int) -> dict[str, Any]:
    """Look up an order."""
    return {"order": order, "total": 129.9, "state": "delivered broken"}


@tool(approval=Approval(message="Refund this order?", timeout="2d"))
async def refund(order: int, amount: Annotated[float, Field(gt=0)], reason: str) -> str:
    """Refund an order."""
    return f"{amount} refunded for order {order}"


def say(messages: Sequence[Message], tools: Sequence[object]) -> Any:
    """Answer as the model: look up the order in question, then ask to refund it."""
    last = messages[-1]
    if last.role == "tool" and last.tool_name == "get_order":
        order = int(re.findall(r'"order": ?(\d+)', last.content)[0])
        return {"tool_calls": [{"name": "refund", "arguments": {"order": order, "amount": 129.9, "reason": "broken"}}]}
    if last.role == "tool":
        came_to = json.loads(last.content) if last.content.startswith("{") else {"result": last.content}
        return f"I could not refund it. {came_to['error']}" if "error" in came_to else f"Done: {came_to['result']}."
    if (number := re.search(r"\d+", last.content)) is None:
        return "Which order? Give me its number."
    return {"text": "I will look it up.", "tool_calls": [{"name": "get_order", "arguments": {"order": int(number[0])}}]}


class Return(BaseModel):
    """A returned parcel."""

    order: int = Field(ge=1, description="Its number.")
    reason: str = "broken"


clerk = Agent("clerk", description="Answers questions about orders, and refunds them.", tools=[get_order, refund])
returns = (
    pipeline("returns", input=Return)
    .parallel(
        "look",
        Step("order", run=get_order, input=lambda ctx: {"order": ctx.input.order}),
        Step("stock", run=get_order, input=lambda ctx: {"order": ctx.input.order}),
    )
    .step("agree", approval=Approval(message=lambda ctx: f"Take order {ctx.input.order} back ({ctx.input.reason})?"))
    .step("clerk", agent=clerk, input=lambda ctx: f"Refund order {ctx.input.order}")
    .build()
)
llm = ScriptedModel(say)
