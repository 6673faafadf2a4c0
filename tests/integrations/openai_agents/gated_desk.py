"""An agent of the OpenAI Agents SDK whose calls wait for people, and that is killed; see `support.gated_runs`."""

from typing import Any

from agents import Agent, function_tool, set_tracing_disabled
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.testing import assistant_message, function_call
from agents.usage import Usage
from support.gated_runs import Desk, play, running

from standfast import InterruptError
from standfast.integrations.openai_agents import as_agent

set_tracing_disabled(True)


class Seller(Model):
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def get_response(self, system_instructions: Any, *given: Any, **options: Any) -> ModelResponse:
        items = given[0] if given else options["input"]
        read = [item["output"] for item in items if item.get("type") == "function_call_output"]
        calls = [function_call(name, arguments, call_id=id_) for id_, name, arguments in self._desk.answer(read)]
        return ModelResponse(output=list(calls) or [assistant_message("sold")], usage=Usage(), response_id=None)

    def stream_response(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError


def make(desk: Desk) -> Any:
    @function_tool(needs_approval=True)
    async def charge(cents: int) -> str:
        """Charge a card."""
        return str(desk.charge(cents))

    @function_tool(failure_error_function=None)
    async def ask() -> str:
        """Ask which card to charge."""
        raise InterruptError("Which card?")

    return as_agent(Agent[Any]("shop", instructions="Sell.", tools=[charge, ask], model=Seller(desk)))


if __name__ == "__main__":
    play(running(make))
