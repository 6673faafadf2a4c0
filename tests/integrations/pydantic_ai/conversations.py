"""Conversations with a pydantic-ai agent that are killed in a window; each runs in a fork of this program.

A line of its input is a JSON list: the folder, `bare`, `durable` or `gated`, the window, and the place of the store.
The conversation is killed once, and begun again. The line that it prints says what the model read, how often it was
asked, what was charged, and how often it died. `bare` is the same agent without durability. `gated` asks a person
before it charges; with `outside` in the name of its window the person decides where the agent is not known. With
`stream` the answer is streamed.
"""

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.capabilities import Hooks
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from support.any_store import open_store

from standfast import SessionConflictError
from standfast.integrations.pydantic_ai import StandfastDurability
from standfast.stores import WaitFilter
from standfast.temporal.client.clients import RunsInProcess


@dataclass
class Conversation:
    """One conversation, in a separate process."""

    folder: Path
    kind: str
    window: str
    place: str

    def note(self, name: str) -> None:
        with (self.folder / name).open("a") as file:
            print("once", file=file)

    def die_at(self, window: str) -> None:
        """Kill this process, once in the life of the folder."""
        if self.window.removesuffix("-stream").removesuffix("-outside") == window and not self.died.exists():
            self.died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def died(self) -> Path:
        return self.folder / "died"

    def answer(self, messages: list[ModelMessage]) -> ModelResponse:
        self.die_at("before-the-model-answers")
        self.note("asked")
        results = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        if results:
            self.die_at("before-the-last-answer")
            return ModelResponse([TextPart(json.dumps([part.content for part in results]))])
        turn = sum(isinstance(message, ModelRequest) for message in messages)
        return ModelResponse([ToolCallPart("charge", {"cents": 5}, tool_call_id=f"call_{turn}")])

    def agent(self) -> Agent[Any, Any]:
        def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            return self.answer(messages)

        async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
            for part in self.answer(messages).parts:
                if isinstance(part, TextPart):
                    yield part.content
                elif isinstance(part, ToolCallPart):
                    yield {0: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}

        async def before_tool(ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
            self.die_at("before-the-tool")
            return args

        store = DyingStore(open_store(self.place), self)
        agent = Agent(
            DyingModel(FunctionModel(model, stream_function=stream), self),
            name="seller",
            output_type=[str, DeferredToolRequests],
            capabilities=[
                *([] if self.kind == "bare" else [StandfastDurability(store)]),  # type: ignore[arg-type]
                Hooks(before_tool_execute=before_tool),
            ],
        )

        @agent.tool_plain(requires_approval=self.kind == "gated")
        async def charge(cents: int) -> dict[str, int]:
            self.note("charged")
            self.die_at("in-the-tool")
            return {"charged": cents}

        return agent

    async def approve(self, durability: StandfastDurability) -> None:
        """Approve the waiting call as a person does who cannot tell whether the process will read it."""
        self.die_at("at-the-gate")
        if "outside" in self.window:
            async with open_store(self.place) as page:
                people = RunsInProcess(page)
                for item in await people.waiting(WaitFilter(namespace="default")):
                    said = {"gate": item["name"], "decision": "approve", "by": "ada", "digest": item["digest"]}
                    await people.decide(item["workflow_id"], said)
        else:
            for waits in await durability.pending("order-7"):
                decision = {"gate": waits.gate, "decision": "approve", "by": "ada", "digest": waits.digest}
                await durability.decide("order-7", [decision])
        self.die_at("after-the-decision")

    async def run(self) -> str:
        agent = self.agent()
        while True:
            try:
                output = await self._output(agent)
            except SessionConflictError:  # a dead process holds it for a while, where its death is invisible
                if not self.died.exists():
                    raise
                await asyncio.sleep(0.1)
                continue
            if not isinstance(output, DeferredToolRequests):
                return str(output)
            durability = StandfastDurability.from_agent(agent)
            assert durability is not None
            await self.approve(durability)

    async def _output(self, agent: Agent[Any, Any]) -> Any:
        if "stream" not in self.window:
            return (await agent.run("Sell it.", conversation_id="order-7", run_id="sale")).output
        async with agent.run_stream("Sell it.", conversation_id="order-7", run_id="sale") as streamed:
            return await streamed.get_output()


class DyingModel(WrapperModel):
    def __init__(self, model: FunctionModel, conversation: Conversation) -> None:
        super().__init__(model)
        self._conversation = conversation

    async def request(self, *arguments: Any, **options: Any) -> ModelResponse:
        response = await super().request(*arguments, **options)
        self._conversation.die_at("before-the-answer-is-kept")
        return response


class DyingStore:
    """A store of any kind."""

    def __init__(self, store: Any, conversation: Conversation) -> None:
        self._store, self._die_at = store, conversation.die_at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, *arguments: Any, **options: Any) -> Any:
        self._die_at("before-the-claim")
        entry = await self._store.claim(*arguments, **options)
        self._die_at("after-the-claim")
        return entry

    async def finish(self, *arguments: Any, **options: Any) -> Any:
        self._die_at("before-the-result-is-kept")
        kept = await self._store.finish(*arguments, **options)
        self._die_at("after-the-result-is-kept")
        return kept

    async def append_reply(self, *arguments: Any, **options: Any) -> Any:
        kept = await self._store.append_reply(*arguments, **options)
        self._die_at(f"after-write-{options['turn']}")
        return kept

    async def show_waits(self, *arguments: Any, **options: Any) -> Any:
        self._die_at("before-it-is-on-the-board")
        shown = await self._store.show_waits(*arguments, **options)
        self._die_at("after-it-is-on-the-board")
        return shown


def played(words: list[str]) -> dict[str, Any]:
    """Return what a conversation has come to, in however many processes."""
    folder, deaths = Path(words[0]), 0
    while (process := os.fork()) and (code := os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])) == -signal.SIGKILL:
        deaths += 1
    if not process:
        code = 1
        try:
            said = asyncio.run(Conversation(folder, *words[1:]).run())
            (folder / "read").write_text(said)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if code != 0:
        return {"failed": code, "deaths": deaths}
    names = [name for name in ("asked", "charged") if (folder / name).exists()]
    counts = {name: (folder / name).read_text().count("once") for name in names}
    return {"read": json.loads((folder / "read").read_text()), "deaths": deaths, **counts}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(played(json.loads(line))), flush=True)  # noqa: T201
