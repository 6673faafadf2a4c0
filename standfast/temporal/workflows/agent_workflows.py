"""The workflow of an agent: asks the loop what is next, carries it out with activities, reports back.

It sees names, numbers and references. The transcript is in the store, what steers it was recorded at its start, and
nothing of the user's runs in it.
"""

import asyncio
from dataclasses import replace
from typing import Any, NoReturn, cast

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
    correction,
    next_action,
)
from standfast.checkpoints import Question
from standfast.errors import InputError
from standfast.temporal.wire import names
from standfast.temporal.wire.inputs import AgentInput, said_id
from standfast.temporal.wire.results import fits
from standfast.temporal.wire.run_state import Progress
from standfast.temporal.wire.snapshots import Facts, tools_of
from standfast.temporal.wire.states import Reply, read_state, read_usage
from standfast.temporal.workflows.activity_options import model_options, summary
from standfast.temporal.workflows.calls import Calls
from standfast.temporal.workflows.missing_workers import is_missing, is_unavailable, put_in_by_hand
from standfast.temporal.workflows.people import People
from standfast.temporal.workflows.run_failures import fail, refuse, why
from standfast.temporal.workflows.visibility import show_started
from standfast.temporal.workflows.waits import is_long

STEPS = 100  # after which a run continues as new: replay stays short, and 5,000 steps cost what 50 × 100 do

_ONCE = ("message", "images", "checkpoint", "step", "carried")  # what the first run of a chain has taken in
_FATAL = ("SessionConflictError", "SessionAccessDeniedError")


class AgentRun(People):
    """One run of an agent; its workflow type is in `workflow_types`."""

    def __init__(self, data: Any, extra: tuple[Any, ...]) -> None:
        super().__init__()
        self._data, self._extra = data, extra
        self._steps = 0
        self._has_asked = False
        if isinstance(data, dict):  # before anybody can speak
            self._owner = (data.get("user_id"), data.get("tenant_id"))
        if workflow.info().continued_run_id is not None and isinstance(data, dict) and "carried" in data:
            # Before anybody can ask: what was open in the run before is open.
            asked = data["carried"].get("state", {}).get("questions", ())
            self._gates = {item["tool_call_id"]: item for item in asked if "gate" in item}
            self._take_over(data["carried"])
            said = [*data["carried"].get("mailbox", {}).get("messages", ()), *data["carried"].get("say", ())]
            self._kept = {message_id for one in said if (message_id := said_id(one)) is not None}

    async def drive(self) -> dict[str, Any]:
        """Run to the end; see `Waits`."""
        return await self._drive(self._main())

    async def _main(self) -> dict[str, Any]:
        try:
            if self._extra:
                raise InputError(f"The input is one JSON object, got {1 + len(self._extra)} arguments")
            self._given = AgentInput.read(self._data)
            info = workflow.info()
            for name, is_ours in (("carried", info.continued_run_id), ("call", info.parent), ("step", info.parent)):
                if getattr(self._given, name) is not None and not is_ours:
                    raise InputError(f"The input: {name!r} is for runs that standfast itself starts")
        except InputError as error:
            refuse(str(error))
        await self._begin()
        while True:
            await self._serve_exports()
            await self._take_in_messages()
            await self._ask_for_more()
            if self._running.cancelled:
                self._state = self._state.unattended("Not run: the run was cancelled before people had decided")
            if self._running.cancelled and self._state.open_calls:
                await self._carry_out(next_action(self._state))  # none is run: each is answered with that
            if self._running.cancelled:
                await self._cancelled()
            ended = await self._carry_out(next_action(self._state))
            if ended is not None:
                await self._handlers_ended()
                return ended

    async def _carry_out(self, action: Action) -> dict[str, Any] | None:
        match action:
            case CallModel():
                self._continue_as_new_if_due()
                await self._call_model(action)
            case AskApproval() if self._given.asks_caller and self._given.call is None:
                self._state = self._state.unattended(NOBODY_TO_ASK)
            case AskApproval(gates):
                await self._leave_at_gates()
                await self._await_approvals(gates)
            case CallTools():
                await self._call_tools(action)
            case AskHuman(question) if self._given.asks_caller:
                return self._result("interrupted", {"question": question.question})
            case AskHuman(question):
                self._continue_as_new_if_due()
                await self._ask_and_write(question)
            case Finish("complete") if "output_error" in self._progress.last and self._state.may_correct:
                self._progress.say.append(correction(self._progress.last.pop("output_error")))
                self._state = self._state.corrected()
            case Finish():
                return await self._close(action)
        return None

    async def _take_in_messages(self) -> None:
        """Take in what the user said, where it cannot get between a call and its result."""
        if self._messages_looked < self._resets:
            await self._recall_messages()
        state = self._state
        if self._mailbox.messages and not state.open_calls and not state.questions and state.ended is None:
            await self._messages_kept()
            self._progress.say += self._mailbox.take_messages()
            self._progress.last = {}
            self._state = state.told()

    # --- beginning ---

    async def _begin(self) -> None:
        carried = self._given.carried
        if carried is not None:
            self._progress = Progress.read(carried)
        else:
            self._progress = await self._open()
        opened = self._progress.opened
        self._facts = Facts.read(
            opened["facts"], max_iterations=self._given.max_iterations, max_tokens=self._given.max_tokens
        )
        self._calls = Calls(self._given, self._progress, self._running, self)
        if carried is not None:
            state = read_state(carried.get("state", {}), self._facts)
            self._state = replace(state, tools=tools_of(self._facts.tools, self._progress.turn.declared))
        else:
            self._state = read_state(opened.pop("state", {}), self._facts)
            unheard = opened.pop("unheard", [])
            self._kept |= {str(said_id(said)) for said in unheard}
            heard = [said for said in (opened.pop("message", None),) if said is not None]
            self._mailbox.messages[:0] = [*unheard, *heard]
            if self._facts.search:
                show_started(self._progress.session_id, self._given.tenant_id)
            if opened.pop("empty", False) and not self._mailbox.messages:
                refuse(f"nothing to run: session {self._progress.session_id} is new, and no message was given")
            if "on_start" in self._facts.hooks:
                await self._start_hook()
        self._keep_messages()
        self._tell()

    async def _open(self) -> Progress:
        info = workflow.info()
        run = info.original_execution_run_id
        try:
            session = self._given.session_key(names.session_of(info.workflow_type, info.workflow_id))
        except InputError as error:
            refuse(str(error))
        self._progress = Progress(run=run, opened={"session": session or f"sess_{workflow.uuid4()}"})
        try:
            opened = await self._open_anywhere()
        except FailureError as error:
            fail(error)
        if opened is None:
            await self._cancelled()
        self._resets += opened.pop("again", False)
        return Progress.begun(run, opened)

    # --- the model ---

    async def _call_model(self, action: CallModel) -> None:
        progress = self._progress
        if action.warning is not None:
            progress.notices.append([progress.turn.seq, "warning", action.warning])
        if action.nudge is not None:
            progress.notices.append([progress.turn.seq, "nudge", action.nudge])
        reply = await self._ask_model(progress.turn.number + 1, action.model)
        if reply is None:
            return
        self._steps += 1
        progress.kept_by = workflow.info().original_execution_run_id
        progress.opened.pop("agent_state", None)
        gates, refused = reply.pop("gates", ()), reply.pop("refused", {})
        calls = progress.replied(reply)
        answer = Reply(reply.get("text", ""), calls or None, read_usage(reply.get("usage")), reply.get("stop_reason"))
        since = {"since": workflow.now().isoformat()}
        questions = [Question(**{**item, "gate": {**item["gate"], **since}}) for item in gates]
        state = replace(self._state, tools=tools_of(self._facts.tools, progress.turn.declared))
        self._state = state.replied(cast(Any, answer)).gated(questions, refused)
        if progress.say and not calls:
            self._state = self._state.told()
        self._tell()

    async def _ask_model(self, number: int, fallback: str | None) -> dict[str, Any] | None:
        """Return the model's answer; None if there is none, and the state says what to do then."""
        progress, self._has_asked = self._progress, True
        while True:
            other = progress.model or fallback
            model = other or (self._facts.model if progress.named is None else progress.named)
            reference = self._reference(turn=number, say=progress.say or None, notices=progress.notices or None,
                                        view=progress.view, model=other, named=progress.named)  # fmt: skip
            asks = summary(f"{model} · turn {number}" if model else f"turn {number}")
            options = {**model_options(self._facts.loop.model_retry), "summary": asks}
            try:
                reply: dict[str, Any] = await self._with_store(names.CALL_MODEL, reference, options)
            except asyncio.CancelledError:
                if not self._running.cancelled:
                    raise
                return None
            except ActivityError as error:
                if self._running.cancelled:
                    return None
                if await self._may_ask_again(error):
                    continue
                if not self._running.cancelled:
                    self._failed(f"The model could not be called: {why(error)}")
                return None
            is_read = fits(names.CALL_MODEL, reference, reply)
            if is_read and "error" not in reply:
                return reply
            if not await self._asks_again(reply if is_read else None):
                return None

    async def _asks_again(self, reply: dict[str, Any] | None) -> bool:
        """Take in that the model refuses; if somebody has completed its activity by hand with junk, wait for them."""
        if reply is not None:
            self._progress.wrote(reply["seq"])
        elif await self.pause("model", put_in_by_hand(names.CALL_MODEL)) or self._running.cancelled:
            return not self._running.cancelled
        self._failed(put_in_by_hand(names.CALL_MODEL) if reply is None else reply["error"])
        return False

    def _failed(self, why: str) -> None:
        if self._state.has_fallback:
            self._progress.model = None  # what a person chose could not be called either
        self._state = self._state.failed(why)

    async def _may_ask_again(self, error: ActivityError) -> bool:
        """Wait for whoever can mend why the model could not be called."""
        if isinstance(error.cause, ApplicationError) and error.cause.type in _FATAL:
            fail(error)
        if isinstance(error.cause, ApplicationError) and error.cause.type == names.MODEL_CHANGED:
            self._progress.named = error.cause.details[0]["model"]  # people read with each call what is called
            return True
        if is_missing(error):
            await self.await_worker(error)
            return True
        if self._state.has_fallback or (self._facts.limits_retries and is_unavailable(error)):
            return False
        return await self.pause("model", why(error))

    # --- tools ---

    async def _call_tools(self, action: CallTools) -> None:
        state, turn = self._state, self._progress.turn
        settled = await self._calls.run_all(action, state)
        self._progress.note_sources(settled, state)
        state = state.settled(settled, turn.spent_by)
        if turn.spent is not None:
            state, turn.spent = state.spent(turn.spent), None
        self._state = state
        self._tell()
        if state.questions and not self._running.cancelled:
            await self._write_questions()

    async def _ask_and_write(self, question: Question) -> None:
        """Wait for an answer, and write it at once: it does not wait for the others, nor its sender for the model."""
        asked = len(self._state.questions)
        await self._ask(question)
        if self._mailbox.unwritten:
            await self._messages_kept()
        if self._mailbox.unwritten or 0 < len(self._state.questions) < asked:
            await self._write_questions()

    async def _write_questions(self) -> None:
        """Write what is asked, and the results that are there: whoever opens the session while it waits has both."""
        reference = self._reference(questions=self._questions())
        try:
            seq: int | None = await self._around(names.COMMIT, reference)
        except ActivityError as error:
            fail(error)
        if seq is not None:
            self._wrote(seq)

    def _wrote(self, seq: int) -> None:
        self._progress.wrote(seq)
        self._mailbox.written()

    # --- ending ---

    async def _close(self, finish: Finish) -> dict[str, Any] | None:
        """End the run and return its result; None if the user has said something more meanwhile."""
        last, status = self._progress.last, str(finish.status)
        complete = finish.status == "complete"
        if complete and "output_error" in last:
            status = "error"
        hook = finish.hook if finish.hook in self._facts.hooks and status != "error" else None
        closed: dict[str, Any] = {}
        if hook is not None or not complete:
            await self._messages_kept()
            if not complete:
                self._progress.say += self._mailbox.take_messages()
            closed = await self._finish(status, hook)
            while self._mailbox.messages and not complete:
                await self._messages_kept()
                self._progress.say += self._mailbox.take_messages()
                await self._finish(status, None)
        if complete and self._mailbox.messages:
            return None
        if finish.raises:
            self._raise_terminal(finish.response)
        if complete and status == "complete":
            response = {"response": last.get("text", self._state.response)}
            return self._result(status, response | {name: last[name] for name in ("output", "size") if name in last})
        if complete:
            return self._result(status, {"response": last.get("text", ""), "error": last["output_error"]})
        if status == "error":
            return self._result(status, {"response": finish.response, "error": finish.response})
        # The whole text of the last answer is in the store; the state has its beginning.
        return self._result(status, {"response": closed.get("response", "") if finish.response else ""})

    async def _cancelled(self) -> NoReturn:
        await self._messages_kept()
        # What the model's activity has written before it was cut off nobody has told the run, not even of the first.
        if self._progress.seq or self._has_asked:
            await self._finish("cancelled", None)
        self._ending("cancelled")
        raise asyncio.CancelledError

    async def _finish(self, status: str, hook: str | None) -> dict[str, Any]:
        """Write what is unwritten, and call the hook of the end."""
        # A run that was never answered leaves nothing behind: who says it again must not have said it twice.
        unheard = status == "cancelled" or (status == "error" and self._progress.turn.number == 0)
        say = None if unheard else self._progress.say or None
        while True:
            reference = self._reference(status=status, hook=hook, say=say, questions=self._questions() or None)
            try:
                result: dict[str, Any] | None = await self._around(names.FINISH, reference)
            except ActivityError as error:
                if not (isinstance(error.cause, ApplicationError) and error.cause.type == names.HOOK_ERROR):
                    fail(error)
                if not await self.pause(str(hook), why(error)):
                    hook = None
                continue
            if result is None:
                await self._cancelled()
            self._wrote(result["seq"])
            self._progress.say = []
            return result

    def _raise_terminal(self, text: str) -> NoReturn:
        error = self._calls.terminal
        details = {} if error is None else {"status_code": error.status_code, "metadata": error.metadata}
        raise ApplicationError(text, details, type="TerminalError", non_retryable=True)

    def _result(self, status: str, more: dict[str, Any]) -> dict[str, Any]:
        self._ending(status)
        usage = self._state.usage
        return {
            "status": status,
            **more,
            "session_id": self._progress.session_id,
            "iterations": self._state.iterations,
            "usage": None if usage is None else usage.model_dump(),
        }

    # --- going on as new ---

    async def _leave_at_gates(self) -> None:
        """Go on as new, gates that are open with it; or here, if somebody waits for what becomes of a decision."""
        if self._gates_leave:
            await self._gates_left()
            await workflow.wait_condition(
                lambda: self._may_leave() or self._has_senders() or bool(self._exports) or self._running.cancelled
            )
            self._gates_leave = False
            self._continue_as_new_if_due()

    def _continue_as_new_if_due(self) -> None:
        if not self._may_leave() or (self._steps < STEPS and not is_long()):
            return
        given = {name: value for name, value in self._given.plain().items() if name not in _ONCE}
        carried = {**self._progress.carried(self._state), **self._carried_decisions()}
        workflow.continue_as_new({**given, "carried": carried})
