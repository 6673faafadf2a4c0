"""Declares tools and toolsets, reads the arguments of a call, makes one attempt and writes its result.

How often a call runs is decided elsewhere.
"""

import contextlib
import copy
import functools
import hashlib
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload, runtime_checkable

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from standfast.durations import Duration
from standfast.errors import (
    DefinitionError,
    InputError,
    InterruptError,
    RetryableError,
    TerminalError,
    ToolDurabilityError,
)
from standfast.messages import (
    JSONObject,
    ToolCall,
    clean_text,
    cut,
    error_text,
    explain,
    is_cut,
    json_problem,
    read_json,
    read_object,
    size_over,
)
from standfast.tools.approvals import Approval, check_of_call
from standfast.tools.calls import (
    TOOL_SECONDS,
    Asked,
    Failed,
    Happened,
    InThread,
    NotHappened,
    Outcome,
    RetryPolicy,
    Returned,
    Terminated,
    Then,
    ToolContext,
    Unknown,
    call_handler,
)
from standfast.tools.checks import check_function, check_handler, seconds, suggesting
from standfast.tools.kept_results import changed_by_json
from standfast.tools.open_errors import ErrorTypes, check_open_errors, leaves_open
from standfast.tools.signatures import (
    Takes,
    arguments_schema,
    bind_arguments,
    is_plain,
    parameters_of,
    read_signature,
    read_summary,
    schema_type,
)

P = ParamSpec("P")
R = TypeVar("R")
Writes = Callable[[Any, int], Awaitable[Outcome]]

TOOL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")  # every provider accepts such a function name
NOT_FOUND_YET = "verify did not find its effect, but the handler still runs"
_SOON = 1_000  # values of a result that are searched faster than a thread starts


@suggesting
@dataclass(frozen=True, eq=False)
class Tool(Generic[P, R]):
    """A tool with explicit schemas. Most tools come from a function, with `@tool`.

    Args:
        name: `[a-zA-Z_][a-zA-Z0-9_-]{0,63}`.
        description: the text that the model reads.
        input: a pydantic model, dataclass or TypedDict; None for a tool without arguments. The handler gets the parsed
            value as its first argument, and a `ToolContext` as its second if it takes two.
        output: a type that results must match; extra keys are dropped. If None, any JSON value.
        handler: a function, async or plain (plain ones run in a thread). May be given when the agent runs.
        safe_to_retry: running it twice is harmless. Permits a second run after a crash and under `retry`.
        parallel: adjacent calls may run at the same time.
        timeout: limit of one attempt, such as "1d"; 55 seconds if None, so there always is one. A call with effects
            that is cut off has an unknown outcome, unless `verify` can determine it.
        retry: what to do when the handler raises, before the model sees the error. Needs `safe_to_retry=True`.
        approval: how people approve a call before it runs; or a function of the `ToolCall` that returns the `Approval`
            for it, or None if it does not need one. Until they decide, no call of the model's turn runs.
        verify: a read-only function with the handler's parameters that checks whether the effect of a call with an
            unknown outcome exists. It returns `Happened(result)`, `NotHappened()`, or None if it cannot determine that.
        unknown: classes of errors that leave open whether the call took effect, besides the known ones: read timeouts
            and broken connections of common libraries. The model of a call with effects then reads that its outcome is
            unknown, unless `verify` can determine it; a safe call is retried.
        not_run: classes of errors which mean that the call did not take effect, although they or their causes would
            leave it open.

    Raises:
        DefinitionError: naming the tool, the field and the rule.
    """

    name: str
    _: KW_ONLY
    description: str
    input: Any = None
    output: Any = Any
    handler: Callable[P, R] | None = None
    safe_to_retry: bool = False
    parallel: bool = False
    timeout: Duration | None = None
    retry: RetryPolicy | None = None
    approval: Approval | Callable[[ToolCall], Approval | None] | None = None
    verify: Callable[..., Any] | None = None
    unknown: ErrorTypes = ()
    not_run: ErrorTypes = ()
    by_keyword: bool = field(default=False, repr=False)  # the handler takes the arguments themselves
    handoff: str = field(default="", repr=False)  # a call hands the conversation over to the agent of this name
    then: Then | None = field(default=None, repr=False)  # returns the call that follows, without the model; or None
    asks_model: bool = field(default=False, repr=False)  # the handler may ask the model of the calling agent
    fingerprint: str = field(default="", repr=False)  # of the server's whole declaration of the tool, which may change

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not TOOL_NAME.fullmatch(self.name):
            raise DefinitionError(f"Tool name must match {TOOL_NAME.pattern}, got {self.name!r}")
        if not isinstance(self.description, str) or not self.description.strip():
            raise self._fault("description must be a non-empty string")
        for flag in ("safe_to_retry", "parallel"):
            if not isinstance(getattr(self, flag), bool):
                raise self._fault(f"{flag} must be True or False, got {getattr(self, flag)!r}")
        if self.verify is not None and not callable(self.verify):
            raise self._fault(f"verify must be callable, got {self.verify!r}")
        check_handler(self.name, self.handler, self.safe_to_retry)
        if self.timeout is not None:
            object.__setattr__(self, "timeout", seconds(self.timeout, f"Tool '{self.name}': timeout"))
        self._check_policies()
        check_open_errors(f"Tool '{self.name}'", self.unknown, self.not_run)
        # So that a broken schema is found when the tool is declared, not when a model first calls it.
        _ = self._input_schema, self._result

    def _check_policies(self) -> None:
        if self.retry is not None and not isinstance(self.retry, RetryPolicy):
            raise self._fault(f"retry must be a RetryPolicy, got {self.retry!r}")
        if self.retry is not None and not self.safe_to_retry:
            raise self._fault("retry needs safe_to_retry=True: a retry runs the tool twice")
        if isinstance(self.approval, Approval):
            check_of_call(self.approval, self.name)
        elif self.approval is not None:
            if not callable(self.approval) or isinstance(self.approval, type):
                raise self._fault(
                    f"approval must be Approval(…), or a function of the ToolCall, got {self.approval!r:.80}"
                )
            check_function(f"Tool '{self.name}': approval", self.approval, "ToolCall")

    def _fault(self, text: str) -> DefinitionError:
        return DefinitionError(f"Tool '{self.name}': {text}")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the handler directly, for instance in a test."""
        if self.handler is None:
            raise self._fault("has no handler")
        return self.handler(*args, **kwargs)

    def with_handler(self, handler: Callable[..., Any]) -> "Tool[..., Any]":
        """Return the same tool with another handler, which is called in the same way."""
        if not callable(handler):
            raise InputError(f"Tool '{self.name}': the handler given for it is not callable: {handler!r}")
        check_handler(self.name, handler, self.safe_to_retry)
        twin = cast("Tool[..., Any]", copy.copy(self))  # a copy keeps the schemas, which take a millisecond to make
        object.__setattr__(twin, "handler", handler)
        twin.__dict__.pop("_takes", None)
        return twin

    @property
    def seconds(self) -> float:
        """The seconds that one attempt of its handler, or of its `verify`, may take."""
        return TOOL_SECONDS if self.timeout is None else cast(float, self.timeout)

    @property
    def input_schema(self) -> JSONObject:
        """The JSON schema of the arguments, the caller's own."""
        return copy.deepcopy(self._input_schema)

    @functools.cached_property
    def schema_digest(self) -> str:
        """A digest that changes with the tool's input schema."""
        return hashlib.blake2b(to_json(self._input_schema), digest_size=8).hexdigest()

    @functools.cached_property
    def _input_schema(self) -> JSONObject:
        if self.input is None:
            return {"type": "object", "properties": {}}
        return arguments_schema(self.input, self._arguments, f"Tool '{self.name}'")

    @functools.cached_property
    def _arguments(self) -> TypeAdapter[Any]:
        return schema_type(self.input, f"Tool '{self.name}'", "input")

    @functools.cached_property
    def reads_at_once(self) -> bool:
        """Whether reading arguments calls no user code."""
        return self.input is None or is_plain(self._arguments.core_schema)

    @functools.cached_property
    def _result(self) -> TypeAdapter[Any]:
        return schema_type(self.output, f"Tool '{self.name}'", "output")

    @functools.cached_property
    def _writes_plainly(self) -> bool:
        return is_plain(self._result.core_schema)

    def writes_at_once(self, value: Any) -> bool:
        """Whether writing a result is quick, and calls no user code."""
        return self._writes_plainly and json_problem(value, _SOON) is None

    def read_result(self, content: str) -> Any:
        """Return the value that `write_result` wrote: the text itself if it may be text, otherwise the JSON in it."""
        if self.output is not Any:
            with contextlib.suppress(ValidationError):
                self._result.validate_python(content, strict=True)
                return content
        try:
            return read_json(content)
        except ValueError:  # text of a tool that does not declare its result
            return content

    def approval_of(self, call: ToolCall) -> Approval | None:
        """Return the approval that a call needs before it may run; None if it does not need one.

        Raises:
            InputError: the function returned something else, or raised.
        """
        if self.approval is None or isinstance(self.approval, Approval):
            return self.approval
        # The function may change its copy; the call itself runs unchanged.
        found = self.approval(call.model_copy(deep=True))
        if found is None or isinstance(found, Approval):
            return None if found is None else check_of_call(found, self.name)
        raise InputError(f'Tool "{self.name}": its approval must give an Approval or None, got {found!r:.80}')

    # --- one attempt ---

    def read_arguments(self, arguments: JSONObject | str) -> Any:
        """Validate a model's arguments: defaults filled in, values converted, unknown keys dropped.

        Raises:
            InputError: with the reason, in words for the model.
        """
        try:
            if isinstance(arguments, str) and is_cut(arguments):
                raise InputError("the arguments are longer than max_message_bytes")
            given = read_object(arguments) if isinstance(arguments, str) else arguments
            # As JSON: strict types are read from it, and the handler gets a separate value.
            return {} if self.input is None else self._arguments.validate_json(to_json(given))
        except ValidationError as error:
            raise InputError(f'Invalid input for tool "{self.name}": {explain(error)}') from error
        except (Exception, SystemExit) as error:  # whatever a user's validator raises
            raise InputError(f'Invalid input for tool "{self.name}": {error_text(error)}') from error

    def normal_arguments(self, arguments: JSONObject | str) -> JSONObject:
        """Return arguments as the handler gets them, as JSON: with defaults, converted, without unknown keys.

        An argument whose type hides its value, such as a secret, is unchanged.

        Raises:
            InputError: with the reason, in words for the model; or they cannot be written as they are read.
        """
        return self._write_normal(arguments, self.read_arguments(arguments))

    def _write_normal(self, arguments: JSONObject | str, value: Any) -> JSONObject:
        if self.input is None:
            return {}
        given = read_object(arguments) if isinstance(arguments, str) else arguments
        with contextlib.suppress(Exception):  # whatever a user's serializer raises
            plain: JSONObject = self._arguments.dump_python(value, mode="json", by_alias=True)
            kept = {
                name: item if self._shows(given, name, item, value) else given[name] for name, item in plain.items()
            }
            if self.read_arguments(kept) == value:
                fields = self._input_schema.get("properties", {})
                both = {name: field["default"] for name, field in fields.items() if "default" in field} | kept
                return {name: both[name] for name in {**fields, **kept} if name in both}
        raise InputError(f'Invalid input for tool "{self.name}": these arguments cannot be shown to people unchanged')

    def _shows(self, given: JSONObject, name: str, item: Any, value: Any) -> bool:
        """Whether a written argument is read back as the same value."""
        return json_problem(item) is None and (name not in given or self.read_arguments({**given, name: item}) == value)

    def write_result(self, value: Any, limit: int) -> Outcome:
        """Turn a handler's value into text for the model: text is unchanged, anything else becomes JSON."""
        try:
            result = self._result.validate_python(value)
            is_text = isinstance(result, str)
            content = clean_text(result) if is_text else self._result.dump_json(result).decode()
            problem = None if is_text else changed_by_json(result, content, self._result)
        except ValidationError as error:
            return Failed(f'Tool "{self.name}" returned invalid output: {explain(error)}')
        except Exception as error:  # not JSON, or whatever a user's serializer raises
            return Failed(f'Tool "{self.name}" ran, but its result was lost: it is not JSON ({error_text(error)})')
        if problem is not None:
            return Failed(f'Tool "{self.name}" ran, but its result could not be kept whole: {problem}')
        if size := size_over(content, limit):
            why = f"{size:,} bytes, more than max_message_bytes={limit:,}"
            return Failed(f'Tool "{self.name}" ran, but its result was lost: {why}')
        return Returned(content)

    async def attempt(
        self,
        arguments: JSONObject | str,
        context: ToolContext,
        *,
        limit: int,
        read: InThread,
        write: Writes,
        in_thread: InThread,
        approved: str | None = None,
        safe_to_retry: bool | None = None,
    ) -> Outcome:
        """Run the handler once and return the outcome; `verify` settles an error that leaves the outcome open.

        Args:
            limit: the largest result in bytes.
            read: calls the function that reads the arguments; raises `InputError` if that takes too long.
            write: calls `write_result`; its outcome is `Failed` if that takes too long.
            in_thread: runs a plain function in a thread, where it may block.
            approved: the fingerprint of the tool for which people approved these arguments; "" if none was recorded,
                None if no one was asked. A call that needs approval does not run without it.
            safe_to_retry: whether this call is; the tool's own setting if None.
        """
        if self.handler is None:
            return Failed(
                f'Tool "{self.name}" has no handler. Give it one when it is declared, or pass '
                f'tools={{"{self.name}": handler}} to run().'
            )

        def read_once() -> tuple[Any, JSONObject | None]:
            value, is_unasked = self.read_arguments(arguments), self.approval is not None and approved is None
            return value, self._write_normal(arguments, value) if is_unasked else None

        try:
            given, normal = await read(read_once)
        except InputError as error:
            return Failed(cut(error_text(error), limit))
        try:
            if (refused := self._unapproved(normal, context, approved)) is not None:
                return refused
            value = await call_handler(self.handler, self.bind(self.handler, given, context), in_thread)
            return await write(value, limit)
        except (Exception, SystemExit) as error:
            is_safe = self.safe_to_retry if safe_to_retry is None else safe_to_retry
            outcome = self._raised(error, limit, is_safe)
            if is_safe or not isinstance(outcome, Unknown):
                return outcome
            found = await self.ask_whether_it_happened(
                arguments, context, limit=limit, read=read, write=write, in_thread=in_thread
            )
            return settled_by_verify(outcome, found)

    def _raised(self, error: BaseException, limit: int, is_safe: bool) -> Outcome:
        """Return the outcome of a call whose handler raised an error."""
        text = cut(error_text(error), limit)
        match error:
            case InterruptError():
                return Asked(cut(clean_text(error.question), limit), error.unknown)
            case TerminalError():
                return Terminated(error)
            case ToolDurabilityError():  # the handler itself does not know
                return Unknown(error.reason or text)
            case RetryableError():
                return Failed(text, raised=True, retryable=True, retry_after=error.retry_after)
        if not leaves_open(error, unknown=self.unknown, not_run=self.not_run):
            return Failed(text, raised=True)
        return Failed(text, raised=True, retryable=True) if is_safe else Unknown(text)

    def _unapproved(self, normal: JSONObject | None, context: ToolContext, approved: str | None) -> Failed | None:
        if approved and approved != self.fingerprint:
            return self.not_as_approved()
        call = None if normal is None else ToolCall(id=context.tool_call_id, name=self.name, arguments=normal)
        if call is None or self.approval_of(call) is None:
            return None
        return Failed(f'Not run: tool "{self.name}" needs approval, which this call lacks. Call it again')

    def not_as_approved(self) -> Failed:
        """Return the outcome of a call if the tool has changed since people approved it."""
        return Failed(f'Not run: tool "{self.name}" has changed since the call was approved. Call it again')

    async def ask_whether_it_happened(
        self,
        arguments: JSONObject | str,
        context: ToolContext,
        *,
        limit: int,
        read: InThread,
        write: Writes,
        in_thread: InThread,
    ) -> Outcome | None:
        """Settle an unknown outcome with `verify`: the outcome, or None if the call must run."""
        if self.verify is None:
            return Unknown()
        try:
            given = await read(lambda: self.read_arguments(arguments))
            call = self.bind(self.verify, given, context)
            verdict = await call_handler(self.verify, call, in_thread)
            if isinstance(verdict, Happened):
                return await write(verdict.result, limit)
        except (Exception, SystemExit) as error:
            return Unknown(f"verify failed: {error_text(error)}")
        match verdict:
            case NotHappened():
                return None
            case None:
                return Unknown()
            case _:
                return Unknown(f"verify returned {type(verdict).__name__} instead of Happened, NotHappened or None")

    def bind(self, handler: Callable[..., Any], arguments: Any, context: ToolContext) -> Callable[[], Any]:
        """Bind a handler's arguments: as keywords if they came from a signature, otherwise as the parsed value."""
        takes = self._takes if handler is self.handler else parameters_of(handler)
        given = arguments if self.by_keyword else () if self.input is None else (arguments,)
        return bind_arguments(handler, takes, given, context)

    @functools.cached_property
    def _takes(self) -> Takes:
        return parameters_of(self.handler)

    def next_delay(self, failed: Failed, attempt: int) -> float | None:
        """Return the seconds until the next attempt, or None if the model must read the error.

        The design's table: a tool with effects is never retried; a safe one is when it raised `RetryableError`, or
        anything under a `retry` policy.
        """
        if not self.safe_to_retry or not (failed.retryable or (failed.raised and self.retry)):
            return None
        policy = self.retry or RetryPolicy()
        if attempt >= policy.maximum_attempts:
            return None
        return policy.delay(attempt) if failed.retry_after is None else failed.retry_after


def settled_by_verify(lost: Unknown, found: Outcome | None) -> Outcome:
    """Return the outcome of a call that raised an error or was cut off, given the verdict of `verify`."""
    match found:
        case None if lost.still_runs:
            return Unknown(f"{lost.reason}; {NOT_FOUND_YET}")
        case None:  # nothing happened, so it is an ordinary error
            return Failed(lost.reason, raised=True)
        case Unknown(why):
            return Unknown(f"{lost.reason}; {why}" if why else lost.reason)
        case _:
            return found


@overload
def tool(fn: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    safe_to_retry: bool = False,
    parallel: bool = False,
    timeout: Duration | None = None,
    retry: RetryPolicy | None = None,
    approval: Approval | Callable[[ToolCall], Approval | None] | None = None,
    verify: Callable[..., Any] | None = None,
    unknown: ErrorTypes = (),
    not_run: ErrorTypes = (),
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    fn: Callable[..., Any] | None = None, /, *, name: str | None = None, description: str | None = None, **options: Any
) -> Any:
    """Make a tool of a function: `@tool`, or `@tool(safe_to_retry=True)` with any option of `Tool`.

    The schema comes from the signature (defaults, optional, unions, nested models, `Annotated[…, Field(…)]`). The
    docstring describes the tool, before its sections, and the parameters, in its sections (Google, NumPy, Sphinx). The
    result is checked against the return annotation. A parameter annotated `ToolContext` is passed in and hidden from
    the model. By default a tool has effects and runs at most once.

    Raises:
        DefinitionError: naming the tool, the parameter and the rule.
    """
    # Types declared inside a function are found in pydantic's way: through the caller's names.
    caller = sys._getframe(1).f_locals

    def declare(function: Callable[..., Any]) -> Tool[..., Any]:
        if not callable(function) or isinstance(function, Tool | type):
            raise DefinitionError(f"@tool needs a function, got {function!r}")
        own_name, summary = read_summary(function)
        tool_name = own_name if name is None else name
        arguments, output = read_signature(tool_name, function, caller)
        return Tool(
            tool_name,
            description=(summary or tool_name) if description is None else description,
            input=arguments,
            output=output,
            handler=function,
            by_keyword=True,
            **options,
        )

    return declare if fn is None else declare(fn)


@runtime_checkable
class Toolset(Protocol):
    """Represents, among an agent's tools, tools that are found later."""

    @property
    def name(self) -> str:
        """Its name for people."""
        ...

    @property
    def agents(self) -> Sequence[Any]:
        """The agents that its tools run, which a worker must have."""
        ...

    @property
    def asks_model(self) -> bool:
        """Whether its tools may ask the model of the calling agent."""
        ...

    def opened(
        self, store: Any, renewed: Callable[[Sequence[Tool[..., Any]]], None] | None = None
    ) -> AbstractAsyncContextManager[Sequence[Tool[..., Any]]]:
        """Yield the tools, which work for as long as the block lasts.

        Args:
            store: of the run or the worker; None if there is none.
            renewed: called with the new tools, on the loop of the block, whenever they have changed.

        Raises:
            StandfastError: they cannot be found now; on Temporal this is retried, and the agent's runs wait.
        """
        ...
