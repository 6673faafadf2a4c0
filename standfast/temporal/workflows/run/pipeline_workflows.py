"""The workflow of a pipeline: asks the plan which steps may run, and runs them as activities and child workflows.

The workflow sees names, numbers and references. Inputs and outputs are in the store. The plan was recorded at its
start. No user code runs here.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError

from standfast.agent_loop import Decision, Gate, GateRule, LoopState, agent_failure, said_by_agent
from standfast.agents import Loop
from standfast.messages import JSONObject, cut
from standfast.pipeline_loop import Action, Done, Ended, Evaluate, PipelineState, RunStep, Todo
from standfast.pipelines.paths import place_of
from standfast.runtime.child_agents import child_session
from standfast.stores.protocol import session_key_of
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import AtGate, CameTo, OpenedPipeline, OpenReference, Stepped, StepReference
from standfast.temporal.wire.boards import Whose
from standfast.temporal.wire.inputs import AgentInput, PipelineInput
from standfast.temporal.wire.outcomes import write_outcome
from standfast.temporal.wire.plans import read_gates, read_plan
from standfast.temporal.wire.run_state import Call, Progress, Turn
from standfast.temporal.wire.shown_gates import shown_with
from standfast.temporal.wire.snapshots import Surroundings, ToolFacts, read_tool_facts
from standfast.temporal.workflows.board.run_board import Opening
from standfast.temporal.workflows.board.visibility import Refused, pipeline_details, show_started
from standfast.temporal.workflows.board.waiting_items import Waiting, whose
from standfast.temporal.workflows.calls.child_agents import agent_result
from standfast.temporal.workflows.calls.tool_calls import Calls
from standfast.temporal.workflows.gates.gate_keeper import GateKeeper
from standfast.temporal.workflows.run.activity_options import STORE_OPTIONS, summary
from standfast.temporal.workflows.run.activity_results import SkippedError, failed, why
from standfast.temporal.workflows.run.agent_run_state import RunState
from standfast.temporal.workflows.run.handlers import RunHandlers
from standfast.temporal.workflows.run.run_lifetime import carried_in, is_long, may_continue, run_to_end, until_told
from standfast.temporal.workflows.run.run_parts import RunParts, read_input
from standfast.tools import Outcome

NOTHING = object()  # was made for the next step, since the step before it failed
DONE = Done()
CANCELLED = Done(reason="cancelled", error="the run was cancelled")


class PipelineRun(RunHandlers):
    """One run of a pipeline; its workflow type is in `workflow_types`."""

    asks_groups = True

    def __init__(self, data: Any, extra: tuple[Any, ...]) -> None:
        self._data, self._extra = data, extra
        self._given = PipelineInput()
        carried = carried_in(data) or {}
        self.journal_key = carried.get("run") or workflow.info().original_execution_run_id
        self._state: PipelineState | None = None
        self._rules: dict[str, GateRule] | None = None  # of the gates, once the run is open
        self._tools: dict[str, ToolFacts] = {}
        self._tasks: dict[str, asyncio.Task[Done]] = {}
        self._is_leaving = False  # nothing more is started, since the run is about to continue as new
        self._made: dict[str, asyncio.Future[Any]] = {}  # the inputs that activities make for the next steps, by key
        self._result: JSONObject | None = None
        self._parts = parts = RunParts(self)
        self._board, self._running = parts.board, parts.running
        self._gates = GateKeeper(parts, self)
        if carried:  # before any query arrives: the items that were open in the previous run are open
            self._gates.left = dict(carried["gates"])
            self._gates.take_over(carried)

    async def drive(self) -> JSONObject:
        """Run to the end; see `run_to_end`."""
        return await run_to_end(self._main(), self._running, self._board, self._senders_told)

    async def _senders_told(self) -> None:
        await self._gates.senders_told()
        await until_told(workflow.all_handlers_finished)

    async def _main(self) -> JSONObject:
        is_continued = workflow.info().continued_run_id is not None
        self._given = read_input(PipelineInput.read, self._data, self._extra, carried=is_continued)
        self._state = await self._open()
        self._board.tell()
        while True:
            found = self._state.next_actions(self._tasks)
            if isinstance(found, Ended):
                return await self._end(found)
            self.leave_if_long()
            if self._is_leaving and not self._tasks and not self._running.cancelled:
                await self._continue_as_new()
            if not self._running.cancelled and not self._is_leaving:
                self._start(found)
            if not self._tasks:
                raise asyncio.CancelledError
            await workflow.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            self._state = self._collect(self._state)
            self._board.tell()

    def _start(self, todo: Todo) -> None:
        for action in todo.actions:
            if action.key not in self._tasks:
                self._tasks[action.key] = asyncio.create_task(self._do_unless_cancelled(action))

    def _collect(self, state: PipelineState) -> PipelineState:
        """Take in the work that has ended; cancelled work does not count as done."""
        for key in [key for key, task in self._tasks.items() if task.done()]:
            done = self._tasks.pop(key).result()
            if done is not CANCELLED:
                state = state.ended(key, done)
        return state

    # --- beginning ---

    def opening(self) -> Opening:
        reference: OpenReference = {"run": self.journal_key}
        if self._state is None:
            reference["input"] = {name: value for name, value in self._given.plain().items() if name != "carried"}
        return names.OPEN_PIPELINE, reference

    def whose(self) -> Whose:
        return whose(self.journal_key, None, self._given.tenant_id, self._given.user_id)

    async def _open(self) -> PipelineState:
        carried = self._given.carried or {}
        try:
            opened: OpenedPipeline | None = await self._parts.workers.open()
        except FailureError as error:
            raise failed(error) from None
        if opened is None:
            raise asyncio.CancelledError
        self.learn(opened)
        self._running.note_resets(opened.pop("again", False))
        self._rules = read_gates(opened["gates"])
        self._gates.refuse_closed_to_all()
        self._tools = {name: read_tool_facts(facts) for name, facts in opened["tools"].items()}
        done = {key: Done(value) for key, value in opened.get("done", {}).items()}
        if carried:
            done = {key: Done(*came_to) for key, came_to in carried["done"].items()}
        return PipelineState(read_plan(opened["plan"]), done)

    def learn(self, found: Surroundings) -> None:
        if found["search"] and not self._board.search:
            show_started(None, self._given.tenant_id)
        self._parts.learn(found)

    # --- what may run ---

    async def _do_unless_cancelled(self, action: Action) -> Done:
        try:
            return await self._do(action)
        except SkippedError as skipped:
            return _skipped(action.path, skipped)
        except asyncio.CancelledError:
            if not self._running.cancelled:
                raise
            return CANCELLED

    async def _do(self, action: Action) -> Done:
        match action:
            case Evaluate(path, what):
                return await self._evaluate(path, what)
            case RunStep(_, step) if step.kind == "approval":
                return await self._decide(action)
            case RunStep(path, step) if step.runs in self._tools and step.kind == "tool":
                return await self._call_tool(path, step.runs)
            case RunStep(path, step):
                return await self._run_agent(path, step.runs)

    async def _evaluate(self, path: str, what: str) -> Done:
        made = await self._make(path, what)
        if isinstance(made, dict) and "failed" in made:
            return Done(None, *made["failed"])
        return Done(made)

    async def _run_agent(self, path: str, agent: str | None) -> Done:
        await self._make(path, "with")
        if self._running.cancelled:
            return CANCELLED
        session = child_session(self.journal_key, path.replace("/", "."))
        given = AgentInput(
            step={"run": self.journal_key, "path": path},
            session_id=session,
            user_id=self._given.user_id,
            tenant_id=self._given.tenant_id,
        )
        try:
            with self._board.calling(path):
                result = await agent_result(
                    str(agent), given, self._running, self._parts.pauses, name=path, asked=f"{self.journal_key}/{path}"
                )
        except FailureError as error:
            if self._running.cancelled:
                return CANCELLED
            return await self._came_to(
                {"path": path, "status": "error", "response": agent_failure(str(agent), why(error))}
            )
        if result["status"] == "cancelled" and self._running.cancelled:
            return CANCELLED
        came_to: CameTo = {"path": path, "status": result["status"], "iterations": result["iterations"]}
        if result["status"] == "complete":
            came_to["session"] = session_key_of(given.tenant_id, session)
        else:
            said = said_by_agent(result["status"], result.get("response"), result.get("error"))
            came_to["response"] = cut(said, 65_536)
        return await self._came_to(came_to)

    async def _call_tool(self, path: str, name: str | None) -> Done:
        turn, tools = Turn(path=path), self._tools
        shown = await self._make(path, "with")
        if isinstance(shown, dict):  # a deploy has changed or replaced its tool since the start
            name, tools = shown["tool"], {**tools, shown["tool"]: read_tool_facts(shown["facts"])}
            shown = shown["shown"]
        call = Call(path, str(name), 0, shown or "")
        turn.calls[call.id] = call
        progress = Progress(run=self.journal_key, turn=turn)
        calls = Calls(RunState(progress=progress), self._parts)
        state = LoopState[Call, ToolFacts](loop=Loop(), tools=tools)
        outcome: Outcome = await calls.run(call, state)
        if self._running.cancelled:
            return CANCELLED
        source = turn.sources.get(0, {"dispatch": 1})
        if "dispatch" in source:
            return await self._came_to({"path": path, "ran": source["dispatch"]})
        return await self._came_to({"path": path, "outcome": write_outcome(outcome)})

    async def _decide(self, action: RunStep) -> Done:
        path = action.path
        if (before := self._gates.left.get(path)) is not None:
            gate, message, seen = Gate.read(before), before["message"], before.get("seen", {})
        else:
            shown = await self._make(path, "gate")
            if shown.get("decided"):  # and used it before the run was reset
                return action.done(shown.get("output"))
            rule, people = cast("dict[str, GateRule]", self._rules)[place_of(path)], shown.get("editors", ())
            gate = Gate.of_step(path, rule, shown, since=workflow.now(), requesters=[self._given.user_id, *people])
            message, seen = shown["message"], shown_with(shown)
        gate = await self._gates.wait_at(gate, message, **seen)
        if gate.status == "open":
            return CANCELLED
        done = action.decided(gate)
        if done.reason is not None:
            return done
        return await self._came_to({"path": path, "output": gate.output}, done)

    # --- activities: keep a step's result and make the next input, in one ---

    async def _came_to(self, came_to: CameTo, done: Done = DONE) -> Done:
        """Keep a step's result, and make the next step's input if exactly one step follows."""
        assert self._state is not None
        path = came_to["path"]
        reference: StepReference = {"run": self.journal_key, "done": came_to}
        follows = self._state.ended(path, done).next_actions([key for key in self._tasks if key != path])
        making: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        match follows:
            case Todo(actions=actions):
                new = [action for action in actions if action.key not in self._tasks and action.key not in self._made]
                if new and not self._running.cancelled:
                    self._made[new[0].key] = making
                    reference["make"] = {"path": new[0].path, "what": new[0].what}
            case Ended(reason=None):
                reference["end"] = {"done": [*self._done_keys(), path]}
        try:
            found = await self._step(reference, f"what {path} came to")
        except SkippedError as skipped:
            # If the next step was skipped, this result is still kept, and the next step receives the decision.
            making.set_result(NOTHING if skipped.name == path else skipped)
            if skipped.name == path:
                raise
            del reference["make"]
            found = await self._step(reference, f"what {path} came to")
            return Done(None, *found["failed"]) if "failed" in found else done
        except (Exception, asyncio.CancelledError):
            making.set_result(NOTHING)
            raise
        making.set_result(found.get("made", NOTHING))
        if "failed" in found:
            return Done(None, *found["failed"])
        self._result = found.get("result")
        return done

    async def _make(self, path: str, what: str) -> Any:
        key = path if what in ("with", "gate") else f"{path}?{what}"
        if key in self._made:
            made = await self._made[key]
            del self._made[key]
            if isinstance(made, SkippedError):
                raise made
            if made is not NOTHING:
                return made
        found = await self._step({"run": self.journal_key, "make": {"path": path, "what": what}}, f"what {path} needs")
        return found.get("made")

    async def _step(self, reference: StepReference, asks: str) -> Stepped:
        known = {key: done.value for key, done in self._done().items() if done.value is not None}
        if known:
            reference["known"] = known
        options = {**STORE_OPTIONS, "summary": summary(asks)}
        try:
            found = await self._parts.workers.step(reference, options)
        except ActivityError as error:
            if self._running.cancelled:
                raise asyncio.CancelledError from None
            raise failed(error) from None
        if found is None:
            raise asyncio.CancelledError
        return found

    def _done(self) -> Mapping[str, Done]:
        return {} if self._state is None else self._state.done

    def _done_keys(self) -> list[str]:
        return [key for key, done in self._done().items() if done.reason is None]

    # --- continuing as new ---

    def leave_if_long(self) -> None:
        self._is_leaving = self._is_leaving or is_long()
        self._gates.is_leaving = self._is_leaving and self._tasks.keys() <= set(self._board.gates())

    async def _continue_as_new(self) -> None:
        """Continue as new with the open gates; stay if a decision or a cancel arrives in the meantime."""
        gates, running = self._gates, self._running
        await self._parts.inbox.looked_up()
        await workflow.wait_condition(lambda: may_continue() or gates.has_senders() or running.cancelled)
        if gates.has_senders() or running.cancelled:
            self._is_leaving = self._gates.is_leaving = False
            return
        given = {name: value for name, value in self._given.plain().items() if name not in ("carried", "restart")}
        done = {key: [came_to.value, came_to.reason, came_to.error] for key, came_to in self._done().items()}
        state = {"run": self.journal_key, "done": done, "gates": self._gates.left}
        workflow.continue_as_new({**given, "carried": {**state, **self._gates.carried()}})

    # --- the end ---

    async def _end(self, ended: Ended) -> JSONObject:
        result = self._result
        if result is None:
            failed = [] if ended.failed_step is None else [ended.failed_step]
            found = await self._step(
                {"run": self.journal_key, "end": {"done": self._done_keys(), "failed": failed}}, "the result"
            )
            result = found["result"]
        status = "complete" if ended.reason is None else "error"
        why_not = {"failed_step": ended.failed_step, "error_reason": ended.reason, "error": ended.error}
        self._board.end_run(status)
        await self._senders_told()
        return {"status": status, **result, **({} if ended.reason is None else why_not), **self._keys()}

    # --- what is told ---

    def patience(self) -> float | None:
        return None

    def choose_model(self, model: str) -> None:
        pass  # its agents have their own runs

    def as_kept(self, decision: Decision) -> Decision:
        return decision

    def recorded_with(self, gate: Gate) -> AtGate:
        return {"access": True}

    def recalled_with(self, gate: str) -> AtGate:
        return {}

    def progressed(self, gate: Gate) -> None:
        pass  # its board shows who has approved

    def elsewhere(self, gate: str) -> str:
        path = gate.rpartition("/")[0]
        if path not in self._tasks:
            return ""
        return f"; calls of step {path} wait in workflow {names.child_id(workflow.info().workflow_id, path)}"

    def may_open(self, gate: str) -> bool:
        return self._rules is None or place_of(gate) in self._rules

    def page(self, status: str, waiting: Sequence[Waiting], refused: Refused) -> str:
        return pipeline_details(self._done(), list(self._tasks), status, waiting, refused)

    @workflow.query(name=names.STATUS, description="The run's progress, waiting items and refused messages")
    def status(self, *ignored: Any) -> JSONObject:
        if self._state is None:
            return {"status": self._board.first_status} | self._board.seen()
        done = self._done()
        return (
            {
                "status": self._board.status,
                "done": [key for key in done if "?" not in key],
                "running": [key for key in self._tasks if "?" not in key],
            }
            | self._keys()
            | self._board.seen()
        )

    def _keys(self) -> dict[str, str | None]:
        """Return the run key that its user gave it, and the key of its records in the store."""
        here = workflow.info()
        named = names.session_of(here.workflow_type, here.workflow_id) or here.workflow_id
        return {"run_key": self._given.run_key_in(named), "journal_key": self.journal_key}


def _skipped(path: str, skipped: SkippedError) -> Done:
    """Return the result of a skipped step: it fails, since later steps need its output."""
    return Done(None, "skipped", f"Step '{path}': {skipped}")
