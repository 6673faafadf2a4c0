"""Answers the requests of MCP servers during a call: people answer questions, and an agent answers for the model.

A connection cannot stay open until a person has time. A call with an unanswered question therefore ends, and its result
contains the question. A second call, of our own tool, asks the person in the server's words, for as long as that takes.
Then the tool is called again with the same arguments, and the answer is ready.

With the newest protocol, a server returns its needs as the result of its call, and gets the answers with the next call.
In the meantime it is not told anything, has not continued, and gets its own state back. Both further calls are
therefore made without the model. With an earlier protocol, a server asks on the connection, and receives "cancel". Only
the model can interpret the result of that, so the model makes both calls.
"""

import asyncio
import importlib
import json
import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from standfast.agents import Agent
from standfast.errors import StandfastError
from standfast.mcp.kept_questions import KeptQuestions, Round, id_of
from standfast.mcp.schemas import checked_by, schema_problem
from standfast.messages import JSONObject, Message, ToolCall, clean_text, cut, error_text
from standfast.stores.protocol import session_key_of
from standfast.tools import ToolContext
from standfast.tools.calls import ModelAsker

_LOG = logging.getLogger("standfast")
_LONGEST_SAMPLE = 256 * 1024  # bytes of an agent's answer to a server
_MOST_ASKED = 8  # questions per call for people, and as many for a model
_MOST_TOKENS = 10**6  # of the answer that a server may request
_MOST_ROUNDS = 10  # of one call without people
_PAUSE = 0.2  # seconds before a call continues that only needs its own state back

_LONGEST_QUESTION = 4 * 1024  # bytes
_TRUE, _FALSE = ("yes", "true", "y", "ok"), ("no", "false", "n")
NO = ("decline", "no answer")


def in_words(server: str, tool: str, message: str, schema: Mapping[str, Any], fault: str) -> str:
    """Return a question in words for a person.

    Args:
        fault: why earlier answers do not fit, as lines.
    """
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


def content_of(answer: str, schema: Mapping[str, Any]) -> JSONObject:
    """Return an answer in the server's form.

    Raises:
        ValueError: the answer does not fit.
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


@dataclass
class Questions:
    """The server's requests during one call, and the data sent to it with the call.

    Args:
        asking: the name of our tool that asks people; None if people are not asked.
        sampling: the agent that answers instead of a model; True is the model of the calling agent.
        open: the ids of unanswered questions, and their texts.
        responses, state: sent with the call, as SDK objects.
        is_under_way: whether a model is asked: from the moment the tool may be called until the call has ended.
    """

    store: Any
    server: str
    tool: str
    arguments: Mapping[str, Any]
    ctx: ToolContext
    asking: str | None = None
    sampling: Agent | bool | None = None
    open: dict[str, str] = field(default_factory=dict)
    responses: JSONObject | None = None
    state: str | None = None
    is_under_way: bool = False

    def __post_init__(self) -> None:
        self._loop, self._samples, self._rounds = asyncio.get_running_loop(), 0, 0
        self._one_by_one, self._unanswered = asyncio.Lock(), ""
        self._types = importlib.import_module("mcp.types")
        self._kept: KeptQuestions | None = None
        self._messages: Sequence[Message] = ()
        self._has_loaded = self._hears_cancel = self._has_begun_anew = False
        self._taken: list[str] = []
        self._round = id_of("round", self.server, self.tool, self.arguments)

    @property
    def _asks_people(self) -> bool:
        return self.asking is not None and self.store is not None and self.ctx.session_id is not None

    def callbacks(self) -> dict[str, Any]:
        """Return the callbacks of an `mcp.Client`. They tell a server that other requests are not allowed."""
        found: dict[str, Any] = {}
        if self._asks_people:
            found["elicitation_callback"] = self._elicited
        if self.sampling:
            found["sampling_callback"] = self._sampled
        return found

    # --- the call ---

    async def begin(self) -> bool:
        """Continue where an earlier call with these arguments has stopped. Return whether to call the server."""
        kept = await self._load()
        last = None if kept is None else await kept.last_round(self._round)
        if last is None:
            return True
        return await self._respond(last)

    async def answered(self, result: Any) -> bool:
        """Take in the server's requirements before its call continues. Return whether to call it again.

        Raises:
            StandfastError: the server makes a forbidden request, or too many.
        """
        self._rounds += 1
        if self._rounds > _MOST_ROUNDS:
            raise StandfastError("The MCP server keeps asking for more")
        asked: dict[str, JSONObject] = {}
        given: JSONObject = {}
        for key, request in (result.input_requests or {}).items():
            params = request.params
            if request.method == "elicitation/create" and self._asks_people:
                schema = dict(params.requested_schema) if params.mode == "form" else None
                if schema is None or schema_problem(schema) is not None:
                    given[key] = self._types.ElicitResult(action="decline")
                else:
                    asked[key] = {"message": params.message, "schema": schema}
            elif request.method == "sampling/createMessage" and self.sampling:
                given[key] = await self._sampled(None, params)
                if isinstance(given[key], self._types.ErrorData):
                    why = self._unanswered or given[key].message
                    raise StandfastError(f"The MCP server asks a model, and gets no answer: {why}")
            else:
                raise StandfastError(f"The MCP server asks for {request.method}, which is not allowed")
        plain = {key: one.model_dump(mode="json", by_alias=True, exclude_none=True) for key, one in given.items()}
        one = Round(asked, plain, result.request_state)
        if not asked and not given:
            await asyncio.sleep(_PAUSE)
        if await self._respond(one, is_new=True):
            return True
        assert self._kept is not None
        await self._kept.keep_round(self._round, one)
        return False

    async def _respond(self, one: Round, *, is_new: bool = False) -> bool:
        """Prepare the responses of a round. Return whether all are there."""
        responses, used = {key: self._read(given) for key, given in one.given.items()}, []
        for key, form in one.asked.items():
            answer, question = await self._answer(form["message"], form["schema"], goes_on=True)
            if answer is not None:
                responses[key] = answer
                used.append(question)
        if self.open:
            return False
        for name in used if is_new else [*used, self._round]:
            await self._take(name)
        self.responses, self.state = responses or None, one.state
        return True

    def _read(self, given: Mapping[str, Any]) -> Any:
        kind = self._types.ElicitResult if "action" in given else self._types.CreateMessageResult
        return kind.model_validate(given)

    def begin_anew(self) -> bool:
        """Send the call without the state, which the server no longer accepts. Return whether it may be sent.

        People's answers are ready if the server asks again.
        """
        may, self._has_begun_anew = not self._has_begun_anew and self.state is not None, True
        self.responses = self.state = None
        return may

    async def ended(self, *, is_made: bool) -> None:
        """Return taken answers if the call has asked for more, or was not made. From now on, no model answers."""
        self.is_under_way = False
        if self._kept is not None and (self.open or not is_made):
            for name in self._taken:
                if not self.open or name != self._round:
                    await self._kept.give_back(name)

    async def result_with(self, said: object) -> Any:
        """Return the result of the call, with instructions for open questions."""
        if not self.open:
            return said
        (question, text), *_ = self.open.items()
        assert self._kept is not None
        if not self._hears_cancel:
            await self._kept.wait_for(self.ctx.tool_call_id, question)
        unless = ", unless its result means that it is done" if self._hears_cancel else ""
        return {
            "asked": text,
            **({"said": said} if self._hears_cancel else {}),
            "question": question,
            "next": f"A person must answer. Call {self.asking} with question={question!r}. Then call {self.tool} again "
            f"with the same arguments{unless}.",
        }

    # --- questions for people ---

    async def _load(self) -> KeptQuestions | None:
        """Return the session's stored questions; None if people are not asked."""
        if self._asks_people and not self._has_loaded:
            self._has_loaded = True
            session = await self.store.load_session(session_key_of(self.ctx.tenant_id, str(self.ctx.session_id)))
            if session is not None:
                self._kept = KeptQuestions(self.store, session.key, self.ctx.idempotency_key)
                self._messages = await self.store.load_messages(session.id)
        return self._kept

    async def _elicited(self, _: Any, asked: Any) -> Any:
        """Answer a server with an earlier protocol, which waits."""
        schema = dict(asked.requested_schema) if asked.mode == "form" else None
        if schema is None or schema_problem(schema) is not None:
            return self._types.ElicitResult(action="decline")
        if await self._load() is None:
            return self._types.ElicitResult(action="cancel")
        answer, question = await self._answer(asked.message, schema, goes_on=False)
        if answer is None:
            self._hears_cancel = True
            return self._types.ElicitResult(action="cancel")
        await self._take(question)
        return answer

    async def _answer(self, message: str, schema: JSONObject, *, goes_on: bool) -> tuple[Any, str]:
        """Return a person's answer in the server's form, and the question's id; None if there is no answer yet."""
        if await self._load() is None or self._kept is None:
            raise StandfastError("The MCP server asks a person, and there is no session in which to ask")
        fault = ""
        while True:
            text = in_words(self.server, self.tool, message, schema, fault)
            question = id_of(self.server, self.tool, self.arguments, message, schema, fault)
            answer = await self._kept.answer(question, self._messages)
            if answer is None and len(self.open) >= _MOST_ASKED:
                return self._types.ElicitResult(action="decline"), question
            if answer is None:
                then = ToolCall(name=self.tool, arguments=dict(self.arguments)) if goes_on else None
                await self._kept.ask(question, text, then)
                self.open[question] = text
                return None, question
            if answer.strip().lower() in NO:
                return self._types.ElicitResult(action="decline"), question
            try:
                return self._types.ElicitResult(action="accept", content=content_of(answer, schema)), question
            except ValueError as error:
                fault = f"{fault}{cut(answer, 100)!r} does not fit: {cut(error_text(error), 300)}\n"

    async def _take(self, name: str) -> None:
        assert self._kept is not None
        if name not in self._taken:
            self._taken.append(name)
            await self._kept.take(name)

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
        async with self._one_by_one:  # each one sees the budget that the others have left
            return await self._answered_by_model(text, asked.max_tokens)

    async def _answered_by_model(self, text: str, max_tokens: int) -> Any:
        if not self.is_under_way:
            return self._types.ErrorData(code=-1, message="no call is under way")
        try:
            said = await self._there(self._ask(text, min(max(1, max_tokens), _MOST_TOKENS)))
        except Exception as error:
            self._unanswered = cut(error_text(error), 500)  # a stranger need not know this
            _LOG.warning("%s asks a model, and gets no answer: %s", self.server, self._unanswered)
            return self._types.ErrorData(code=-1, message="there is no answer")
        content = self._types.TextContent(type="text", text=said["response"])
        why = "endTurn" if isinstance(self.sampling, Agent) else None  # a model may have been cut short
        return self._types.CreateMessageResult(role="assistant", content=content, model=said["model"], stop_reason=why)

    async def _ask(self, text: str, max_tokens: int) -> dict[str, str]:
        agents = self.ctx.agents
        if isinstance(self.sampling, Agent):
            said = await agents.invoke(self.sampling, message=text)
            return {**said, "model": self.sampling.model or self.sampling.name}
        if not isinstance(agents, ModelAsker):
            raise StandfastError("the call has no run, and so no model")
        return await agents.ask_model(text, max_tokens=max_tokens)

    async def _there(self, work: Awaitable[Any]) -> Any:
        """Await something on the loop of the call. The connection may be on another loop."""

        async def awaited() -> Any:
            return await work

        if asyncio.get_running_loop() is self._loop:
            return await awaited()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(awaited(), self._loop))


def _texts(message: Any) -> list[str]:
    blocks = message.content if isinstance(message.content, list) else [message.content]
    return [f"{message.role}: {getattr(block, 'text', f'[{block.type}]')}" for block in blocks]
