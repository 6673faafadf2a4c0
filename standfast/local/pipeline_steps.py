"""Runs a step of a pipeline: an agent, or a tool without a model.

With a store, each step has its own session, so a crash in the middle of a step is repaired like a crash of any run.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError

from standfast.agent_loop import Decision, agent_failure, outcome_of, said_by_agent
from standfast.agents import Agent
from standfast.checkpoints import InterruptedResponse, RunResult, StepResult
from standfast.errors import InputError, TerminalError
from standfast.llm import ToolDescription
from standfast.local.runs import Run
from standfast.local.tool_calls import RunRequest
from standfast.messages import JSONObject, LLMResponse, Message, ToolCall, error_text, explain, read_json
from standfast.pipeline_loop import RunStep
from standfast.pipeline_loop.evaluations import begins_anew, tool_result
from standfast.pipelines import Step
from standfast.runtime.inputs import RunOptions
from standfast.runtime.pipeline_results import Kept
from standfast.stores.protocol import DurableStore, session_key_of
from standfast.tools import Asked, Failed, Outcome, Tool


class StepRunner:
    """Runs the steps of one run of a pipeline.

    Args:
        name: of the run in the store.
        options: of the agents' runs.
    """

    def __init__(self, kept: Kept, *, name: str, options: RunOptions) -> None:
        self._kept, self._name, self._options = kept, name, options

    async def run(
        self, path: str, step: Step[Any], given: Any, decisions: Sequence[Decision], context: Any, deps: Any
    ) -> tuple[StepResult, bool] | InterruptedResponse:
        """Return the result of a step, and whether a later run begins the step again if it failed.

        If calls of its agent wait for approval, return the interrupted run.

        Args:
            given: the message for its agent, or the arguments for its tool.
            decisions: on calls of its agent.
            context: of its agent's run.
            deps: makes the dependencies of its tool.
        """
        if step.run is not None:
            one_call: RunOptions = {**self._options, "llm": _OneCall(step.run, given)}
            outcome = _of_tool(await self._go(path, Agent(step.name, tools=[step.run], deps=deps), "Run.", one_call))
            return tool_result(outcome), begins_anew(outcome)
        agent = cast(Agent, step.agent)
        try:
            result = await self._go(path, agent, given, {**self._options, "context": context}, decisions)
        except TerminalError as error:
            return StepResult(status="error", response=agent_failure(agent.name, error_text(error))), True
        if isinstance(result, InterruptedResponse) and result.approvals and self._options.get("store") is not None:
            return result
        return _of_agent(result), True

    async def calls_of(self, path: str, step: Step[Any]) -> Kept:
        """Return the place of the decisions on the calls of a step's agent."""
        session = step_session(self._name, path, await self._kept.count(f"{path}?failed"))
        name = f"{cast(Agent, step.agent).name}/{session_key_of(self._options.get('tenant_id'), session)}"
        return Kept(name, cast("DurableStore | None", self._options.get("store")))

    async def _go(
        self, path: str, agent: Agent, message: str, options: RunOptions, decisions: Sequence[Decision] = ()
    ) -> RunResult:
        store, has_begun = options.get("store"), False
        if store is not None:
            session = step_session(self._name, path, await self._kept.count(f"{path}?failed"))
            key = session_key_of(options.get("tenant_id"), session)
            has_begun = await store.load_session(key) is not None
            options = {**options, "session_id": session}
        if has_begun:
            options = {**options, "context": None}  # its session already has a context
        work = Run(RunRequest(agent=agent, **options))
        return await work.go(message=None if has_begun else message, decisions=decisions)


def step_session(run: str, path: str, attempt: int) -> str:
    """Return the id of a step's session: a readable part, and a digest that is unique to the step."""
    whole = f"{run}/{path}" + (f"~{attempt}" if attempt else "")
    return f"{whole.replace('/', '.')[:150]}.{hashlib.blake2b(whole.encode(), digest_size=8).hexdigest()}"


class _OneCall:
    """A model that requests one call, and is then done."""

    def __init__(self, tool: Tool[..., Any], arguments: JSONObject) -> None:
        self._call = ToolCall(id="call", name=tool.name, arguments=arguments)

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolDescription], **_: Any) -> LLMResponse:
        done = any(message.role == "tool" for message in messages)
        return LLMResponse(text="done") if done else LLMResponse(tool_calls=(self._call,))


def _of_agent(result: RunResult) -> StepResult:
    if result.status != "interrupted":
        said = said_by_agent(result.status, result.response, result.error)
        return StepResult(status=result.status, response=said, iterations=result.iterations)
    if result.approvals:
        what = f"its tool '{result.approvals[0].tool}'" if result.approvals[0].tool else "its answer"
        text = f"{what} waits for approval, which needs a store"
    else:
        text = f"its agent asks a question, which cannot be answered here: {result.question}"
    return StepResult(status="error", response=text, iterations=result.iterations)


def _of_tool(result: RunResult) -> Outcome:
    """Return the outcome of the one call."""
    if result.interrupted:
        return Asked(result.question, any(one.unknown is not None for one in result.checkpoint.questions or ()))
    message = next((message for message in reversed(result.messages) if message.role == "tool"), None)
    return Failed(result.error or result.response) if message is None else outcome_of(message)


def nothing_of(name: str, missing: Sequence[str]) -> str:
    """Return why a step does not count as done."""
    return (
        f"resume_after={name!r} skips {', '.join(missing)}, but previous_results has no result of it: give the "
        "step_results of the earlier run"
    )


def read_previous(given: Mapping[str, Any] | None) -> dict[str, StepResult]:
    """Read the `step_results` of an earlier run.

    Raises:
        InputError: naming the entry that cannot be used.
    """
    try:
        return {path: StepResult.model_validate(result) for path, result in (given or {}).items()}
    except (ValidationError, AttributeError) as error:
        text = explain(error) if isinstance(error, ValidationError) else f"it is not a mapping, but {given!r:.80}"
        raise InputError(f"previous_results cannot be used: {text}") from error


def read_verdict(action: RunStep, result: StepResult | None, *, is_skipped: bool) -> Any:
    """Read a verdict at a gate of an earlier run, from its `step_results`; None if the gate asks people.

    If people could edit the value, its approval counts for a run that continues after a later step.

    Raises:
        InputError: the result is not a verdict.
    """
    if result is None:
        return None
    try:
        verdict = read_json(result.response)
    except ValueError:
        verdict = None
    match verdict:
        case {"decision": "reject", "by": [*_], "comment": str() | None, "edit": None}:
            return verdict
        case {"decision": "approve", "by": [*_], "comment": str() | None, "edit": edit} if action.step.edits:
            return verdict if is_skipped and edit is not None else None
    raise InputError(f"previous_results: {action.path} is a gate, and {result.response!r:.80} is not its verdict")
