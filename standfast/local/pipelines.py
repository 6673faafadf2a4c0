"""Runs pipelines in this process.

`pipeline_loop` decides the next actions. This module calls functions, runs agents and tools, and stores their results.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

from standfast.agent_loop import Decision, Gate, GateRule
from standfast.checkpoints import InterruptedResponse, PendingApproval, PipelineResult, StepResult, show_step_results
from standfast.errors import InputError
from standfast.events import PipelineEvent, StepCompleted, StepFailed, StepStarted
from standfast.local.gates import GivenDecision, judge, read_decisions, step_refusal
from standfast.local.pipeline_steps import StepRunner, nothing_of, read_previous, read_verdict
from standfast.pipeline_loop import (
    REJECTED,
    Action,
    Done,
    Ended,
    Evaluate,
    Evaluations,
    PipelineState,
    RunStep,
    Todo,
    plan,
)
from standfast.pipelines import Pipeline, Step
from standfast.pipelines.paths import find, stage_index
from standfast.pipelines.pipeline import name_of
from standfast.runtime.inputs import RunOptions, check_may_start
from standfast.runtime.pipeline_results import Kept, held
from standfast.runtime.pipeline_steps import StepRecords, verdict_result
from standfast.runtime.run_keys import check_restart, list_run, restarted
from standfast.runtime.stored_gates import AskedGate, Whose, show_gates
from standfast.runtime.users_functions import call_users
from standfast.stores.protocol import DurableStore, check_tenant_id, session_key_of
from standfast.tools import shown_with_edit

_LOG = logging.getLogger("standfast")

OnProgress = Callable[[PipelineEvent], object]


def agent_at(pipeline: Pipeline, gate: str) -> tuple[str, Step[Any]] | None:
    """Return the path and the step of the agent whose call waits at a gate; None if the gate is itself a step."""
    path, _, call = gate.rpartition("/")
    try:
        step = find(pipeline, path) if path and call else None
    except InputError:
        return None
    return (path, step) if isinstance(step, Step) and step.agent is not None else None


def check_gate(pipeline: Pipeline, gate: str) -> None:
    """Refuse a name that is not a gate: it names neither an approval nor a call of an agent.

    Raises:
        InputError: naming what it is instead.
    """
    if agent_at(pipeline, gate) is not None:
        return
    try:
        step = find(pipeline, gate)
    except InputError as error:
        raise InputError(f"{error} A gate is named by the path of its step, or by <step>/<id of a call>") from error
    if not isinstance(step, Step) or step.approval is None:
        text = f"Step '{gate}' of pipeline '{pipeline.name}' is not a gate: it has no approval"
        if isinstance(step, Step) and step.agent is not None:
            text = f"{text}; the gate of a call of its agent is {gate}/<id of the call>"
        raise InputError(text)


async def recorded(
    kept: Kept, place: str, gate: Gate, step: Step[Any], may: Callable[[str | None], object] | None
) -> Gate:
    """Return a gate after its recorded decisions.

    Its question is stored as it was when the gate opened, so people can decide even where the pipeline is not known.
    """
    if not await kept.find(f"{place}?asks"):
        await kept.keep(f"{place}?asks", gate.plain())

    async def judge(_: Gate, decision: Decision) -> str | None:
        return await step_refusal(step, may, decision)

    return await kept.gate_after(gate, judge)


@dataclass(frozen=True, slots=True)
class WaitingGates:
    """The gates at which a pipeline waits, by path: its own, and the agents whose calls wait at gates.

    Args:
        places: the places of the verdicts of the pipeline's own gates, by path.
    """

    kept: Kept
    waiting: Mapping[str, Gate | InterruptedResponse]
    places: Mapping[str, str]

    def named(self) -> list[tuple[str, str, Gate | PendingApproval]]:
        """Return the name, the message and the gate of each one."""
        found: list[tuple[str, str, Gate | PendingApproval]] = []
        for path, waits in self.waiting.items():
            if isinstance(waits, Gate):
                found.append((path, waits.rule.message or self._asked(path)["message"], waits))
            else:
                found += [(f"{path}/{item.gate}", item.message, item) for item in waits.approvals]
        return found

    def asked(self) -> list[AskedGate]:
        """Return the pipeline's own gates for the board. The calls of agents appear there under their own sessions."""
        return [
            AskedGate(gate, kept["message"], shown=kept.get("shown", ()), place=self.places[path])
            for path, gate in self.waiting.items()
            if isinstance(gate, Gate) and (kept := self._asked(path))
        ]

    def shown(self, path: str, gate: Gate) -> Sequence[Mapping[str, Any]]:
        """Return the values that people now see with the message."""
        shown: Sequence[Mapping[str, Any]] = self._asked(path).get("shown", ())
        return shown if gate.changed is None else shown_with_edit(shown, gate.changed)

    def _asked(self, path: str) -> Mapping[str, Any]:
        kept: Mapping[str, Any] = self.kept[f"{self.places[path]}?gate"]
        return kept


@dataclass(slots=True)
class _Decisions:
    """The decisions of a call.

    Args:
        own: implied by continuing after a gate; None if that is approved.
        judged: the decisions that were judged, by `id`.
    """

    given: list[Decision] = field(default_factory=list)
    own: Decision | None = None
    judged: set[int] = field(default_factory=set)

    @property
    def are_given(self) -> bool:
        return any(one is not self.own for one in self.given)


class PipelineRun:
    """One call of `run_pipeline`."""

    def __init__(
        self,
        pipeline: Pipeline,
        options: RunOptions,
        run_key: str | None,
        on_progress: OnProgress | None,
        restart: tuple[str, str] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._store = store = cast("DurableStore | None", options.get("store"))
        self._run_key, self._restart = run_key, restart
        tenant = check_tenant_id(options.get("tenant_id"))
        self._names = [f"{name}/{session_key_of(tenant, str(run_key))}" for name in pipeline.names]
        self._who = {"user_id": options.get("user_id"), "tenant_id": options.get("tenant_id")}
        self._on_progress = on_progress
        self._state = PipelineState(plan(pipeline))
        self._options = options
        self._kept_by(Kept(self._names[0], store))
        self._results: dict[str, StepResult] = {}
        self._previous: dict[str, StepResult] = {}
        self._skipped: tuple[str, ...] = ()
        self._decisions = _Decisions()
        self._places: dict[str, str] = {}  # places of the gates' verdicts, by path
        self._waiting: dict[str, Gate | InterruptedResponse] = {}  # gates, and agents whose calls wait at gates

    def _kept_by(self, kept: Kept) -> None:
        self._kept, self._runner = kept, StepRunner(kept, name=kept.name, options=self._options)
        self._steps = StepRecords(kept, lambda: self._evaluations, self._call)

    async def go(
        self,
        given: Any,
        *,
        resume_after: str | None,
        previous_results: Mapping[str, Any] | None,
        decisions: Sequence[GivenDecision],
    ) -> PipelineResult:
        """Run to the end, or to a gate that waits."""
        self._previous = read_previous(previous_results)
        self._decisions.given = list(read_decisions(decisions))
        if resume_after is not None:
            self._skip_to(resume_after)
        for decision in self._decisions.given:
            check_gate(self._pipeline, decision.gate)
        try:
            if self._store is None:
                return await self._run(given)
            async with held(self._names, self._store, self._who) as kept:
                self._kept_by(kept)
                return await self._run(given)
        except Exception as error:  # steps may have run: the error carries their results
            show_step_results(error, {**self._previous, **self._results}, self._run_key)
            raise

    async def _run(self, given: Any) -> PipelineResult:
        check_may_start(self._pipeline, self._who["user_id"])
        is_new = not await self._kept.find("?input")
        if self._restart is not None and self._store is not None:
            given = await self._restarted(given, *self._restart, store=self._store, is_new=is_new)
        elif is_new and given is None and self._store is not None and self._decisions.are_given:
            raise InputError(f"there is no run {self._run_key} of pipeline '{self._pipeline.name}' to decide on")
        elif is_new and given is None and self._pipeline.input is not None:
            raise InputError(
                f'Workflow "{self._pipeline.name}" input validation failed: there is none, and no run '
                f"{self._run_key} that was started"
            )
        if given is not None or is_new:
            given = self._pipeline.write_input(self._pipeline.read_input(given))
        if is_new and self._store is not None:
            await list_run(self._store, self._pipeline.name, str(self._run_key), self._kept.name, self._who)
        await self._kept.begin(given, self._who)
        try:
            ended = await self._advance()
        finally:  # also after a step has raised: gates before it were decided
            await show_gates(self._store, Whose(self._kept.name, **self._who), self._gates.asked())
        await self._refuse_unused()
        return self._result(ended)

    async def _restarted(self, given: Any, run_key: str, first: str, *, store: DurableStore, is_new: bool) -> Any:
        """Take the results of an earlier run from before a step, unless this run has already begun with them. Return
        the input.
        """
        if not is_new:
            await self._kept.check(self._who)
            await check_restart(self._kept, run_key, first)
            return given
        _, earlier = await restarted(store, self._pipeline, self._kept, self._who, run_key, first)
        return earlier if given is None else given

    def _skip_to(self, name: str) -> None:
        """Treat this stage and the earlier ones as done. A caller that skips gates approves them."""
        stages = self._pipeline.stages[: stage_index(self._pipeline, name) + 1]
        self._skipped = tuple(stage.name for stage in stages)
        if isinstance(stages[-1], Step) and stages[-1].kind == "approval":
            self._skipped = self._skipped[:-1]
            own = Decision(gate=name, decision="approve", by=self._who["user_id"])
            self._decisions.given.append(own)
            self._decisions.own = own
        steps = [stage for stage in stages if isinstance(stage, Step) and stage.kind in ("agent", "tool")]
        missing = [step.name for step in steps if step.name not in self._previous]
        if missing and self._store is None:
            raise InputError(nothing_of(name, missing))

    def _is_skipped(self, path: str) -> bool:
        return name_of(path.split("/")[0]) in self._skipped

    # --- progress ---

    async def _advance(self) -> Ended | None:
        """Carry out the next actions until the end. Return None if everything left waits for people.

        If an action raises, no further one is started. Running ones are awaited, since they may have effects.
        """
        running: dict[str, asyncio.Task[Done]] = {}
        error: BaseException | None = None
        try:
            while True:
                found = self._state.next_actions(running)
                if isinstance(found, Ended) and error is None:
                    return found
                if isinstance(found, Todo) and error is None:
                    self._start(found, running)
                if not running and error is not None:
                    raise error
                if not running:
                    return None
                await asyncio.wait(running.values(), return_when=asyncio.FIRST_COMPLETED)
                error = self._collect(running) or error
        finally:
            for task in running.values():
                task.cancel()
            await asyncio.gather(*running.values(), return_exceptions=True)

    def _start(self, todo: Todo, running: dict[str, asyncio.Task[Done]]) -> None:
        for action in todo.actions:
            if action.key not in running and action.key not in self._waiting:
                running[action.key] = asyncio.create_task(self._do(action))

    def _collect(self, running: dict[str, asyncio.Task[Done]]) -> BaseException | None:
        """Record the actions that have ended. Return the error, if one was raised."""
        error: BaseException | None = None
        for key in [key for key, task in running.items() if task.done()]:
            task = running.pop(key)
            if (raised := task.exception()) is not None:
                error = error or raised
            elif key not in self._waiting:
                self._state = self._state.ended(key, task.result())
        return error

    async def _do(self, action: Action) -> Done:
        try:
            return await self._carry_out(action)
        except Exception as error:  # an exception from user code carries its own traceback
            key = "" if self._run_key is None else f", run_key={self._run_key!r}"
            error.add_note(f"at step '{action.path}' of pipeline '{self._pipeline.name}'{key}")
            raise

    async def _carry_out(self, action: Action) -> Done:
        if isinstance(action, Evaluate):
            return await self._steps.evaluate(action, find(self._pipeline, action.path))
        step = find(self._pipeline, action.path)
        assert isinstance(step, Step)
        if step.kind == "approval":
            return await self._verdict(action, step)
        return await self._run_step(action.path, step)

    async def _call(self, path: str, what: str, function: Callable[[], Any]) -> Any:
        return await call_users(function)

    @property
    def _evaluations(self) -> Evaluations:
        return Evaluations(self._pipeline, self._state, self._load, run_key=self._run_key, **self._who)

    def _load(self, key: str) -> Any:
        path, mark, what = key.partition("?")
        return self._kept[f"{self._places.get(path, path)}{mark}{what}"]

    # --- agents and tools ---

    async def _run_step(self, path: str, step: Step[Any]) -> Done:
        if await self._kept.find(path) and await self._kept.find(f"{path}?result"):
            self._results[path] = StepResult(**self._kept[f"{path}?result"])
            return Done()
        previous, is_skipped = self._previous.get(path), self._is_skipped(path)
        if previous is not None and (is_skipped or previous.status == "complete"):
            return await self._came_to(path, step, previous, None)
        if is_skipped:
            raise InputError(nothing_of(self._skipped[-1], [path]))
        tries = await self._kept.count(f"{path}?failed")
        given = await self._steps.given_to(path, step, tries=tries)
        context = await self._steps.context_for(path, step, tries=tries)
        self._tell(StepStarted(path))
        decisions = [decision for decision in self._decisions.given if decision.gate.startswith(f"{path}/")]
        self._decisions.judged.update(map(id, decisions))
        own = [decision.model_copy(update={"gate": decision.gate.removeprefix(f"{path}/")}) for decision in decisions]
        found = await self._runner.run(path, step, given, own, context, self._evaluations.dependencies(path))
        if isinstance(found, InterruptedResponse):
            self._waiting[path] = found
            return Done()
        result, begins_anew = found
        done = await self._came_to(path, step, result, self._steps.type_key(path, tries))
        if done.reason is None:
            self._tell(StepCompleted(path, result.iterations, result.response))
        else:
            if begins_anew:
                await self._failed(path, result)
            self._tell(StepFailed(path, done.reason, done.error or ""))
        return done

    async def _failed(self, path: str, result: StepResult) -> None:
        """Note that a later run starts a step again. Earlier gates then ask again, since a verdict counts once."""
        for gate, place in self._places.items():
            if place in self._kept and not self._went_back(gate):
                await self._kept.add(f"{gate}?again", path)
        await self._kept.add(f"{path}?failed", result.response)

    def _went_back(self, gate: str) -> bool:
        """Whether a gate's rejection has led back: its correction is still to do, and it does not ask again."""
        done = self._state.done.get(gate)
        return done is not None and done.value == REJECTED and self._state.planned(gate).goes_back

    async def _came_to(self, path: str, step: Step[Any], result: StepResult, began: str | None) -> Done:
        """Note the result of a step, and store it if it is an output."""
        self._results[path] = result
        return await self._steps.came_to(path, step, result, began)

    def _tell(self, event: PipelineEvent) -> None:
        if self._on_progress is None:
            return
        try:
            self._on_progress(event)
        except Exception as error:  # a listener must not fail the run
            _LOG.warning("on_progress raised at step %s", event.step, exc_info=error)

    # --- gates ---

    async def _find_place(self, path: str) -> str:
        """Return the place of a gate's verdict, next to earlier verdicts that a later failure has voided."""
        if path not in self._places:
            self._places[path] = f"{path}?{count}" if (count := await self._kept.count(f"{path}?again")) else path
        return self._places[path]

    async def _verdict(self, action: RunStep, step: Step[Any]) -> Done:
        """Return a gate's verdict: from the store, from the result of an earlier call, or by asking."""
        path, place = action.path, await self._find_place(action.path)
        previous = read_verdict(action, self._previous.get(path), is_skipped=self._is_skipped(path))
        if await self._kept.find(place):
            done = action.done(self._kept[place])
            if action.step.edits and done.value != REJECTED:
                await self._steps.keep_value(path, step, self._kept[place], place)
        elif previous is not None:
            done = await self._steps.keep_verdict(action, step, previous, place)
        else:
            done = await self._at_gate(action, step)
        has_value = f"{place}?value" in self._kept
        if done.value == REJECTED or has_value:
            self._results[path] = verdict_result(self._kept[place], self._load(f"{path}?value") if has_value else None)
        return done

    async def _at_gate(self, action: RunStep, step: Step[Any]) -> Done:
        now, path, approval = datetime.now(UTC), action.path, step.approval
        assert approval is not None
        is_skipped = self._is_skipped(path)
        place = self._places[path]
        shown = await self._steps.asked_at(path, step, place=place, since=now.isoformat())
        since, people = datetime.fromisoformat(shown["since"]), [self._who["user_id"], *await self._kept.editors()]
        gate = Gate.of_step(path, GateRule.of(approval), shown, since=since, requesters=people)
        gate = (await recorded(self._kept, place, gate, step, self._pipeline.access.get("approve"))).at(now)
        decisions = [decision for decision in self._decisions.given if decision.gate == path]
        if is_skipped:  # a caller that treats the gate as done approves it
            decisions.append(Decision(gate=path, decision="approve", by=self._who["user_id"]))
        for decision in decisions:
            if decision is not self._decisions.own or gate.status != "approved":
                gate = await self._decide(gate, step, decision, now)
        if gate.status == "open":
            self._waiting[path] = gate
            return Done()
        done = action.decided(gate)
        return done if done.reason is not None else await self._steps.keep_verdict(action, step, gate.output, place)

    async def _refuse_unused(self) -> None:
        """Refuse decisions at gates that were not open. With a store, they are recorded as refused."""
        made = self._decisions
        unused = [one for one in made.given if id(one) not in made.judged and one is not made.own]
        if self._store is None or not unused:
            return
        problems = []
        for decision in unused:
            kept, own = await self._record_of(decision)
            has = await kept.has_counted(own)
            if has:
                continue  # the same decision was made before, and counted
            why = "was decided already" if decision.gate in self._places or has is False else "is not reached yet"
            problems.append(f"gate {decision.gate} {why}")
            await self._kept.record(decision, datetime.now(UTC), problems[-1])
        if problems:
            raise InputError(f"{'; '.join(problems)}. Finished steps are kept: call again without these decisions")

    async def _record_of(self, decision: Decision) -> tuple[Kept, Decision]:
        """Return the place of a decision's record, and the decision under the name that its gate has there."""
        agent = agent_at(self._pipeline, decision.gate)
        if agent is None:
            return self._kept, decision
        path, step = agent
        own = decision.model_copy(update={"gate": decision.gate.removeprefix(f"{path}/")})
        return await self._runner.calls_of(path, step), own

    async def _decide(self, gate: Gate, step: Step[Any], decision: Decision, now: datetime) -> Gate:
        made = self._decisions
        made.judged.add(id(decision))
        if decision is made.own or decision not in made.given:  # a caller that continues after a gate has seen it
            decision = decision.model_copy(update={"digest": gate.shown_digest})
        may = self._pipeline.access.get("approve")
        return await judge(gate, decision, now, self._kept, step=step, may=may)

    # --- the result ---

    @property
    def _gates(self) -> WaitingGates:
        return WaitingGates(self._kept, self._waiting, self._places)

    def _result(self, ended: Ended | None) -> PipelineResult:
        make = partial(
            PipelineResult,
            step_results=self._results,
            outputs=self._evaluations.outputs(),
            run_key=self._run_key,
            journal_key=None if self._store is None else self._kept.name,
        )
        if ended is None:
            waiting = self._gates.named()
            name, message, gate = waiting[0]
            return make(
                status="pending",
                pending_step=name,
                approval_message=message,
                digest=gate.shown_digest if isinstance(gate, Gate) else gate.digest,
                shown=self._gates.shown(name, gate) if isinstance(gate, Gate) else (),
                deadline=gate.deadline,
                approved_by=gate.approved_by,
                pending_steps=tuple(name for name, _, _ in waiting),
                approvals=tuple(replace(item, gate=at) for at, _, item in waiting if isinstance(item, PendingApproval)),
            )
        if ended.reason is None:
            return make(status="complete")
        return make(status="error", failed_step=ended.failed_step, error_reason=ended.reason, error=ended.error)
