"""The workflow of an agent: asks the loop for the next action, runs it as activities, and reports the outcome.

The workflow sees names, numbers and references. The transcript is in the store. Facts that steer the run were recorded
at its start. No user code runs here.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from standfast.agent_loop import (
    NOBODY_TO_ASK,
    Action,
    AskApproval,
    AskHuman,
    CallModel,
    CallTools,
    Finish,
    next_action,
)
from standfast.checkpoints import Question
from standfast.errors import InputError
from standfast.messages import JSONObject, Usage
from standfast.temporal.wire import activity_types, names
from standfast.temporal.wire.activity_types import Exported, ExportReference, Finished, FinishReference, RunReference
from standfast.temporal.wire.boards import Whose
from standfast.temporal.wire.inbox import Sent
from standfast.temporal.wire.inputs import AgentInput, first_message, said_id
from standfast.temporal.wire.outcomes import is_usage
from standfast.temporal.wire.run_state import Call, Progress, read_state, write_tripped
from standfast.temporal.wire.snapshots import Facts, Surroundings, tools_of
from standfast.temporal.workflows.board.run_board import Opening
from standfast.temporal.workflows.board.visibility import Refused, details, show_started
from standfast.temporal.workflows.board.waiting_items import Waiting
from standfast.temporal.workflows.calls.model_calls import ModelCalls
from standfast.temporal.workflows.calls.tool_calls import Calls
from standfast.temporal.workflows.gates.gate_keeper import CallApprovals
from standfast.temporal.workflows.inbox.arrivals import refuse_by
from standfast.temporal.workflows.inbox.messages import Messages, Questions
from standfast.temporal.workflows.run.activity_results import fail, failed, refuse, why
from standfast.temporal.workflows.run.agent_run_state import RunState
from standfast.temporal.workflows.run.handlers import RunHandlers
from standfast.temporal.workflows.run.run_lifetime import carried_in, is_long, may_continue, run_to_end, until_told
from standfast.temporal.workflows.run.run_parts import RunParts, read_input
from standfast.tools import Returned

STEPS = 100  # then a run continues as new: replay stays short, and 5,000 steps cost as much as 50 × 100

_ONCE = (
    "message",
    "message_id",
    "images",
    "context",
    "checkpoint",
    "step",
    "carried",
)  # accepted by the first run of a chain
_MESSAGE = 'Send the agent a message: {"text": "…", "images"?, "by"?}'
_ANSWER = 'Answer a question: {"text": "…", "tool_call_id"?, "by"?}'
_EXPORT = 'Make a checkpoint of the run, which a query returns: {"id"}'
_RESOLVE = (
    'Settle a call of unknown outcome: {"tool_call_id", "decision": "happened" | "not-happened" | "leave", "result"?, '
    '"by"?, "reason"?}'
)

_EXPORTED = 4  # checkpoints that a run keeps for requests by signal


class Exports:
    """The checkpoints of a run. The transcript is complete only between two actions, so checkpoints are made there."""

    def __init__(self, run: RunState, parts: RunParts) -> None:
        self._run, self._board, self._inbox, self._workers = run, parts.board, parts.inbox, parts.workers
        self._inbox.pending.append(self._pending)
        self.requests: list[Exported] = []
        self._exported: dict[str, Exported] = {}  # for signals, by id

    def take_signal(self, data: Any, extra: tuple[Any, ...]) -> None:
        self._inbox.take("export", data, lambda given, sent_id: self._read(given, extra, sent_id), self._keep)

    async def take_update(self) -> JSONObject:
        request: Exported = {}
        self.requests.append(request)
        await workflow.wait_condition(lambda: bool(request) or bool(self._board.ended))
        if "checkpoint" not in request:
            raise ApplicationError(_not_exported(request), type="InputError")
        return request["checkpoint"]

    def check_update(self, data: Any, extra: tuple[Any, ...]) -> None:
        refuse_by(lambda: self._inbox.one("export", data, extra))

    def _read(self, data: Any, extra: tuple[Any, ...], sent_id: str | None) -> Exported:
        if sent_id is None:
            raise InputError("export: a signal needs an id, under which the checkpoint is found")
        self._inbox.one("export", data, extra)
        return {}

    def _keep(self, request: Exported, sent: Sent) -> None:
        self.requests.append(request)
        self._exported[str(sent.id)] = request
        if len(self._exported) > _EXPORTED:
            del self._exported[next(iter(self._exported))]

    def _pending(self, sent_id: str) -> JSONObject | None:
        """Return the outcome of a signal that requested a checkpoint."""
        request = self._exported.get(sent_id)
        if request is None:
            return None
        if "checkpoint" in request:
            return {"accepted": True, **request}
        return {"refused": _not_exported(request)} if "error" in request or self._board.ended else {}

    async def serve(self) -> None:
        """Make the requested checkpoints between two actions: the transcript is complete, and no call is in flight."""
        run = self._run
        if run.loop.open_calls and not run.loop.gates:
            return
        while self.requests:
            request = self.requests.pop(0)
            state, unheard = run.loop, [*run.progress.say, *self._inbox.mailbox.messages]
            reference = run.reference(ExportReference)
            reference["iterations"] = state.iterations
            reference["questions"] = [question.model_dump() for question in state.kept_questions]
            if state.usage is not None:
                reference["usage"] = state.usage.model_dump()
            if state.gates:
                reference["at_gate"] = True
            if unheard and state.is_at_rest:
                reference["say"] = unheard
            try:
                exported = await self._workers.execute(names.EXPORT, reference)
            except FailureError as error:  # the run does not depend on it
                exported = {"error": f"export: {why(error)}"}
            request.update(exported or {"error": "export: the run was cancelled"})


def _not_exported(request: Exported) -> str:
    return str(request.get("error", "export: the run has ended"))


class Closing:
    """The end of a run, and the writes before it."""

    def __init__(self, run: RunState, parts: RunParts, messages: Messages, calls: Calls) -> None:
        self._run, self._messages, self._calls = run, messages, calls
        self._board, self._box, self._pauses, self._workers = parts.board, parts.mailbox, parts.pauses, parts.workers
        self._running = parts.running
        self._has_counted = False  # answers that were cut off

    async def write_questions(self) -> None:
        """Write the questions and the results so far, for readers of the session while it waits."""
        reference = self._run.reference(RunReference)
        reference["questions"] = self._run.questions()
        try:
            seq = await self._workers.execute(names.COMMIT, reference)
        except ActivityError as error:
            fail(error)
        if seq is not None:
            self._run.progress.opened.pop("agent_state", None)  # it was also written
            self._wrote(seq)

    def _wrote(self, seq: int) -> None:
        self._run.progress.wrote(seq)
        self._box.written()

    async def close(self, finish: Finish, ending: Finish) -> JSONObject | None:
        """End the run and return its result; None if the user has sent another message in the meantime.

        Args:
            ending: `finish`, after the agent's output type and validators have accepted it.
        """
        last, complete = self._run.progress.last, finish.status == "complete"
        status, hook = str(ending.status), ending.hook if ending.hook in self._run.facts.hooks else None
        response = ""
        if hook is not None or not complete:
            await (self._messages.until_kept() if complete else self._messages.take_all())
            response = (await self._finish(status, hook))["response"]
            while self._box.messages and not complete:
                await self._messages.take_all()
                await self._finish(status, None)
        if complete and self._box.messages:
            return None
        if finish.raises:
            self._raise_terminal(finish.response)
        if complete and status == "complete":
            more = {name: value for name, value in last.items() if name in ("output", "size", "citations")}
            return self.result(status, {"response": last.get("text", self._run.loop.response), **more})
        if complete:
            why = last.get("unfit") or last["output_error"]
            return self.result(status, {"response": last.get("text", ""), "error": why})
        if status == "error":
            return self.result(status, {"response": finish.response, "error": finish.response})
        # The full text of the last answer is in the store; the state has its beginning.
        more = {} if finish.tripped is None else {"tripped": write_tripped(finish.tripped)}
        return self.result(status, {"response": response if finish.response else "", **more})

    async def cancelled(self) -> NoReturn:
        await self._messages.until_kept()
        # The run does not know what the model's activity wrote before it was cut off, even at the first turn.
        if self._run.progress.seq or self._run.has_asked or self._has_asked_before_a_reset():
            await self._finish("cancelled", None)
        self._board.end_run("cancelled")
        raise asyncio.CancelledError

    def _has_asked_before_a_reset(self) -> bool:
        """Whether the transcript may have calls from before the run was reset to its beginning."""
        return self._running.resets > 0 and workflow.patched(names.RESETS_ANSWER)

    async def _finish(self, status: str, hook: str | None) -> Finished:
        """Write the remaining messages, and call the hook for the run's end."""
        # A run that was never answered leaves nothing behind: a repeated message must not appear twice.
        unheard = status == "cancelled" or (status == "error" and self._run.progress.turn.number == 0)
        while True:
            reference = self._run.reference(FinishReference)
            reference["status"] = status
            if hook is not None:
                reference["hook"] = hook
            if self._run.progress.say and not unheard:
                reference["say"] = self._run.progress.say
            if questions := self._run.questions():
                reference["questions"] = questions
            try:
                result = await self._workers.execute(names.FINISH, reference)
            except ActivityError as error:
                if not (isinstance(error.cause, ApplicationError) and error.cause.type == names.HOOK_ERROR):
                    fail(error)
                if not await self._pauses.pause(str(hook), why(error)):
                    hook = None
                continue
            if result is None:
                await self.cancelled()
            if (spent := result.get("spent")) is not None and not self._has_counted and is_usage(spent):
                self._has_counted = True
                self._run.loop = self._run.loop.spent(Usage.of(spent))
            self._wrote(result["seq"])
            self._run.progress.say = []
            return result

    def _raise_terminal(self, text: str) -> NoReturn:
        error = self._calls.terminal
        details = {} if error is None else {"status_code": error.status_code, "metadata": error.metadata}
        raise ApplicationError(text, details, type=names.TERMINAL_ERROR, non_retryable=True)

    def result(self, status: str, more: dict[str, Any]) -> dict[str, Any]:
        self._board.end_run(status)
        usage = self._run.loop.used
        return {
            "status": status,
            **more,
            "session_id": self._run.progress.session_id,
            "iterations": self._run.loop.iterations,
            "usage": None if usage is None else usage.model_dump(),
        }


class AgentRun(RunHandlers):
    """One run of an agent; its workflow type is in `workflow_types`."""

    asks_groups = False  # until a gate does

    def __init__(self, data: Any, extra: tuple[Any, ...]) -> None:
        self._data, self._extra = data, extra
        self._steps = 0
        self._run = run = RunState()
        self._parts = parts = RunParts(self)
        parts.inbox.parked.append(self._parked)
        self._board, self._running = parts.board, parts.running
        # Set before any message can arrive: the run's owner, and the items that were open in the previous run.
        given: JSONObject = data if isinstance(data, dict) else {}
        owner = given.get("user_id"), given.get("tenant_id")
        carried = carried_in(data) or {}
        self._calls = Calls(run, parts)
        self._model = ModelCalls(run, parts)
        self._exports = exports = Exports(run, parts)
        self._messages = messages = Messages(run, parts, owner, first_message(given))
        self._closing = Closing(run, parts, messages, self._calls)
        self._questions = Questions(
            run, parts, messages, self._calls, lambda: bool(exports.requests) or (is_long() and self._may_leave())
        )
        journal_key = carried.get("run") or workflow.info().original_execution_run_id
        self._approvals = CallApprovals(run, parts, journal_key, lambda: bool(exports.requests))
        self._gates = self._approvals.gates
        if carried:
            asked = carried.get("state", {}).get("questions", ())
            self._gates.left = {item["tool_call_id"]: item for item in asked if "gate" in item}
            self._gates.take_over(carried)
            said = [*carried.get("mailbox", {}).get("messages", ()), *carried.get("say", ())]
            for one in said:
                messages.note(one)
            messages.kept = {message_id for one in said if (message_id := said_id(one)) is not None}

    def _parked(self) -> list[Any]:
        run = self._run
        gates = [question.model_dump() for question in run.loop.kept_questions]
        return [run.progress.say, list(run.progress.turn.sources.items()), gates]

    # --- what its parts ask ---

    def page(self, status: str, waiting: Sequence[Waiting], refused: Refused) -> str:
        return details(self._run, status, waiting, refused)

    def whose(self) -> Whose:
        return self._run.whose()

    def leave_if_long(self) -> None:
        self._approvals.leave_if_long()

    def patience(self) -> float | None:
        return self._run.facts.loop.answer_seconds

    def choose_model(self, model: str) -> None:
        self._run.progress.model = model

    # --- the run ---

    async def drive(self) -> JSONObject:
        """Run to the end; see `run_to_end`."""
        return await run_to_end(self._main(), self._running, self._board, self._senders_told)

    async def _senders_told(self) -> None:
        await self._messages.senders_told()
        await self._gates.senders_told()
        await until_told(workflow.all_handlers_finished)

    async def _main(self) -> JSONObject:
        is_continued, is_child = workflow.info().continued_run_id is not None, workflow.info().parent is not None
        self._run.given = read_input(
            AgentInput.read, self._data, self._extra, carried=is_continued, call=is_child, step=is_child
        )
        await self._begin()
        if (answered := self._run.progress.opened.pop("answered", None)) is not None:
            return await self._answer_again(answered)
        while True:
            if await self._has_caught_up():
                continue
            if self._exports.requests:
                await self._exports.serve()
            await self._take_in_messages()
            if self._run.loop.asks_for_more:
                await self._model.ask_for_more()
            if self._running.cancelled:
                self._run.loop = self._run.loop.unattended("Not run: the run was cancelled before people had decided")
            if self._running.cancelled and self._run.loop.open_calls:
                await self._carry_out(next_action(self._run.loop))  # runs no call: each gets this answer
            if self._running.cancelled:
                await self._closing.cancelled()
            ended = await self._carry_out(next_action(self._run.loop))
            if ended is not None:
                await self._senders_told()
                return ended

    async def _has_caught_up(self) -> bool:
        """Take in the next turn that a stretch has taken; the store has it, so it comes before all else."""
        action = next_action(self._run.loop) if self._run.ahead or self._run.taken else None
        match action:
            case CallModel() if self._run.ahead:
                await self._call_model(action)
            case CallTools() if not self._run.loop.asks_for_more:
                await self._call_tools(action)
            case _:
                self._run.ahead, self._run.taken = [], None
                return False
        return True

    async def _carry_out(self, action: Action[Call]) -> JSONObject | None:
        match action:
            case CallModel():
                self._continue_as_new_if_due()
                await self._call_model(action)
            case AskApproval() if self._run.given.asks_caller and self._run.given.call is None:
                self._run.loop = self._run.loop.unattended(NOBODY_TO_ASK)
            case AskApproval(gates):
                await self._leave_at_gates()
                await self._approvals.wait(gates)
            case CallTools():
                await self._call_tools(action)
            case AskHuman(question) if self._run.given.asks_caller:
                unknown = any(one.unknown is not None for one in self._run.loop.questions)
                about = {"about_unknown": True} if unknown else {}
                return self._closing.result("interrupted", {"question": question.question, **about})
            case AskHuman(question):
                self._continue_as_new_if_due()
                await self._ask_and_write(question)
            case Finish() as finish:
                last = self._run.progress.last
                ending = self._run.loop.judged(finish, last.get("output_error"), last.get("unfit"))
                if isinstance(ending, Finish):
                    return await self._closing.close(finish, ending)
                last.pop("output_error", None)
                last.pop("unfit", None)
                self._run.progress.say.append(ending.message)
                self._run.loop = self._run.loop.corrected()
        return None

    async def _take_in_messages(self) -> None:
        """Take in the user's messages at a point where none can come between a call and its result."""
        if self._running.resets:
            await self._messages.recall()
        state = self._run.loop
        if self._parts.mailbox.messages and state.is_at_rest and state.ended is None:
            await self._messages.take_all()
            self._run.progress.last = {}
            self._run.loop = state.with_user_message()

    # --- beginning ---

    def opening(self) -> Opening:
        reference: activity_types.OpenReference = {"session": self._run.progress.session, "run": self._run.progress.run}
        if not self._run.is_open:
            reference["input"] = self._run.given.plain()
        if agent := self._run.loop.agent:
            reference["agent"] = agent
        return names.OPEN, reference

    def learn(self, found: Surroundings) -> None:
        self._parts.learn(found)
        if found["search"]:
            show_started(self._run.progress.session_id, self._run.given.tenant_id)

    async def _begin(self) -> None:
        carried = self._run.given.carried
        self._run.progress = await self._open() if carried is None else Progress.read(carried)
        opened = self._run.progress.opened
        self._run.facts = Facts.read(
            opened["facts"], max_iterations=self._run.given.max_iterations, max_tokens=self._run.given.max_tokens
        )
        self._parts.learn(opened["facts"])
        self._run.is_open = True
        written = opened.pop("state", {}) if carried is None else carried.get("state", {})
        tools = tools_of(self._run.facts.tools, self._run.progress.turn.declared)
        self._run.loop = replace(read_state(written, self._run.facts), tools=tools)
        if carried is None:
            unheard = opened.pop("unheard", [])
            self._messages.kept |= {str(said_id(said)) for said in unheard}
            heard = [said for said in (opened.pop("message", None),) if said is not None]
            self._parts.mailbox.messages[:0] = [*unheard, *heard]
            if self._run.facts.search:
                show_started(self._run.progress.session_id, self._run.given.tenant_id)
            if opened.pop("empty", False) and not self._parts.mailbox.messages:
                refuse(f"nothing to run: session {self._run.progress.session_id} is new, and no message was given")
            if "on_start" in self._run.facts.hooks and "answered" not in opened:
                await self._start_hook()
        self._messages.keep()
        self._board.tell()

    async def _answer_again(self, answered: activity_types.AnsweredBefore) -> JSONObject:
        """Return the result of a message that was answered before.

        A message that arrives in the meantime begins a new run.
        """
        await self._messages.until_kept()
        await self._senders_told()
        if self._parts.mailbox.messages:
            given = self._run.given.plain().items()
            workflow.continue_as_new({name: value for name, value in given if name not in _ONCE})
        more = {name: value for name, value in answered.items() if name != "status"}
        return self._closing.result(answered["status"], more)

    async def _open(self) -> Progress:
        info = workflow.info()
        run = info.original_execution_run_id
        try:
            session = self._run.given.session_key(names.session_of(info.workflow_type, info.workflow_id))
        except InputError as error:
            refuse(str(error))
        self._run.progress = Progress(run=run, opened={"session": session or f"sess_{workflow.uuid4()}"})
        try:
            opened: activity_types.Opened | None = await self._parts.workers.open()
        except FailureError as error:
            fail(error)
        if opened is None:
            await self._closing.cancelled()
        self._running.note_resets(opened.pop("again", False))
        return Progress.begun(run, opened)

    async def _start_hook(self) -> None:
        while True:
            try:
                state = await self._parts.workers.execute(names.START, self._run.reference(activity_types.RunReference))
            except ActivityError as error:
                if await self._parts.pauses.pause("on_start", why(error)):
                    continue
                if self._running.cancelled:
                    return
                raise failed(error) from None
            if state is not None:
                self._run.progress.opened["agent_state"] = state
            return

    # --- the model ---

    async def _call_model(self, action: CallModel) -> None:
        progress = self._run.progress
        progress.noted(action)
        has_taken = bool(self._run.ahead) and "error" not in self._run.ahead[0]["reply"]
        reply = self._model.next_taken() if has_taken else await self._model.ask(progress.turn.number + 1, action)
        if reply is None:
            return
        progress.kept_by = workflow.info().original_execution_run_id
        self._run.loop = progress.answered(reply, self._run.loop, self._run.facts, workflow.now())
        self._steps += not has_taken
        if not self._run.ahead:
            self._board.tell()

    # --- tools ---

    async def _call_tools(self, action: CallTools[Call]) -> None:
        progress = self._run.progress
        settled = await self._calls.run_all(action, self._run.loop)
        self._gates.note_run([call.id for call, outcome in settled if isinstance(outcome, Returned)])
        has_spent = progress.turn.spent is not None
        self._run.loop = progress.settled(settled, self._run.loop)
        if has_spent:
            self._board.tell()
        if self._run.loop.questions and not self._running.cancelled:
            await self._closing.write_questions()

    async def _ask_and_write(self, question: Question) -> None:
        """Wait for an answer, and write it at once: before other answers arrive, and before the model call."""
        asked = len(self._run.loop.questions)
        await self._questions.ask(question)
        if self._parts.mailbox.unwritten:
            await self._messages.until_kept()
        if self._parts.mailbox.unwritten or 0 < len(self._run.loop.questions) < asked:
            await self._closing.write_questions()

    # --- continuing as new ---

    async def _leave_at_gates(self) -> None:
        """Continue as new with the open gates; stay if a sender waits for the outcome of a decision."""
        if self._gates.is_leaving:
            await self._approvals.leave()
            await workflow.wait_condition(
                lambda: (
                    self._may_leave()
                    or any((self._gates.has_senders(), self._exports.requests, self._running.cancelled))
                )
            )
            self._gates.is_leaving = False
            self._continue_as_new_if_due()

    def _may_leave(self) -> bool:
        """Whether the run can continue as new now without losing anything."""
        late = any(answer.is_late for answer in self._parts.mailbox.answers.values())  # only this history has the time
        needed = late or self._exports.requests or self._messages.is_keeping or self._parts.inbox.is_looking
        return not needed and may_continue()

    def _continue_as_new_if_due(self) -> None:
        if (self._steps < STEPS and not is_long()) or not self._may_leave():
            return
        given = {name: value for name, value in self._run.given.plain().items() if name not in _ONCE}
        carried = {**self._run.progress.carried(self._run.loop), **self._gates.carried()}
        if any(question.gate is None for question in self._run.loop.questions):
            carried["asks"] = True  # earlier versions do not report it, and removed their questions from the board
        workflow.continue_as_new({**given, "carried": carried})

    # --- what is sent ---

    @workflow.signal(name=names.MESSAGE, description=_MESSAGE)
    def message_signal(self, data: Any = None, *extra: Any) -> None:
        self._messages.take_signal(data, extra)

    @workflow.update(name=names.MESSAGE, description=_MESSAGE)
    async def message_update(self, data: Any = None, *extra: Any) -> JSONObject:
        return await self._messages.take_update(data, extra)

    @message_update.validator
    def _check_message(self, data: Any = None, *extra: Any) -> None:
        self._messages.check_update(data, extra)

    @workflow.signal(name=names.ANSWER, description=_ANSWER)
    def answer_signal(self, data: Any = None, *extra: Any) -> None:
        self._questions.answer_signal(data, extra)

    @workflow.update(name=names.ANSWER, description=_ANSWER)
    async def answer_update(self, data: Any = None, *extra: Any) -> JSONObject:
        return await self._questions.answer_update(data, extra)

    @answer_update.validator
    def _check_answer(self, data: Any = None, *extra: Any) -> None:
        self._questions.check_answer(data, extra)

    @workflow.signal(name=names.RESOLVE, description=_RESOLVE)
    def resolve_signal(self, data: Any = None, *extra: Any) -> None:
        self._questions.resolve_signal(data, extra)

    @workflow.update(name=names.RESOLVE, description=_RESOLVE)
    async def resolve_update(self, data: Any = None, *extra: Any) -> JSONObject:
        return await self._questions.resolve_update(data, extra)

    @resolve_update.validator
    def _check_resolve(self, data: Any = None, *extra: Any) -> None:
        self._questions.check_resolve(data, extra)

    @workflow.signal(name=names.EXPORT_UPDATE, description=_EXPORT)
    def export_signal(self, data: Any = None, *extra: Any) -> None:
        self._exports.take_signal(data, extra)

    @workflow.update(name=names.EXPORT_UPDATE, description="Return the run as a checkpoint, up to 1 MB")
    async def export_update(self, data: Any = None, *extra: Any) -> JSONObject:
        return await self._exports.take_update()

    @export_update.validator
    def _check_export(self, data: Any = None, *extra: Any) -> None:
        self._exports.check_update(data, extra)

    @workflow.query(name=names.STATUS, description="The run's progress, waiting items and refused messages")
    def status(self, *ignored: Any) -> JSONObject:
        seen = self._board.seen()
        if not self._run.is_open:
            return {"status": self._board.first_status} | seen
        state = self._run.loop
        return {
            "status": self._board.status,
            "session_id": self._run.progress.session_id,
            "turn": self._run.progress.turn.number,
            "iterations": state.iterations,
            "max_iterations": state.loop.max_iterations,
            "usage": None if state.used is None else state.used.model_dump(),
            **({"agent": state.agent} if state.agent else {}),
            "running": [
                {"tool_call_id": call.id, "tool": call.name, "arguments": call.shown}
                for call in (() if state.gates else state.open_calls)
            ],
            "resolved": self._run.progress.resolved,
            "journal_key": self._run.progress.run,
        } | seen
