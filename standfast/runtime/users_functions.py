"""Calls user declarations: functions, handlers, approvals, and types that parse answers, with a time limit.

An answer and its calls are stored before they are parsed, outside the event loop. On a worker's loop, an answer that a
type's validators never finish would stop that worker, and then every other worker that parses it.
"""

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from standfast.agent_loop import (
    Decision,
    GateRule,
    ToolFacts,
    ToolState,
    cancelled_itself,
    cut_off,
    edit_problem,
    open_gates,
    refused_as_changed,
    verify_cut_off,
)
from standfast.agents import Agent
from standfast.checkpoints import Question
from standfast.errors import InputError
from standfast.messages import JSONObject, ToolCall, Tripped, cut, error_text
from standfast.pipeline_loop import Done, edit_problem_at
from standfast.pipelines import Step
from standfast.runtime.tasks import OwnCancels, in_own_task
from standfast.time_limits import time_limit
from standfast.tools import Failed, Outcome, Tool, ToolContext, Unknown
from standfast.tools.tool import settled_by_verify

T = TypeVar("T")

READ_SECONDS = 10.0
_CHECK_SECONDS = 60.0  # of guardrails, which may call a model
_LOG = logging.getLogger("standfast")


def begin_in_thread(call: Callable[[], Any]) -> asyncio.Future[Any]:
    """Begin a function that may block in its own thread; cancelling the future abandons it.

    In a pool it could wait for a thread, and start after its timeout had already been reported. The thread is a daemon,
    so that a hanging function does not keep the process from exiting.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            report, value = future.set_result, context.run(call)
        except StopIteration:  # a future cannot carry it
            report, value = future.set_exception, RuntimeError("the tool raised StopIteration")
        except BaseException as error:
            report, value = future.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nothing waits for the result
            loop.call_soon_threadsafe(lambda: None if future.done() else report(value))

    threading.Thread(target=work, name="tool", daemon=True).start()
    return future


async def in_thread(call: Callable[[], Any], *, limit: asyncio.Timeout) -> Any:
    """Run a function in a thread, and return its result.

    When the run is cancelled, the function is awaited: it cannot be stopped, and an outcome that will soon be known
    should not be called unknown. After `limit` it is abandoned.
    """
    future = begin_in_thread(call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        try:
            if limit.expired():
                raise
            await asyncio.wait({future})
        except asyncio.CancelledError:
            future.cancel()  # abandoned: nothing reads its result
            raise
        return future.result()


async def call_users(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function, and await its result if it is async.

    Raises:
        RuntimeError: it raised SystemExit, which would end an event loop and the thread of all handlers; or a cancel
            that was not requested.
    """
    with OwnCancels(RuntimeError, "it was cancelled from within"):
        try:
            result = function(*arguments)
            return await result if isinstance(result, Awaitable) else result
        except SystemExit as error:
            raise RuntimeError(f"SystemExit: {error}") from error


async def output_problem(agent: Agent, response: str | None) -> str | None:
    """Return why a final answer does not fit the agent's `output`; None if it does, or if either is missing."""
    return None if response is None else (await read_answer(agent, response))[0]


async def read_answer(agent: Agent, response: str) -> tuple[str | None, Any]:
    """Return why a final answer does not fit the agent's `output`, and the output; without such a type, the text."""
    if agent.output is None:
        return None, response
    try:
        return None, await _in_time(lambda: agent.read_output(response))
    except TimeoutError:
        return f"the answer does not fit the agent's output: reading it took more than {READ_SECONDS:g} s", None
    except ValueError as fault:
        return f"the answer does not fit the agent's output: {cut(str(fault), 4_096)}", None
    except (Exception, SystemExit) as error:  # raised by a user's validator
        return f"the answer cannot be read by the agent's output: {type(error).__name__}: {error_text(error)}", None


async def read_in_time(step: Step[Any], read: Callable[[], tuple[Done, Any]]) -> tuple[Done, Any]:
    """Return the meaning of a step's result, and its output."""
    try:
        return await _in_time(read)
    except TimeoutError:
        text = f"Step '{step.name}': reading its output took more than {READ_SECONDS:g} s"
        return Done(reason="schema-mismatch", error=text), None


async def read_arguments(tool: Tool[..., Any], read: Callable[[], T], seconds: float | None = None) -> T:
    """Return a call's arguments, or the edited ones, as the tool's method reads them.

    Args:
        seconds: the time limit of the call, if that is shorter than the limit for parsing.

    Raises:
        InputError: with the reason, in words for the model; or there is not enough time.
    """
    if tool.reads_at_once:
        return read()
    longest = READ_SECONDS if seconds is None else min(READ_SECONDS, seconds)
    try:
        return await _in_time(read, longest)
    except TimeoutError:
        text = f'Invalid input for tool "{tool.name}": the arguments could not be read within {longest:g} s'
        raise InputError(text) from None


async def refused_in_time(
    tool: Tool[..., Any], arguments: JSONObject | str, *, approved: bool, seconds: float | None = None
) -> Failed | None:
    """Return the outcome of a call that does not run because another tool now has its name; None if it may run."""
    try:
        return await read_arguments(tool, lambda: refused_as_changed(tool, arguments, approved=approved), seconds)
    except InputError as error:
        return Failed(error_text(error))


async def _in_time(read: Callable[[], T], seconds: float | None = None) -> T:
    async with time_limit(READ_SECONDS if seconds is None else seconds):
        result: T = await begin_in_thread(read)
    return result


class _OwnCancelError(Exception):
    """A user's function raised a cancel that was not requested."""


async def run_bounded(
    ask: Callable[..., Coroutine[Any, Any, Outcome | None]],
    tool: Tool[..., Any],
    facts: ToolFacts,
    arguments: JSONObject | str,
    context: ToolContext,
    *,
    state: ToolState,
    limit: int,
    seconds: float | None,
    left: float | None = None,
) -> Outcome | None:
    """Run one attempt, or `verify` once, and cut it off after `seconds`.

    Args:
        left: the rest of the `seconds`, if the call's dependencies took some of them.
        ask: the tool's `attempt` or `ask_whether_it_happened`.
        facts: decide what a timeout means.
        state: the agent's; the handler's changes to it are stored with its result.
        limit: the largest result in bytes.
    """
    loop, still_runs = asyncio.get_running_loop(), False
    asks_verify = ask == tool.ask_whether_it_happened
    context.state = state.read()
    try:
        async with time_limit(seconds if left is None else left) as until:

            async def read(function: Callable[[], T]) -> T:
                end = until.when()
                until.reschedule(None)  # a call that is cut off here has not begun: its outcome is known
                found = await read_arguments(tool, function, seconds)
                until.reschedule(end)  # not after an error: the limit may have passed, and would hide it
                return found

            async def write(value: object, limit: int) -> Outcome:
                def written() -> Outcome:
                    outcome = tool.write_result(value, limit)
                    return state.with_change(outcome, context.state, tool.name, parallel=facts.parallel)

                if tool.writes_at_once(value) and context.state is None:
                    return written()
                end = until.when()
                if not until.expired():
                    until.reschedule(None)  # a call that is cut off here has run: its outcome is known
                left = None if end is None else end - loop.time()
                return await _write_result(tool, written, left)

            async def within(function: Callable[[], Any]) -> Any:
                nonlocal still_runs
                try:
                    return await in_thread(function, limit=until)
                finally:
                    still_runs = until.expired()

            with OwnCancels(_OwnCancelError):
                return await in_own_task(ask(arguments, context, limit=limit, read=read, write=write, in_thread=within))
    except TimeoutError:
        assert seconds is not None
        if asks_verify:
            return verify_cut_off(seconds)
        return cut_off(facts, tool.name, seconds, still_runs=still_runs)
    except _OwnCancelError:
        return Unknown("verify was cancelled from within") if asks_verify else cancelled_itself(facts)


async def verified(
    tool: Tool[..., Any], outcome: Outcome, ask_verify: Callable[[], Awaitable[Outcome | None]]
) -> Outcome:
    """Return the outcome of an attempt after `verify`, if the attempt was cut off and its outcome is open."""
    if not isinstance(outcome, Unknown) or not outcome.cut_off or tool.verify is None:
        return outcome
    return settled_by_verify(outcome, await ask_verify())


async def _write_result(tool: Tool[..., Any], write: Callable[[], Outcome], left: float | None) -> Outcome:
    """Return the outcome that the tool's method writes, even if the run is cancelled in the meantime.

    Args:
        left: the remaining seconds of the call. A handler may have used them up, so there is always at least one.
    """
    longest = READ_SECONDS if left is None else min(READ_SECONDS, max(left, 1.0))
    try:
        async with time_limit(longest) as limit:
            outcome: Outcome = await in_thread(write, limit=limit)
            return outcome
    except (TimeoutError, asyncio.CancelledError):
        if not limit.expired():
            raise
        text = f'Tool "{tool.name}" ran, but its result was lost: it could not be written within {longest:.3g} s'
        return Failed(text)


async def ask_at_gates(
    agent: Agent, calls: Iterable[ToolCall], **options: Any
) -> tuple[list[Question], dict[str, str]]:
    """Return the gates that calls must pass, and by id the reasons why some cannot run at all; see `open_gates`."""
    read = await asyncio.gather(*(_as_read(agent, call) for call in calls))
    questions, refused, faults = open_gates(agent, read, **options)
    for fault in faults:
        _LOG.warning("Agent %s: %s", agent.name, fault)
    return questions, refused


async def _as_read(agent: Agent, call: ToolCall) -> tuple[ToolCall, InputError | None]:
    try:
        normal = await normal_arguments(agent.tool_map[call.name], call.arguments)
    except InputError as error:
        return call, error
    return ToolCall(id=call.id, name=call.name, arguments=normal), None


async def edit_refusal(
    agent: Agent,
    call: ToolCall,
    decision: Decision,
    rule: GateRule,
    check: Callable[[ToolCall], Awaitable[Iterable[Tripped]]],
) -> str | None:
    """Return why the arguments of an edit cannot replace the model's, or None if they can; see `edit_problem`."""

    async def check_in_time(edited: ToolCall) -> Iterable[Tripped]:
        try:
            async with time_limit(_CHECK_SECONDS):
                return await check(edited)
        except TimeoutError:
            raise InputError(f"guardrails took more than {_CHECK_SECONDS:g} s") from None

    return await edit_problem(agent, call, decision, rule, read=normal_arguments, check=check_in_time)


async def gate_edit_refusal(step: Step[Any], decision: Decision) -> str | None:
    """Return the same for an edit of the value that a pipeline's gate shows; see `edit_problem_at`."""
    try:
        return await _in_time(lambda: edit_problem_at(step, decision))
    except TimeoutError:
        return f"gate {decision.gate}: edit: reading it took more than {READ_SECONDS:g} s"
    except (Exception, SystemExit) as error:  # raised by a user's validator
        return f"gate {decision.gate}: edit: {type(error).__name__}: {error_text(error)}"


async def normal_arguments(tool: Tool[..., Any], arguments: JSONObject | str) -> JSONObject:
    """Return arguments as the handler of a tool gets them, as plain JSON.

    Raises:
        InputError: they do not fit.
    """
    return await read_arguments(tool, lambda: tool.normal_arguments(arguments))
