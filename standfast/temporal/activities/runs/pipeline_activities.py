"""Activities of pipelines: call user functions, and read and keep the results of steps."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from standfast.checkpoints import StepResult
from standfast.errors import InputError
from standfast.messages import JSONObject, Message, ToolCall, cut, error_text
from standfast.pipeline_loop import REJECTED, Done, Evaluate, Evaluations, PipelineState, RunStep
from standfast.pipeline_loop.evaluations import tool_result
from standfast.pipelines import Pipeline, Step
from standfast.pipelines.paths import find
from standfast.runtime.inputs import check_may_start
from standfast.runtime.pipeline_results import Kept
from standfast.runtime.pipeline_steps import StepRecords
from standfast.runtime.run_keys import list_run, restarted
from standfast.runtime.users_functions import call_users
from standfast.stores.kept_values import read_kept_object
from standfast.temporal.activities.sessions.session_marks import note_run
from standfast.temporal.activities.sessions.stored_outcomes import NO_ANSWER, final_answer, recorded
from standfast.temporal.activities.worker.activity_guards import Guard, json_activity
from standfast.temporal.activities.worker.agent_host import AgentHost
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import (
    Looked,
    OpenedPipeline,
    OpenReference,
    Stepped,
    StepReference,
    WrittenOutcome,
)
from standfast.temporal.wire.inputs import INLINE_BYTES, PipelineInput
from standfast.temporal.wire.outcomes import read_outcome, shown_arguments
from standfast.temporal.wire.plans import pipeline_facts, read_plan, version_of
from standfast.temporal.wire.shown_gates import asked_inline
from standfast.temporal.wire.turn_records import CalledTool, TurnRecord, read_record, step_place
from standfast.tools.calls import call_key

_LOG = logging.getLogger("standfast")
LOOKS_EVERY = 60.0  # seconds during which a step that waits for a fix is offered to a worker


class PipelineActivities:
    """Opens the pipelines of a worker, and calls their steps' functions."""

    def __init__(self, host: AgentHost, check_new: Callable[..., Awaitable[None]]) -> None:
        self._host, self._check_new = host, check_new

    def all(self) -> list[Any]:
        return [self.open, self.step]

    # --- opening ---

    @json_activity(names.OPEN_PIPELINE)
    async def open(self, reference: OpenReference) -> OpenedPipeline | Looked:
        """Record the facts that steer the run: its plan, with its gates."""
        with Guard(self._host):
            pipeline = self._host.catalogue.pipeline()
            if "tool" in reference:
                self._host.catalogue.tool(reference["tool"])
            if "input" in reference:
                await self._host.check_queue()
            else:
                steered = await self._host.records.load_opened(reference["run"])
            if "path" in reference:
                self.stage(pipeline, PipelineState(read_plan(steered["plan"])), reference["path"])
            if "input" not in reference:  # the run is open, and searches for a worker
                return {}
            run, store = reference["run"], self._host.store
            opened = await store.load_reply(f"{run}/open", 0)
            again = {} if opened is None else {"again": True}  # messages acknowledged since are in the store
            if opened is None:
                given, info = PipelineInput.read(reference["input"]), activity.info()
                whose = (given.user_id, given.tenant_id)
                await self._check_new(
                    activity.client(), pipeline, info.workflow_id or "", info.workflow_type or "", whose
                )
                await self._call("access", lambda: check_may_start(pipeline, given.user_id))
                facts, kept = pipeline_facts(pipeline), Kept(run, store)
                who = {"user_id": given.user_id, "tenant_id": given.tenant_id}
                value = given.input
                if given.restart is not None:
                    of, first = given.restart["run_key"], given.restart["from"]
                    facts["done"], earlier = await restarted(store, pipeline, kept, who, of, first)
                    value = earlier if value is None else value
                value = await self._call("input", lambda: pipeline.write_input(pipeline.read_input(value)))
                workflow_type, workflow_id = info.workflow_type or "", info.workflow_id or ""
                if (key := given.run_key_in(names.session_of(workflow_type, workflow_id) or workflow_id)) is not None:
                    await list_run(store, workflow_type, key, run, who)
                    facts["run_key"] = key
                await asyncio.gather(kept.begin(value, who), note_run(store, {"run": run}))
                opened = await store.save_reply(f"{run}/open", 0, to_json(facts).decode())
            steers = {**read_kept_object("what steers this run", opened), **again, **self._host.surroundings}
            steers.pop("run_key", None)  # the workflow knows it
            return cast(OpenedPipeline, steers)

    # --- steps ---

    @json_activity(names.STEP)
    async def step(self, reference: StepReference) -> Stepped:
        """Keep the result of a step, and make the input of the next one, or the result of the run."""
        try:
            return await self._step(reference)
        except ApplicationError as error:
            if error.type != names.NOT_HERE or "raised" not in reference:
                raise
            raise _another_worker(error.message) from None

    async def _step(self, reference: StepReference) -> Stepped:
        with Guard(self._host):
            pipeline, kept = self._host.catalogue.pipeline(), Kept(reference["run"], self._host.store)
            if self._version(pipeline) in reference.get("raised", ()):
                raise _another_worker(f"this worker's version of pipeline '{pipeline.name}' has already raised")
            await kept.find("?who")
            opened = await self._host.records.load_opened(reference["run"])
            known = {key: Done(value) for key, value in reference.get("known", {}).items()}
            work = Work(self, pipeline, kept, PipelineState(read_plan(opened["plan"]), known), opened)
            found: Stepped = {}
            at = ""
            try:
                if "done" in reference:
                    at = reference["done"]["path"]
                    failed = await work.keep(**reference["done"])
                    if failed is not None:
                        return {"kept": at, "failed": failed}
                    found["kept"] = at
                if "make" in reference:
                    at = reference["make"]["path"]
                    found["made"] = await work.make(**reference["make"])
                if "end" in reference:
                    found["result"] = await work.result(**reference["end"])
            except InputError as error:  # by today's declaration: at the start the input was readable
                raise self._step_error(at, error, error_text(error)) from None
            return found

    def _version(self, pipeline: Pipeline) -> str:
        return version_of(pipeline, self._host.build)

    def _step_error(self, path: str, error: Exception, text: str) -> ApplicationError:
        """Return the error that pauses a run at a step until a later version of the declaration no longer raises it."""
        version = self._version(self._host.catalogue.pipeline())
        detail = {"failed_step": path, "type": type(error).__name__, "version": version}
        return ApplicationError(cut(text, 4_000), detail, type=names.STEP_ERROR, non_retryable=True)

    # --- users' functions ---

    async def _call(self, what: str, function: Callable[[], Any], *, step: str | None = None) -> Any:
        """Call a function declared by the user, where user code runs.

        Raises:
            ApplicationError: the function raised an error. At a step the run then pauses until the function is fixed.
        """
        try:
            return await self._host.thread.run(call_users(function))
        except InputError:
            raise
        except Exception as error:
            _LOG.warning("%s raised", what, exc_info=error)  # the server keeps 4 KB of a failure, without tracebacks
            text = f"{what} raised {type(error).__name__}: {cut(error_text(error), 2_000)}"
            if step is not None:
                raise self._step_error(step, error, text) from None
            raise ApplicationError(text, type=type(error).__name__, non_retryable=True) from None

    def stage(self, pipeline: Pipeline, state: PipelineState, path: str) -> Any:
        """Return the step or stage at a path, if this worker has it and its kind still matches the plan."""
        try:
            found = find(pipeline, path)
        except InputError as error:
            raise self._host.catalogue.not_here(path, str(error), step=path) from None
        if found.kind != (planned := state.planned(path).kind):
            text = f'Step "{path}" of workflow "{pipeline.name}" is now of kind {found.kind}, not {planned}.'
            raise self._host.catalogue.not_here(path, text, step=path)
        asked = found.approval if isinstance(found, Step) else None
        if asked is not None and (asked.edit is not None) != state.planned(path).edits:
            text = f'Gate "{path}" of workflow "{pipeline.name}" has changed its edit= since it was opened.'
            raise self._host.catalogue.not_here(path, text, step=path)
        return found


class Work:
    """One activity's part in a run."""

    def __init__(
        self,
        activities: PipelineActivities,
        pipeline: Pipeline,
        kept: Kept,
        state: PipelineState,
        opened: Mapping[str, Any],
    ) -> None:
        self._activities, self._pipeline, self._kept, self._state = activities, pipeline, kept, state
        self._tools = opened["tools"]  # the facts of each, as recorded at the start
        self._run_key = opened.get("run_key")
        self._steps = StepRecords(kept, lambda: self._evaluations, self._call)

    def _stage(self, path: str) -> Any:
        return self._activities.stage(self._pipeline, self._state, path)

    @property
    def _evaluations(self) -> Evaluations:
        who = {**self._kept["?who"], "run_key": self._run_key}
        return Evaluations(self._pipeline, self._state, self._kept.__getitem__, **who)

    # --- the result of a step ---

    async def keep(
        self,
        path: str,
        status: str = "complete",
        response: str = "",
        iterations: int = 0,
        session: str | None = None,
        outcome: WrittenOutcome | None = None,
        ran: int = 0,
        output: Any = None,
    ) -> tuple[str, str] | None:
        """Keep a step's result and output; return the reason and the text if the step failed.

        Args:
            response: the response of an agent that did not complete.
            session: an agent's session, whose last answer is the result.
            outcome: a tool's outcome, as the workflow knows it.
            ran: the number of the tool's dispatch in the ledger, which has the full outcome.
            output: a gate's output.
        """
        step, store = self._stage(path), self._activities._host.store
        if step.kind == "approval":
            done = await self._steps.keep_verdict(RunStep(path, self._state.planned(path)), step, output)
            self._state = self._state.ended(path, done)
            return None
        if step.run is not None:
            if ran:
                key = call_key(0, path, ran)
                entry = (await store.load_entries(self._kept.name, [key])).get(key)
                if entry is None:
                    raise await self._activities._host.records.behind(
                        self._kept.name, f"the result of {path} is missing"
                    )
                outcome = recorded(entry)
            result = tool_result(read_outcome(outcome or {}))
        else:
            if session is not None:
                answer = final_answer(await store.load_messages(session))
                response, status = (NO_ANSWER, "error") if answer is None else (answer, status)
            result = StepResult.model_validate({"status": status, "response": response, "iterations": iterations})
        done = await self._steps.came_to(path, step, result, self._steps.type_key(path))
        if done.reason is None:
            return None
        await self._kept.keep(f"{path}?failure", result.model_dump())
        return done.reason, cut(done.error or "", 2_000)

    # --- the input of a step ---

    async def make(self, path: str, what: str) -> Any:
        """Make the next step's input; return the workflow's part of it."""
        action = Evaluate(path, cast(Any, what))
        step = self._stage(path)
        for key in self._evaluations.needs(action):
            await self._kept.find(key)
        if what == "with":
            return await self._with(path, step)
        if what == "gate":
            return await self._gate(path, step)
        done = await self._steps.evaluate(action, step)
        return done.value if done.reason is None else {"failed": [done.reason, cut(done.error or "", 2_000)]}

    async def _call(self, path: str, what: str, function: Callable[[], Any]) -> Any:
        return await self._activities._call(f"Step '{path}': {what}", function, step=path)

    async def _with(self, path: str, step: Step[Any]) -> Any:
        given = await self._steps.given_to(path, step)
        await self._steps.context_for(path, step)
        if step.run is None:
            return None
        call, who = ToolCall(id=path, name=step.run.name, arguments=given), self._kept["?who"]
        record = TurnRecord(
            message=Message(role="assistant", content="", tool_calls=(call,)),
            key=self._kept.name,
            session=self._kept.name,
            agent_id=self._kept.name,
            tools={step.run.name: CalledTool.of(step.run)},
            **who,
        )
        store, place = self._activities._host.store, step_place(self._kept.name, path)
        kept = read_record(place, 0, await store.save_reply(place, 0, record.model_dump_json()))
        (call,) = kept.calls
        shown, facts = shown_arguments(call.arguments), dict(kept.tools[call.name].facts)
        if call.name == self._state.planned(path).runs and facts == self._tools.get(call.name):
            return shown
        return {"shown": shown, "tool": call.name, "facts": facts}

    async def _gate(self, path: str, step: Step[Any]) -> Any:
        if await self._kept.find(path):
            is_rejected = RunStep(path, self._state.planned(path)).done(self._kept[path]).value == REJECTED
            return {"decided": True, **({"output": self._kept[path]} if is_rejected else {})}
        shown = asked_inline(await self._steps.asked_at(path, step), self._kept.name, path)
        editors = (
            await self._kept.editors()
            if step.approval is not None and any(one.exclude_requester for one in step.approval.chain)
            else []
        )
        return {**shown, "editors": editors} if editors else shown

    # --- the end ---

    async def result(self, done: Sequence[str], failed: Sequence[str] = ()) -> JSONObject:
        """Return the result of the run: the results of its finished steps.

        Args:
            done: keys of the plan.
            failed: the path of the step at which it ended.
        """
        state = PipelineState(self._state.stages, {key: Done() for key in done} | dict(self._state.done))
        results = {}
        for key in [f"{path}?result" for path in done] + [f"{path}?failure" for path in failed]:
            if await self._kept.find(key):
                results[key.rpartition("?")[0]] = self._kept[key]
        needed: list[str] = []
        state.outputs(needed.append)
        for key in needed:
            await self._kept.find(key)
        found = {"step_results": results, "outputs": state.outputs(self._kept.__getitem__)}
        if (size := len(to_json(found))) > 4 * INLINE_BYTES:
            text = f"the results are {size:,} bytes, more than {4 * INLINE_BYTES:,}; read them from the store"
            return {"step_results": {}, "outputs": {}, "left_out": text}
        return found


def _another_worker(text: str) -> ApplicationError:
    """Return the error of an activity that needs another version than this worker's; the server offers it again."""
    after = timedelta(seconds=min(0.25 * activity.info().attempt, LOOKS_EVERY))
    return ApplicationError(
        text, type=names.SAME_VERSION, next_retry_delay=after, category=ApplicationErrorCategory.BENIGN
    )
