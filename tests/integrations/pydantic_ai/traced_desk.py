"""An agent of pydantic-ai that is traced, and whose process dies behind its charge: `FOLDER (durable | ours)`.

Each span is a line of the file `spans`: what it is of, whether it failed, and the tokens that it counts. A span that
has not ended when its process dies is in no file, as in any exporter.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.usage import RequestUsage
from support.foreign_shops import charged, note

from standfast import run, sqlite_store
from standfast.integrations.pydantic_ai import StandfastDurability


class InFile(SpanExporter):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            said = span.attributes or {}
            is_failed = span.status.status_code.name == "ERROR"
            used = said.get("gen_ai.usage.input_tokens", said.get("gen_ai.aggregated_usage.input_tokens"))
            line = [said.get("gen_ai.operation.name"), is_failed, used]
            note(self._folder, "spans", json.dumps(line))
        return SpanExportResult.SUCCESS


def traced(folder: Path, script: Any, **options: Any) -> Agent[Any, Any]:
    """Return an agent that charges, and whose spans are in the folder."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(InFile(folder)))
    agent = Agent(FunctionModel(script), name="desk", **options)
    agent.instrument = InstrumentationSettings(tracer_provider=provider)

    @agent.tool_plain
    def charge(cents: int) -> str:
        return charged(folder, cents)

    return agent


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Charge, and say what was read."""
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    read = [part.content for part in parts if isinstance(part, ToolReturnPart)]
    charge = ToolCallPart("charge", {"cents": 5}, tool_call_id="c1")
    return ModelResponse([TextPart(json.dumps(read)) if read else charge], usage=RequestUsage(input_tokens=10))


async def durable(folder: Path) -> Any:
    async with sqlite_store(folder / "store.db") as store:
        agent = traced(folder, model, capabilities=[StandfastDurability(store)])
        done = await agent.run("Sell it.", conversation_id="order-7", run_id="sale")
        return {"response": done.output, "tokens": done.usage.input_tokens}


async def ours(folder: Path) -> Any:
    async with sqlite_store(folder / "store.db") as store:
        message = None if (folder / "begun").exists() else "Sell it."
        (folder / "begun").touch()
        done = await run(traced(folder, model), message=message, session_id="order-7", store=store)
        messages = await store.load_messages("order-7")
        used = [message.usage for message in messages if message.usage is not None]
        return {"response": done.response, "tokens": sum(one.input_tokens for one in used)}


if __name__ == "__main__":
    going = {"durable": durable, "ours": ours}[sys.argv[2]]
    sys.stdout.write(json.dumps(asyncio.run(going(Path(sys.argv[1])))))
