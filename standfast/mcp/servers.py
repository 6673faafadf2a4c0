"""Declares MCP tools before a connection is made, and reads them when a run or a worker begins."""

import hashlib
import importlib
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, Unpack
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, WithJsonSchema, create_model

from standfast.agents import Agent
from standfast.errors import (
    DefinitionError,
    InputError,
    InterruptError,
    RetryableError,
    StandfastError,
    ToolDurabilityError,
)
from standfast.extras import MissingExtraError, install
from standfast.mcp.connections import MAX_PAGES, MAX_TOOLS, ChangedError, Connection
from standfast.mcp.kept_questions import KeptQuestions
from standfast.mcp.known_tools import KnownTools
from standfast.mcp.options import Gate, MCPOptions, check_known, check_options, check_server
from standfast.mcp.questions import Questions
from standfast.mcp.schemas import checked_by, fingerprint, numbered, shown_schema, tool_problem
from standfast.mcp.stored_logins import Logins, OAuth, auth_of
from standfast.mcp.transports import MAX_ANSWER_BYTES, is_transport
from standfast.mcp.user_connections import Connections, Headers
from standfast.messages import JSONObject, Message, ToolCall, clean_text, cut, error_text
from standfast.stores.protocol import has_ledger, session_key_of
from standfast.tools import Duration, Then, Tool, ToolContext, check_count, seconds

_LOG = logging.getLogger("standfast")

_ASKING = "ask_person"  # the tool that asks a server's questions
_OTHERS = "*"  # in a mapping by name, all tools that it does not name
_LONGEST_DESCRIPTION = 16 * 1024  # bytes

Renewed = Callable[[Sequence[Tool[..., Any]]], None]

RESOURCE_TOOLS = ("list_resources", "read_resource")
_LONGEST_LINE = 500  # bytes, for each entry of a list


def resource_tools(connections: Connections, prefix: str) -> list[Tool[..., Any]]:
    """Return the tools with which a model lists and reads a server's resources. Both are read-only."""

    async def list_resources(ctx: ToolContext) -> str:
        async def listed(connection: Connection) -> list[str]:
            return await connection.read(_listed)

        return "\n".join(await connections.use(ctx, listed)) or "There are none."

    async def read_resource(given: Any, ctx: ToolContext) -> str:
        async def read(connection: Connection) -> str:
            return await connection.read(lambda client: _read(client, given.uri))

        return await connections.use(ctx, read)

    fields: Any = {"uri": (Annotated[str, Field(max_length=4096)], ...)}
    listing, reading = (f"{prefix}{name}" for name in RESOURCE_TOOLS)
    return [
        Tool(
            listing,
            description="List the resources that can be read.",
            handler=list_resources,
            safe_to_retry=True,
        ),
        Tool(
            reading,
            description=f"Read a resource that {listing} has listed.",
            input=create_model("Resource", **fields),
            handler=read_resource,
            safe_to_retry=True,
        ),
    ]


async def _listed(client: Any) -> list[str]:
    found = [_line(str(one.uri), one) for one in await _pages(client.list_resources, "resources")]
    return found + [_line(one.uri_template, one) for one in await _pages(client.list_resource_templates, "templates")]


async def _pages(ask: Callable[..., Awaitable[Any]], what: str) -> list[Any]:
    found: list[Any] = []
    cursor = None
    for _ in range(MAX_PAGES):
        page = await ask(cursor=cursor)
        found += page.resources if what == "resources" else page.resource_templates
        cursor = page.next_cursor
        if len(found) > MAX_TOOLS:
            break
        if cursor is None:
            return found
    raise StandfastError(f"there are more than {MAX_TOOLS:,} {what}, or {MAX_PAGES} pages")


def _line(uri: str, one: Any) -> str:
    return json.dumps([uri, cut(one.description or one.title or one.name, _LONGEST_LINE)], ensure_ascii=False)


async def _read(client: Any, uri: str) -> str:
    found = await client.read_resource(uri, cache_mode="bypass")
    return "\n".join(
        one.text if hasattr(one, "text") else f"[{one.mime_type or 'data'}, which cannot be shown]"
        for one in found.contents
    )


async def prompt_text(client: Any, name: str, arguments: dict[str, str]) -> str:
    """Return the texts of a prompt. A text that is not the user's begins with its role."""
    found = await client.get_prompt(name, arguments)
    parts = []
    for message in found.messages:
        text = message.content.text if message.content.type == "text" else f"[{message.content.type}]"
        parts.append(text if message.role == "user" else f"{message.role}: {text}")
    return "\n\n".join(parts)


def asking_tool(name: str, store: Any) -> Tool[..., Any]:
    """Return the tool that asks a person the server's question, in the server's words."""

    async def ask(given: Any, ctx: ToolContext) -> str:
        session = await store.load_session(session_key_of(ctx.tenant_id, str(ctx.session_id)))
        kept = None if session is None else KeptQuestions(store, session.key)
        asked = None if kept is None else await kept.asked(given.question)
        if kept is None or asked is None:
            raise InputError(f"No MCP server has asked the question {given.question!r:.80}")
        await kept.ask_person(given.question, ctx.tool_call_id)
        raise InterruptError(str(asked["question"]))

    async def then(call: ToolCall, result: Message, session_key: str) -> ToolCall | None:
        """Return the call that continues with a person's answer."""
        question = call.arguments.get("question") if isinstance(call.arguments, dict) else None
        if result.status != "completed" or not isinstance(question, str):
            return None
        asked = await KeptQuestions(store, session_key).asked(question)
        return None if asked is None or "then" not in asked else ToolCall(**asked["then"])

    fields: Any = {"question": (Annotated[str, Field(description="its id, as the tool gave it")], ...)}
    return Tool(
        name,
        description="Ask a person a tool's question, so that it can continue; the result is the person's answer.",
        input=create_model("Question", **fields),
        handler=ask,
        safe_to_retry=True,
        then=then,
    )


def then_asks(asking: str, store: Any) -> Then:
    """Return a function that returns the call to ask a person, after a call that has ended with a question."""

    async def then(call: ToolCall, result: Message, session_key: str) -> ToolCall | None:
        try:
            said = json.loads(result.content) if '"question"' in result.content else None
        except ValueError:
            return None
        question = said.get("question") if isinstance(said, dict) else None
        if question is None or await KeptQuestions(store, session_key).waits_for(call.id) != question:
            return None
        return ToolCall(name=asking, arguments={"question": question})

    return then


@dataclass(frozen=True, eq=False)
class MCPToolset:
    """The tools of an MCP server, for `Agent(tools=[…])`: see `mcp_server`."""

    server: Any
    _: KW_ONLY
    only: Iterable[str] | None = None
    prefix: str = ""
    safe_to_retry: Mapping[str, bool] = field(default_factory=dict)
    approval: Gate | Mapping[str, Gate | None] | None = None
    trust_hints: bool = False
    timeout: Duration | None = None
    max_answer_bytes: int = MAX_ANSWER_BYTES
    headers: Headers = field(default_factory=dict, repr=False)
    auth: Any = field(default=None, repr=False)
    elicitation: bool = False
    sampling: Agent | bool | None = None
    resources: bool = False

    def __post_init__(self) -> None:
        check_count("max_answer_bytes", self.max_answer_bytes, 1)
        if self.timeout is not None:
            object.__setattr__(self, "timeout", seconds(self.timeout, "mcp: timeout"))
        given = self.only
        if given is not None and not isinstance(given, str | Mapping) and isinstance(given, Iterable):
            object.__setattr__(self, "only", tuple(given))
        check_server(self.server)
        check_options(self.server, vars(self))

    @property
    def name(self) -> str:
        """The server's name for people, without possible secrets."""
        if isinstance(self.server, str):
            parts = urlsplit(self.server)
            return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        if (command := getattr(self.server, "command", None)) is not None:
            script = next((one for one in self.server.args if not one.startswith("-")), "")
            return cut(f"{command} {script}".strip(), 200)
        name = getattr(self.server, "name", None) or getattr(self.server, "__qualname__", None)
        return cut(str(name or type(self.server).__name__), 200)

    @property
    def agents(self) -> Sequence[Agent]:
        """The agents that its tools run."""
        return (self.sampling,) if isinstance(self.sampling, Agent) else ()

    @property
    def asks_model(self) -> bool:
        """Whether the server may ask the model of the calling agent."""
        return self.sampling is True

    @property
    def key(self) -> str:
        """Identifies the server in a store."""
        command = (getattr(self.server, "command", ""), getattr(self.server, "args", ()))
        whole = self.server if isinstance(self.server, str) else f"{self.name}\0{command}"
        return hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()

    @asynccontextmanager
    async def opened(
        self, store: Any = None, renewed: Renewed | None = None
    ) -> AsyncIterator[Sequence[Tool[..., Any]]]:
        """Yield the tools for as long as a block lasts. A lost connection is opened again.

        Args:
            renewed: called with the tools when a call has found that a person has accepted a change.

        Raises:
            DefinitionError: the server does not have a named tool.
            StandfastError: the server cannot be reached.
            ImportError: the SDK is not installed.
        """
        known = KnownTools(store, self.key, self.name) if has_ledger(store) else None
        connections = self.connections(store)
        use = _Use(connections, known, store if known is not None else None, renewed)
        try:
            yield self._tools(use, await self._listed(use))
        finally:
            await connections.close()

    def connections(self, store: Any) -> Connections:
        """Return connections that the caller closes."""
        return Connections(_sdk(), self.server, self.max_answer_bytes, self.headers, self._auth_in(store))

    async def _listed(self, use: "_Use") -> list[Any]:
        """Return the tools that models may see: as they were accepted, even if the server is unreachable now."""
        try:
            found = await self._usable(await use.connections.tools(), use)
        except StandfastError as error:
            if use.known is None or not (found := await use.known.accepted()):
                raise
            _LOG.warning("%s is unreachable, and its last known tools are used: %s", self.name, error_text(error))
            return found
        accepted = await self._accepted(found, use.known)
        for now, item in zip(found, accepted, strict=True):
            if now is not item and fingerprint(now) != fingerprint(item):
                _LOG.warning(
                    "%s has changed its tool %r, which is held back until a person accepts it: "
                    "`standfast mcp tools` shows the change",
                    self.name,
                    cut(clean_text(item.name), 80),
                )
        return accepted

    async def _usable(self, listed: list[Any], use: "_Use") -> list[Any]:
        """Return the usable tools of a listing. The others are named in the log."""
        problems = {item.name: problem for item in listed if (problem := self._problem(item)) is not None}
        shown = {cut(clean_text(name), 80): cut(clean_text(why), 500) for name, why in problems.items()}
        for name, why in shown.items():
            _LOG.warning("%s: its tool %r is left out: %s", self.name, name, why)
        use.left_out.update(problems)
        if use.known is not None:
            await use.known.note_left_out(shown)
        return [item for item in listed if item.name not in problems]

    def _problem(self, item: Any) -> str | None:
        """Return why a tool cannot be used; None if it can, or if `only` leaves it out anyway."""
        if self.only is not None and item.name not in self.only:
            return None
        if (problem := tool_problem(item)) is not None:
            return problem
        try:
            schema, _ = shown_schema({"type": "object", "properties": {}, **item.input_schema})
            Tool("tool", description="d", input=Annotated[JSONObject, WithJsonSchema(schema)])
        except Exception as error:  # a stranger's schema may contain anything
            return f"its schema cannot be used: {error_text(error)}"
        return None

    async def _accepted(self, found: list[Any], known: KnownTools | None) -> list[Any]:
        """Return the tools of a listing as they were accepted."""
        wanted = [item for item in found if self.only is None or item.name in self.only]
        if known is None:
            return found
        seen = {item.name: item for item in await known.compared(wanted)}
        return [seen.get(item.name, item) for item in found]

    async def _why_not(self, name: str, listed: list[Any], use: "_Use") -> str:
        """Return why a changed tool is not called. If the change was accepted, the tool is offered from now on."""
        now = next((item for item in listed if item.name == name), None)
        if now is None:
            return f"Not called: the MCP server no longer has the tool {name!r}"
        if (problem := self._problem(now)) is not None:
            return f"Not called: the MCP server's tool {name!r} is no longer usable: {problem}"
        accepted = await self._accepted(await self._usable(listed, use), use.known)
        if all(fingerprint(item) != fingerprint(now) for item in accepted):
            return (
                f"Not called: the MCP server has changed its tool {name!r} since it was accepted. A person must "
                "review it (`standfast mcp tools`) and accept it (`standfast mcp accept`)"
            )
        if use.renewed is None:
            return f"Not called: the tool {name!r} has changed, and a person has accepted the change for later runs"
        use.renewed(self._tools(use, accepted))
        return (
            f"Not called: the tool {name!r} has changed, and a person has accepted the change. Read its new "
            "description, and call it again if it still fits"
        )

    def _auth_in(self, store: Any) -> Callable[[ToolContext], tuple[Hashable, Any]]:
        """Return a function from a call's context to an identity and its credentials for the server."""
        if not isinstance(self.auth, OAuth):

            def given(ctx: ToolContext) -> tuple[Hashable, Any]:
                auth = self.auth(ctx) if callable(self.auth) else self.auth
                return auth, auth  # an object equals only itself

            return given
        if not has_ledger(store):
            raise InputError(f"{self.name}: auth=OAuth(…) needs a durable store, which keeps the logins")
        logins, shared = Logins(store, self.server, self.auth.key), self.auth.shared
        known: dict[Hashable, Any] = {}

        def users(ctx: ToolContext) -> tuple[Hashable, Any]:
            who = (None, None) if shared else (ctx.tenant_id, ctx.user_id)
            known[who] = known.get(who) or auth_of(logins, who)
            return who, known[who]

        return users

    def _tools(self, use: "_Use", listed: list[Any]) -> list[Tool[..., Any]]:
        found = {item.name: item for item in listed}
        asks = self.elicitation and use.store is not None
        ours = [asking_tool(f"{self.prefix}{_ASKING}", use.store)] if asks else []
        ours += resource_tools(use.connections, self.prefix) if self.resources else []
        names = tool_names(found, self.prefix, [tool.name for tool in ours])
        gates = dict(self.approval) if isinstance(self.approval, Mapping) else {_OTHERS: self.approval}
        others = gates.pop(_OTHERS, None)
        wanted = list(found if self.only is None else self.only)
        if unknown := sorted({*wanted, *self.safe_to_retry, *gates} - found.keys() - use.left_out):
            raise DefinitionError(f"The MCP server has no tool {unknown[0]!r}; it has {', '.join(found) or 'none'}")
        tools = []
        for name in wanted:
            if (item := found.get(name)) is None:
                continue
            is_safe = self.safe_to_retry.get(name, self.trust_hints and _is_said_safe(item))
            call = self._caller(use, item, is_safe, names[name])
            then = then_asks(f"{self.prefix}{_ASKING}", use.store) if asks else None
            tools.append(self._tool(call, names[name], item, is_safe, gates.get(name, others), then))
        return [*tools, *ours]

    def _caller(
        self, use: "_Use", item: Any, is_safe: bool, name: str
    ) -> Callable[[JSONObject, ToolContext], Awaitable[Any]]:
        asking = f"{self.prefix}{_ASKING}" if self.elicitation and use.store is not None else None

        async def call(arguments: JSONObject, ctx: ToolContext) -> Any:
            asked = Questions(use.store, self.name, name, arguments, ctx, asking, self.sampling)

            async def ask(connection: Connection) -> Any:
                is_made = True
                try:
                    is_ready = await asked.begin()
                    made = connection.call(item, arguments, ctx, is_safe=is_safe, asked=asked) if is_ready else None
                    return await asked.result_with(None if made is None else await made)
                except RetryableError:
                    is_made = False
                    raise
                except ChangedError as change:
                    is_made = False
                    if use.known is None:
                        raise
                    raise StandfastError(await self._why_not(item.name, change.listed, use)) from change
                except StandfastError as error:
                    if not asked.open or isinstance(error, ToolDurabilityError):
                        raise
                    return await asked.result_with({"error": error_text(error)})
                finally:
                    await asked.ended(is_made=is_made)

            return await use.connections.use(ctx, ask, **asked.callbacks())

        return call

    def _tool(
        self,
        call: Callable[[JSONObject, ToolContext], Awaitable[Any]],
        name: str,
        item: Any,
        is_safe: bool,
        approval: Gate | None,
        then: Then | None,
    ) -> Tool[..., Any]:
        schema = {"type": "object", "properties": {}, **item.input_schema}
        shown, names = shown_schema(schema)
        said = (item.description, item.title, cut(item.name, 200), name)
        check = checked_by(schema)

        def theirs(arguments: JSONObject) -> JSONObject:
            return {names.get(ours, ours): value for ours, value in arguments.items()}

        def checked(arguments: JSONObject) -> JSONObject:
            check(theirs(arguments))
            return arguments

        async def call_theirs(arguments: JSONObject, ctx: ToolContext) -> Any:
            return await call(theirs(arguments), ctx)

        return Tool(
            name,
            description=cut(next(text for text in said if text and text.strip()), _LONGEST_DESCRIPTION),
            input=Annotated[JSONObject, AfterValidator(checked), WithJsonSchema(shown)],
            handler=call_theirs,
            safe_to_retry=is_safe,
            approval=approval,
            timeout=self.timeout,
            fingerprint=fingerprint(item),
            then=then,
            asks_model=self.asks_model,
        )


@dataclass(frozen=True, slots=True)
class _Use:
    """The state of a toolset while it is open.

    Args:
        known: the tools that the store knows; None without a durable store, like `store`.
        left_out: the names of unusable tools.
    """

    connections: Connections
    known: KnownTools | None
    store: Any
    renewed: Renewed | None
    left_out: set[str] = field(default_factory=set)


def mcp_server(server: Any, **options: Unpack[MCPOptions]) -> MCPToolset:
    """Return a server's tools for `Agent(tools=[…])`. The connection is made when a run begins or a worker starts.

    The server's declarations are stored, so that runs can begin while the server is unreachable. A tool that the server
    changes is held back until a person accepts the change. On Temporal, an agent whose server has never been seen waits
    for the server.

    Args:
        server, options: see `mcp_tools`, with `sampling=True` for a server that asks for a model. A transport can be
            opened only once, so pass a function that makes it.

    Raises:
        DefinitionError: an option is wrong.
    """
    if is_transport(server):
        raise DefinitionError("mcp_server: a transport can be opened once; give a function that makes it")
    return toolset_of(server, options)


def toolset_of(server: Any, options: MCPOptions) -> MCPToolset:
    """Return a toolset, after checking that the options exist.

    Raises:
        DefinitionError: the server or an option does not exist.
    """
    check_known(options)
    return MCPToolset(server, **options)


async def mcp_prompt(
    server: Any,
    name: str,
    arguments: Mapping[str, str] | None = None,
    *,
    store: Any = None,
    **options: Unpack[MCPOptions],
) -> str:
    """Return a prompt of a server as text, for a message or for instructions. A stranger has written it.

    Args:
        server, store, options: see `mcp_tools`.

    Raises:
        StandfastError: the server cannot be reached, or does not have the prompt.
    """
    toolset = toolset_of(server, options)
    connections = toolset.connections(store)
    try:

        async def read(connection: Connection) -> str:
            return await connection.read(lambda client: prompt_text(client, name, dict(arguments or {})))

        return await connections.use(ToolContext(), read)
    finally:
        await connections.close()


def _sdk() -> Any:
    try:
        importlib.import_module("jsonschema")
        return importlib.import_module("mcp")
    except ImportError as error:
        raise MissingExtraError(f"MCP servers need their SDK: {install('mcp')}") from error


def tool_names(theirs: Iterable[str], prefix: str, taken: Iterable[str] = ()) -> dict[str, str]:
    """Return the names of tools here: all different, and each acceptable to providers."""
    ours, used, numbers = dict[str, str](), set(taken), dict[str, int]()
    for name in theirs:
        clean = prefix + re.sub(r"[^a-zA-Z0-9_-]", "_", name)[: 60 - len(prefix)] or "_"
        ours[name] = numbered(clean if clean[0].isalpha() or clean[0] == "_" else f"_{clean}", used, numbers)
    return ours


def _is_said_safe(item: Any) -> bool:
    hints = item.annotations
    return hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
