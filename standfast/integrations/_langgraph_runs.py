"""Runs LangGraph graphs on our loop, from stop to stop; internal.

In the executed graph, a tool's call is an interrupt: our loop runs the tool, and the result resumes the graph. If a
graph asks people by its own interrupt, that is a call that asks them here. A graph with a checkpointer continues from
its checkpoint, which the transcript names. A graph without one starts over with the messages of the transcript each
time, as a graph of `create_agent` does in its loop anyway.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage, message_to_dict, messages_from_dict
from langchain_core.runnables.config import merge_configs
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic_core import to_json

from standfast.agents import AgentContext
from standfast.errors import ModelError
from standfast.integrations._foreign_agents import data_of, split, valued
from standfast.integrations._langgraph_threads import OURS, Threads, at, call_id, digest, provider_id, session_of
from standfast.integrations._langgraph_tools import QUESTION, REVIEW, tool_nodes, with_dispatched
from standfast.llm.prices import Price
from standfast.messages import JSONObject, LLMResponse, Message, Reasoning, ToolCall, Usage, error_text

PROVIDER = "langgraph"
_TURN = "standfast_turn"  # in the metadata of checkpoints: the turn that made them


class _Used(BaseCallbackHandler):
    """Counts the usage of the models in a run."""

    def __init__(self) -> None:
        self.usage: Usage | None = None

    def on_llm_end(self, response: Any, **options: Any) -> None:
        for generation in (one for several in response.generations for one in several):
            said = getattr(getattr(generation, "message", None), "usage_metadata", None)
            if said:
                details, out = said.get("input_token_details") or {}, said.get("output_token_details") or {}
                self.usage = (
                    Usage(
                        input_tokens=said.get("input_tokens", 0),
                        output_tokens=said.get("output_tokens", 0),
                        cached_tokens=details.get("cache_read"),
                        cache_write_tokens=details.get("cache_creation"),
                        reasoning_tokens=out.get("reasoning"),
                    )
                    + self.usage
                )


class GraphRun:
    """The adapter of a graph: each call runs it to its end, or until it asks for tools or people."""

    may_answer_nothing = True  # a graph may end without text

    def __init__(
        self,
        name: str,
        graph: Any,
        names: frozenset[str],
        threads: Threads,
        *,
        context: Any,
        config: Mapping[str, Any] | None,
        answer: Callable[[Any], Any] | None,
        price: Price | None,
    ) -> None:
        self._name, self._graph = name, with_dispatched(graph, names)
        self._context, self._config, self._answer, self._price = context, config, answer, price
        self._direct = {
            name for node in tool_nodes(graph) for name, tool in node.tools_by_name.items() if tool.return_direct
        }
        self._threads = threads
        if threads.saver is not None:
            self._graph.checkpointer = threads.saver

    async def chat(self, messages: Sequence[Message], tools: Any, **settings: Any) -> LLMResponse:
        runner, said = split(messages)
        used, context = _Used(), valued(self._context, runner)
        if self._threads.saver is not None:
            response = await self._go_on(said, runner, used, context)
        else:
            response = await self._begin(said, used, context)
        if used.usage is None:
            return response
        cost = None if self._price is None else self._price.of(used.usage)
        return response.model_copy(update={"usage": used.usage, "cost": cost})

    # --- without a checkpointer ---

    async def _begin(self, said: Sequence[Message], used: _Used, context: Any) -> LLMResponse:
        """Run the graph from its start, with all messages."""
        last = said[-1]
        if last.role == "tool" and last.tool_name in self._direct:
            return LLMResponse(text=last.content)
        given = [one for message in said for one in _theirs(message)]
        graph = self._graph.copy({"checkpointer": InMemorySaver()})
        values, waiting = await self._run(
            graph, {"messages": given}, thread="run", turn=None, used=used, context=context
        )
        if not all(isinstance(one.value, dict) and OURS in one.value for one in waiting):
            raise ModelError(
                f"The graph of agent '{self._name}' asks people, and has no checkpointer that would keep its "
                "state: compile it with one"
            )
        known = {one.id for one in given if one.id}
        new = [one for one in values["messages"] if one.id not in known]
        blocks = tuple({"message": message_to_dict(one)} for one in new)
        return self._response(values, waiting, blocks)[0]

    # --- with a checkpointer ---

    async def _go_on(self, said: Sequence[Message], runner: AgentContext, used: _Used, context: Any) -> LLMResponse:
        """Continue the graph from its current state, with the results of calls, or the user's messages.

        An earlier attempt's work on this turn is in the checkpoints with its mark.
        """
        stands = await self._find(said, runner)
        run = partial(self._run, self._graph, thread=stands.thread, used=used, context=context)
        words, latest = stands.words, await self._graph.aget_state(at(stands.thread))
        mark, heard = stands.turn, f"{stands.turn}/heard"
        found = (latest.metadata or {}).get(_TURN)
        if found in (mark, heard):
            values, waiting = latest.values, [one for task in latest.tasks for one in task.interrupts]
            if latest.next and not waiting:
                values, waiting = await run(None, turn=found)
        else:
            is_last = latest.config["configurable"].get("checkpoint_id") == stands.checkpoint
            start = Command(resume=_resumed(stands)) if stands.waits else _given(words)
            values, waiting = await run(start, turn=mark, checkpoint=None if is_last else stands.checkpoint)
        if not stands.waits or found == heard:
            words = []
        if words and not waiting:  # it has its calls' results: now the newer messages
            values, waiting = await run(_given(words), turn=heard)
            words = []
        state = await self._graph.aget_state(at(stands.thread))
        checkpoint = state.config["configurable"]["checkpoint_id"]
        response, waits = self._response(values, waiting, (), (stands.thread, checkpoint))
        block = {
            "thread": stands.thread,
            "checkpoint": checkpoint,
            "waits": waits,
            "owed": [one.model_dump(mode="json") for one in words],
        }
        return response.model_copy(update={"reasoning": Reasoning(provider=PROVIDER, blocks=(block,))})

    async def _find(self, said: Sequence[Message], runner: AgentContext) -> "_Stands":
        """Return the current position of the graph, from the last answer that has it.

        A thread continues only in its own session: a transcript may come from anywhere, and name any thread.
        """
        whose = session_of(runner)
        places = (place for place, one in enumerate(said) if f"/{whose}/" in _kept(one).get("thread", ""))
        last = max(places, default=None)
        kept = {} if last is None else _kept(said[last])
        if last is not None and await self._graph.checkpointer.aget_tuple(at(kept["thread"], kept["checkpoint"])):
            news = said[last + 1 :]
            words = [*kept["owed"], *(one for one in news if one.role == "user")]
            turn = digest([kept["checkpoint"], *map(_told, news)])
            return _Stands(kept["thread"], turn, kept["checkpoint"], kept["waits"], said[last], news, words)
        # A new session, or one that ran with other threads: only the transcript exists.
        turn = digest([*map(_told, said)])
        async for thread, found in self._threads.numbered(runner):
            if found is None or found.metadata.get(_TURN) == turn:
                return _Stands(thread, turn, None, [], None, [], list(said))
        raise AssertionError("the last one is not there yet")

    async def _run(
        self,
        graph: Any,
        given: Any,
        *,
        thread: str,
        turn: str | None,
        used: _Used,
        context: Any,
        checkpoint: str | None = None,
    ) -> tuple[Any, list[Any]]:
        """Run the graph, and return its values, and the interrupts at which it waits."""
        config = merge_configs(
            cast(Any, dict(self._config or {})),
            cast(Any, {**at(thread, checkpoint), "metadata": {_TURN: turn}, "callbacks": [used]}),
        )
        try:
            values = await graph.ainvoke(given, config, context=context, durability="sync")
        except (asyncio.CancelledError, ModelError):
            raise
        except OSError:
            raise
        except Exception as error:
            if isinstance(getattr(error, "status_code", None), int):
                raise  # a provider's error, which tells whether it is transient
            raise ModelError(f"The graph of agent '{self._name}' failed: {error_text(error)}") from error
        values = dict(values) if isinstance(values, Mapping) else {"value": values}
        return values, list(values.pop("__interrupt__", ()))

    def _response(
        self, values: Any, waiting: Sequence[Any], blocks: tuple[dict[str, Any], ...], place: tuple[str, str] = ("", "")
    ) -> tuple[LLMResponse, list[Any]]:
        """Return the calls for which a graph waits, or its answer; and the interrupt behind each call."""
        calls, waits = list[ToolCall](), list[Any]()
        for one in waiting:
            for call in _calls_of(one, place):
                waits.append([one.id, call.name == REVIEW])
                calls.append(call)
        text = "" if calls else self._text(values)
        reasoning = Reasoning(provider=PROVIDER, blocks=blocks) if blocks else None
        return LLMResponse(text=text, tool_calls=tuple(calls), reasoning=reasoning), waits

    def _text(self, values: Any) -> str:
        if self._answer is not None:
            said = self._answer(values)
        elif "structured_response" in values:
            said = values["structured_response"]
        elif values.get("messages"):
            said = values["messages"][-1].text
        else:
            said = values
        return said if isinstance(said, str) else to_json(said, fallback=str).decode()


def _calls_of(waiting: Any, place: tuple[str, str]) -> list[ToolCall]:
    """Return the calls for an interrupt: a tool's, reviews of calls, or a question to people."""
    value = waiting.value
    if isinstance(value, dict) and OURS in value:
        call = value[OURS]
        ident = call_id(call, *place, waiting.id)
        return [ToolCall(id=ident, name=call["name"], arguments=call["args"])]
    if isinstance(value, dict) and isinstance(value.get("action_requests"), list) and value["action_requests"]:
        return [
            ToolCall(name=REVIEW, arguments={"name": one["name"], "args": one["args"]})
            for one in value["action_requests"]
        ]
    plain = json.loads(to_json(value, fallback=str))
    question = plain.get("question", plain) if isinstance(plain, dict) else plain
    return [ToolCall(name=QUESTION, arguments={"question": question})]


@dataclass(frozen=True, slots=True)
class _Stands:
    """The current position of a graph.

    Args:
        turn: distinguishes the next turn from all others of the thread.
        checkpoint: the checkpoint to continue from; None at the beginning.
        waits: for each call, its interrupt, and whether it is a review.
        asked: the answer that made the calls.
        news: the messages after it.
        words: the messages that the graph has not received yet.
    """

    thread: str
    turn: str
    checkpoint: str | None
    waits: Sequence[Any]
    asked: Message | None
    news: Sequence[Message]
    words: list[Message]


def _told(message: Message) -> list[str | None]:
    return [message.role, message.content, message.tool_call_id, message.id]


def _given(messages: Sequence[Message]) -> dict[str, Any]:
    return {"messages": [one for message in messages for one in _theirs(message)]}


def _resumed(stands: _Stands) -> dict[str, Any]:
    """Return the value with which each interrupt resumes."""
    results = {one.tool_call_id: one for one in stands.news if one.role == "tool"}
    calls = (stands.asked.tool_calls if stands.asked is not None else None) or ()
    found = dict[str, Any]()
    for (ident, is_review), call in zip(stands.waits, calls, strict=False):
        result = results[call.id]
        if is_review:
            found.setdefault(ident, {"decisions": []})["decisions"].append(_decision(call, result))
        elif call.name == QUESTION:
            found[ident] = data_of(result.content)
        else:
            found[ident] = {"content": result.content, "failed": result.status != "completed"}
    return found


def _decision(call: ToolCall, result: Message) -> JSONObject:
    if result.status != "completed":
        return {"type": "reject", "message": result.content}
    action = data_of(result.content)
    return {"type": "approve"} if action == call.arguments else {"type": "edit", "edited_action": action}


def _kept(message: Message) -> JSONObject:
    kept = message.reasoning
    if kept is None or kept.provider != PROVIDER or not kept.blocks or "thread" not in kept.blocks[0]:
        return {}
    block = dict(kept.blocks[0])
    return {**block, "owed": [Message.model_validate(one) for one in block.get("owed", ())]}


def _theirs(message: Message) -> list[Any]:
    """Return a message in LangChain's form; an answer as the model gave it, with the ids that its calls have here."""
    match message.role:
        case "user" if message.images:
            parts = [{"type": "image_url", "image_url": {"url": image.address}} for image in message.images]
            return [HumanMessage([{"type": "text", "text": message.content}, *parts])]
        case "user":
            return [HumanMessage(message.content)]
        case "tool":
            return [
                ToolMessage(
                    message.content,
                    name=message.tool_name,
                    tool_call_id=provider_id(message.tool_call_id or ""),
                    status="success" if message.status == "completed" else "error",
                )
            ]
    kept = message.reasoning
    calls = [
        {"type": "tool_call", "id": provider_id(call.id), "name": call.name, "args": call.arguments}
        for call in message.tool_calls or ()
        if isinstance(call.arguments, dict)
    ]
    if kept is not None and kept.provider == PROVIDER and kept.blocks and "message" in kept.blocks[0]:
        found = messages_from_dict([block["message"] for block in kept.blocks])
        if calls and isinstance(found[-1], AIMessage):
            found[-1] = found[-1].model_copy(update={"tool_calls": calls})
        return list(found)
    return [AIMessage(message.content, tool_calls=calls)]
