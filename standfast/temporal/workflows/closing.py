"""Writes the outcome of an agent's run, and ends it."""

import asyncio
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from standfast.agent_loop import Finish
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import Finished, FinishReference, RunReference
from standfast.temporal.wire.states import write_tripped
from standfast.temporal.workflows.calls import Calls
from standfast.temporal.workflows.messages import Messages
from standfast.temporal.workflows.run_failures import fail, why
from standfast.temporal.workflows.run_parts import RunParts
from standfast.temporal.workflows.shared_state import RunState


class Closing:
    """The end of a run, and the writes before it."""

    def __init__(self, run: RunState, parts: RunParts, messages: Messages, calls: Calls) -> None:
        self._run, self._messages, self._calls = run, messages, calls
        self._board, self._box, self._pauses, self._workers = parts.board, parts.mailbox, parts.pauses, parts.workers
        self._running = parts.running

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

    async def close(self, finish: Finish, ending: Finish) -> dict[str, Any] | None:
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
