"""Guards the tools of Microsoft's Agent Framework: each call runs at most once in its session."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator

from standfast.effects.keys import in_activity
from standfast.errors import InputError, StoreError
from standfast.integrations._guards import ToolGuard, check_key, check_version, key_of
from standfast.messages import error_text
from standfast.stores.protocol import DurableStore

check_version("agent-framework-core", "1.17", "2", "agent-framework")

from agent_framework import (  # noqa: E402 - only in a version that has it
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    MiddlewareFailure,
    MiddlewareTermination,
)
from agent_framework.exceptions import UserInputRequiredException  # noqa: E402

__all__ = ["AtMostOnce"]


class _AskedError(Exception):
    """Middleware behind the guard asks a person, and the tool has not run."""


@dataclass(frozen=True)
class _Result:
    value: Any


def _dump(result: _Result) -> list[Any]:
    value = result.value
    if isinstance(value, list) and all(isinstance(part, Content) for part in value):
        return ["contents", [part.to_dict() for part in value]]
    return ["value", value]


def _load(kept: Any) -> Any:
    if not isinstance(kept, list):
        return kept
    return _Result([Content.from_dict(part) for part in kept[1]] if kept[0] == "contents" else kept[1])


_Kept = Annotated[Any, PlainSerializer(_dump), PlainValidator(_load)]


class AtMostOnce(FunctionMiddleware):
    """Middleware that runs a tool's call at most once: `Agent(…, middleware=[AtMostOnce(store)])`; put it last.

    A tool is safe, and not guarded, if its `additional_properties` have `{"safe_to_retry": True}`. All others have
    effects, including MCP tools.

    Args:
        store: a durable one, which may be shared.
        key: distinguishes a call from all others, from its `FunctionInvocationContext`. By default, the ids of the
            session and of the call, both the model's and the framework's; in a Temporal activity, the activity's id.

    Raises:
        MemoryStoreNotDurableError: the store is not durable.

    A call that cannot be guarded does not run, and ends the agent's run with the framework's `MiddlewareFailure`: it
    has no key, since its run has no session; or it was made before with other arguments; or the store does not answer.
    """

    def __init__(self, store: DurableStore, *, key: Callable[[FunctionInvocationContext], str] | None = None) -> None:
        check_key(key, "the call's FunctionInvocationContext")
        self._guard = ToolGuard(
            store, not_run=(_AskedError, UserInputRequiredException), told=(MiddlewareTermination, MiddlewareFailure)
        )
        self._key = key

    async def process(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        if (context.function.additional_properties or {}).get("safe_to_retry") is True:
            await call_next()
            return
        call_id, has_begun = str(context.metadata.get("call_id") or ""), False

        async def call() -> Any:
            nonlocal has_begun
            has_begun = True
            await call_next()
            if isinstance(context.result, Content) and context.result.type == "function_approval_request":
                raise _AskedError
            return _Result(context.result)

        try:
            read = await self._guard.run(
                context.function.name, call_id, _given(context), call, key=self._key_of(context), returns=_Kept
            )
        except _AskedError:
            return
        except (InputError, StoreError) as error:
            if has_begun:
                raise
            raise MiddlewareFailure(str(error)) from error
        context.result = read.value if isinstance(read, _Result) else json.dumps(read, ensure_ascii=False)

    def _key_of(self, context: FunctionInvocationContext) -> str | None:
        if self._key is not None:
            try:
                return self._key(context)
            except Exception as error:  # the framework would report it to the model as a failure of the tool
                raise InputError(
                    f"Tool '{context.function.name}': key= has raised {type(error).__name__}: {error_text(error)}. "
                    "Nothing was run"
                ) from error
        if in_activity():
            return None
        if context.session is None:
            raise InputError(
                f"Tool '{context.function.name}' cannot be guarded: its run has no session, which identifies "
                "repeated calls. Give the run a session=, or AtMostOnce a key=. Nothing was run"
            )
        # A model may count its calls from 0 in every answer; the framework gives each of them a lasting id.
        occurrence = context.metadata.get("function_call_occurrence_id")
        return key_of(context.session.session_id, str(context.metadata.get("call_id") or ""), str(occurrence or "-"))


def _given(context: FunctionInvocationContext) -> Mapping[str, Any]:
    given = context.arguments
    return dict(given) if isinstance(given, Mapping) else given.model_dump()
