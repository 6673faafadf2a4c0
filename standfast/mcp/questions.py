"""Answers what MCP servers ask back during a call: people answer questions, and an agent answers for the model.

A connection cannot be held until a person has time. So a question that has no answer yet is cancelled, and the call
ends. The model reads what was asked; its next call, of our own tool, asks the person in the server's words, for as long
as that takes. When the tool is called again with the same arguments, the answer is ready.
"""

import asyncio
import hashlib
import importlib
import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, create_model

from standfast.agents import Agent
from standfast.errors import InputError, InterruptError
from standfast.mcp.schemas import checked_by, schema_problem
from standfast.messages import Message, clean_text, cut, error_text
from standfast.stores.kept_lists import append, length
from standfast.stores.kept_values import read_kept_object
from standfast.stores.protocol import session_key_of
from standfast.tools import Tool, ToolContext

_LONGEST_QUESTION = 4 * 1024  # bytes
_LONGEST_SAMPLE = 256 * 1024  # bytes of what a server lets an agent answer
_MOST_ASKED = 8  # questions of one call for people, and as many for a model
_NO = ("decline", "no answer")
_TRUE, _FALSE = ("yes", "true", "y", "ok"), ("no", "false", "n")


@dataclass
class Questions:
    """What a server asks during one call.

    Args:
        asking: the name of our tool that asks people; None if they are not asked.
        sampling: the agent that answers in the place of a model.
        open: the ids of questions that have no answer, and what was asked.
    """

    store: Any
    server: str
    tool: str
    arguments: Mapping[str, Any]
    ctx: ToolContext
    asking: str | None = None
    sampling: Agent | None = None
    open: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._loop, self._samples = asyncio.get_running_loop(), 0
        self._types = importlib.import_module("mcp.types")

    def callbacks(self) -> dict[str, Any]:
        """Return what an `mcp.Client` calls; a server is told that it may ask nothing else."""
        found: dict[str, Any] = {}
        if self.asking is not None and self.store is not None and self.ctx.session_id is not None:
            found["elicitation_callback"] = self._elicited
        if self.sampling is not None:
            found["sampling_callback"] = self._sampled
        return found

    def result_with(self, said: object) -> Any:
        """Return the result of the call, with what the model has to do about open questions."""
        if not self.open:
            return said
        (question, text), *_ = self.open.items()
        return {
            "asked": text,
            "said": said,
            "next": f"A person has to answer. Call {self.asking} with question={question!r}. Then call {self.tool} "
            "again with the same arguments, unless what it said means that it is done.",
        }

    # --- questions for people ---

    async def _elicited(self, _: Any, asked: Any) -> Any:
        if asked.mode != "form":
            return self._types.ElicitResult(action="decline")
        schema = dict(asked.requested_schema)
        if schema_problem(schema) is not None:
            return self._types.ElicitResult(action="decline")
        session = await self.store.load_session(session_key_of(self.ctx.tenant_id, str(self.ctx.session_id)))
        if session is None:
            return self._types.ElicitResult(action="cancel")
        messages, fault = await self.store.load_messages(session.id), ""
        while True:
            text = _in_words(self.server, self.tool, asked.message, schema, fault)
            question = self._id(asked.message, schema, fault)
            place = _place(session.key, question)
            answer = await _answer_to(self.store, place, messages)
            if answer is None and len(self.open) >= _MOST_ASKED:
                return self._types.ElicitResult(action="decline")
            if answer is None:
                kept = json.dumps({"question": text})
                await self.store.save_reply(place, 0, kept)
                self.open[question] = text
                return self._types.ElicitResult(action="cancel")
            if answer.strip().lower() in _NO:
                return self._types.ElicitResult(action="decline")
            try:
                return self._types.ElicitResult(action="accept", content=_content(answer, schema))
            except ValueError as error:
                fault = f"{fault}{cut(answer, 100)!r} does not fit: {cut(error_text(error), 300)}\n"

    def _id(self, *asked: Any) -> str:
        whole = json.dumps([self.server, self.tool, self.arguments, *asked], sort_keys=True, default=str)
        return hashlib.blake2b(whole.encode(), digest_size=6).hexdigest()

    # --- questions for a model ---

    async def _sampled(self, _: Any, asked: Any) -> Any:
        self._samples += 1
        if self._samples > _MOST_ASKED:
            return self._types.ErrorData(code=-1, message="that is too often in one call")
        parts = [part for message in asked.messages for part in _texts(message)]
        if asked.system_prompt:
            parts.insert(0, f"The server's instructions: {asked.system_prompt}")
        text = clean_text("\n\n".join([f"The MCP server {self.server} asks for an answer to this.", *parts]))
        if len(text.encode()) > _LONGEST_SAMPLE:
            return self._types.ErrorData(code=-1, message="it is too long")
        try:
            said = await self._there(self.ctx.agents.invoke(self.sampling, message=text))
        except Exception as error:
            return self._types.ErrorData(code=-1, message=cut(error_text(error), 500))
        content = self._types.TextContent(type="text", text=said["response"])
        assert self.sampling is not None
        model = self.sampling.model or self.sampling.name
        return self._types.CreateMessageResult(role="assistant", content=content, model=model, stop_reason="endTurn")

    async def _there(self, work: Awaitable[Any]) -> Any:
        """Await something on the loop of the call, which the connection need not have."""

        async def awaited() -> Any:
            return await work

        if asyncio.get_running_loop() is self._loop:
            return await awaited()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(awaited(), self._loop))


def asking_tool(name: str, store: Any) -> Tool[..., Any]:
    """Return the tool that asks a person what a server wants to know, in the server's words."""

    async def ask(given: Any, ctx: ToolContext) -> str:
        session = await store.load_session(session_key_of(ctx.tenant_id, str(ctx.session_id)))
        place = None if session is None or not _is_id(given.question) else _place(session.key, given.question)
        kept = None if place is None else await store.load_reply(place, 0)
        if kept is None:
            raise InputError(f"No MCP server has asked the question {given.question!r:.80}")
        await append(store, str(place), ctx.tool_call_id, await length(store, str(place)))
        raise InterruptError(str(read_kept_object("a question of an MCP server", kept)["question"]))

    fields: Any = {"question": (Annotated[str, Field(description="its id, as the tool gave it")], ...)}
    return Tool(
        name,
        description="Ask a person what a tool wants to know before it can go on; the result is the person's answer.",
        input=create_model("Question", **fields),
        handler=ask,
        safe_to_retry=True,
    )


def _is_id(question: str) -> bool:
    return len(question) == 12 and all(one in "0123456789abcdef" for one in question)


def _place(session_key: str, question: str) -> str:
    """Return where a question is kept: with its session, with which it is deleted."""
    return f"{session_key}/{int(question, 16)}"


async def _answer_to(store: Any, place: str, messages: Sequence[Message]) -> str | None:
    """Return a person's answer: the result of a call by which our tool has asked, which only people make succeed."""
    asked = {await store.load_reply(place, number) for number in range(1, await length(store, place))}
    answers = [one.content for one in messages if one.tool_call_id in asked and one.status == "completed"]
    return answers[-1] if answers else None


def _in_words(server: str, tool: str, message: str, schema: Mapping[str, Any], fault: str) -> str:
    fields = schema.get("properties") or {}
    lines = [f"The MCP server {server} asks, in its tool {tool}: {clean_text(message)}"]
    for name, one in fields.items() if isinstance(fields, Mapping) else ():
        said = one if isinstance(one, Mapping) else {}
        choices = f", one of {', '.join(map(str, said['enum']))}" if isinstance(said.get("enum"), list) else ""
        lines.append(
            f"- {name} ({said.get('type', 'text')}{choices}): {said.get('description', said.get('title', ''))}"
        )
    how = {0: 'Answer "yes"', 1: "Answer with the value"}.get(len(fields), "Answer with a JSON object of these")
    lines.append(f'{how}, or with "decline".')
    return cut(f"{fault}{chr(10).join(lines)}", _LONGEST_QUESTION)


def _content(answer: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer as the server's form wants it.

    Raises:
        ValueError: it does not fit.
    """
    fields = schema.get("properties") or {}
    try:
        found = json.loads(answer)
    except ValueError:
        found = answer.strip()
    if not isinstance(found, dict):
        if len(fields) > 1:
            raise ValueError("a JSON object is needed")
        if not fields and str(found).lower() not in _TRUE:
            raise ValueError('"yes" or "decline" is needed')
        found = {name: _as_said(found, answer, one) for name, one in fields.items()}
    return checked_by({"type": "object", **schema})(found)


def _as_said(found: Any, answer: str, field_schema: Any) -> Any:
    kind = field_schema.get("type") if isinstance(field_schema, Mapping) else None
    if kind == "string":
        return answer.strip()
    if kind == "boolean" and isinstance(found, str) and found.lower() in (*_TRUE, *_FALSE):
        return found.lower() in _TRUE
    return found


def _texts(message: Any) -> list[str]:
    blocks = message.content if isinstance(message.content, list) else [message.content]
    return [f"{message.role}: {getattr(block, 'text', f'[{block.type}]')}" for block in blocks]
