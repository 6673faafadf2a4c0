"""A conversation with a pydantic-ai agent, killed in a window: `conversations FOLDER (bare | durable | gated) WINDOW`.

It is killed once, and says at its end what the model read, how often it was asked, and what was charged. `bare` is the
same agent without durability. `gated` asks a person before it charges. With `stream` in the name of its window the
answer is streamed.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.capabilities import Hooks
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel

from standfast.integrations.pydantic_ai import StandfastDurability
from standfast.stores import SQLiteStore

FOLDER, KIND, WINDOW = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
STREAMED = WINDOW.endswith("stream")


def note(name: str) -> None:
    with (FOLDER / name).open("a") as file:
        print(len((FOLDER / name).read_text()), file=file)


def die_at(window: str) -> None:
    """Kill this process, once in the life of the folder."""
    if WINDOW.removesuffix("-stream") == window and not (FOLDER / "died").exists():
        (FOLDER / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def answer(messages: list[ModelMessage]) -> ModelResponse:
    die_at("before-the-model-answers")
    note("asked")
    results = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    if results:
        die_at("before-the-last-answer")
        return ModelResponse([TextPart(json.dumps([part.content for part in results]))])
    turn = sum(isinstance(message, ModelRequest) for message in messages)
    return ModelResponse([ToolCallPart("charge", {"cents": 5}, tool_call_id=f"call_{turn}")])


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return answer(messages)


async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    for part in answer(messages).parts:
        if isinstance(part, TextPart):
            yield part.content
        elif isinstance(part, ToolCallPart):
            yield {0: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}


class DyingModel(WrapperModel):
    async def request(self, *arguments: Any, **options: Any) -> ModelResponse:
        response = await super().request(*arguments, **options)
        die_at("before-the-answer-is-kept")
        return response


class DyingStore(SQLiteStore):
    async def claim(self, *arguments: Any, **options: Any) -> Any:
        die_at("before-the-claim")
        entry = await super().claim(*arguments, **options)
        die_at("after-the-claim")
        return entry

    async def finish(self, *arguments: Any, **options: Any) -> Any:
        die_at("before-the-result-is-kept")
        kept = await super().finish(*arguments, **options)
        die_at("after-the-result-is-kept")
        return kept

    async def append_reply(self, *arguments: Any, **options: Any) -> str:
        kept = await super().append_reply(*arguments, **options)
        die_at(f"after-write-{options['turn']}")
        return kept


async def before_tool(ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
    die_at("before-the-tool")
    return args


durable = [] if KIND == "bare" else [StandfastDurability(DyingStore(FOLDER / "store.db"))]
agent = Agent(
    DyingModel(FunctionModel(model, stream_function=stream)),
    name="seller",
    output_type=[str, DeferredToolRequests],
    capabilities=[*durable, Hooks(before_tool_execute=before_tool)],
)


@agent.tool_plain(requires_approval=KIND == "gated")
async def charge(cents: int) -> dict[str, int]:
    note("charged")
    die_at("in-the-tool")
    return {"charged": cents}


async def approve() -> None:
    """Approve what waits, as a person does, of whom nobody knows whether the process will hear it."""
    die_at("at-the-gate")
    for waits in await durable[0].pending("order-7"):
        decision = {"gate": waits.gate, "decision": "approve", "by": "ada", "digest": waits.digest}
        await durable[0].decide("order-7", [decision])
    die_at("after-the-decision")


async def main() -> str:
    if not STREAMED:
        output = (await agent.run("Sell it.", conversation_id="order-7", run_id="sale")).output
        if isinstance(output, DeferredToolRequests):
            await approve()
            return await main()
        return output
    async with agent.run_stream("Sell it.", conversation_id="order-7", run_id="sale") as streamed:
        return await streamed.get_output()


if __name__ == "__main__":
    read = json.loads(asyncio.run(main()))
    counts = {
        name: (FOLDER / name).read_text().count("\n") for name in ("asked", "charged") if (FOLDER / name).exists()
    }
    print(json.dumps({"read": read, **counts}))  # noqa: T201
