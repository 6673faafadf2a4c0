"""Waiting for people: questions, calls of unknown outcome, pauses. Each is visible, addressable, and has an end."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from temporalio import workflow
from temporalio.exceptions import ActivityError

from standfast.agent_loop import Decision, Gate, LoopState
from standfast.agents import Loop
from standfast.checkpoints import Question
from standfast.temporal.wire import names
from standfast.temporal.wire.inbox import Resolve
from standfast.temporal.wire.inputs import said_by_user
from standfast.temporal.wire.outcomes import read_outcome, write_outcome
from standfast.temporal.wire.references import edit_reference, let_through
from standfast.temporal.wire.snapshots import Facts, Surroundings
from standfast.temporal.wire.states import Call
from standfast.temporal.workflows.calls import Calls
from standfast.temporal.workflows.handlers import Handlers
from standfast.temporal.workflows.run_failures import failed, why
from standfast.temporal.workflows.visibility import details, show_started, shown_usage
from standfast.temporal.workflows.waiting import Waiting
from standfast.temporal.workflows.waits import is_long
from standfast.tools import Asked, Failed, Outcome, Returned, Unknown

_RESOLVED = 20  # decisions of operators that `status` shows


class People(Handlers):
    """The part of a run that waits for somebody to answer, to resume or to resolve."""

    _calls: Calls

    def __init__(self) -> None:
        super().__init__()
        self._facts = Facts(loop=Loop(), tools={})  # those of the agent, once the run is open
        self._is_denied = False  # nobody lets the run use more than its budget
        self._recalled: dict[str, Outcome] = {}  # what was answered before a reset, by call
        self._deciding: dict[str, asyncio.Task[Gate]] = {}  # gates of the turn, by call

    @property
    def _state(self) -> LoopState:
        assert self._loop_state is not None
        return self._loop_state

    @_state.setter
    def _state(self, state: LoopState) -> None:
        self._loop_state = state

    @property
    def _search(self) -> bool:  # type: ignore[override]
        return self._facts.search

    @property
    def _notices(self) -> bool:  # type: ignore[override]
        return self._facts.notices

    @property
    def _patience(self) -> float | None:  # type: ignore[override]
        return self._facts.loop.answer_timeout  # type: ignore[return-value]  # seconds, once it is declared

    def _details(self) -> str:
        return details(
            status=self._ended or self._status(),
            session=self._progress.session_id,
            state=self._loop_state,
            waiting=self._waiting,
            refused=self._mailbox.refused,
        )

    def _opening(self) -> tuple[str, dict[str, Any]]:
        reference: dict[str, Any] = {"session": self._progress.session, "run": self._progress.run}
        if self._loop_state is None:
            reference["input"] = self._given.plain()
        return names.OPEN, reference

    # --- budgets ---

    async def _ask_for_more(self) -> None:
        """Wait for whoever may let a run go on that has spent its budget; the calls of its turn wait with it."""
        if not self._state.asks_for_more:
            return
        if self._is_denied or self._given.asks_caller:
            self._state = self._state.unattended("Not run: the budget is spent")
            return
        used = [shown_usage("this run", self._state.usage)]
        if self._state.session_usage is not None:
            used.append(shown_usage("its session", self._state.session_usage))
        message = f"The budget is spent: {', '.join(used)}. Retry lets it use as much again"
        if await self.pause("budget", message):
            self._state = self._state.granted()
        else:
            self._is_denied = True

    # --- questions ---

    async def _ask(self, question: Question) -> None:
        """Wait until an open question has its answer. All that are open may be answered, in any order."""
        self._progress.since = self._progress.since or workflow.now()
        deadline = self._deadline(self._progress.since)
        waiting = tuple(
            Waiting(
                "unknown" if asked.tool_call_id in self._progress.unknown else "question",
                asked.tool_call_id or "",
                asked.question,
                self._progress.since,
                deadline,
            )
            for asked in self._state.questions
        )
        if waiting != self._waiting:
            self._waiting = ()
            self._wait_for(*waiting)
        await self._until(
            lambda: (
                self._with_answer() is not None
                or bool(self._exports)
                or self._leaves()
                or self._answers_looked < self._resets
            ),
            deadline,
            f"answer to {question.tool_call_id or 'the agent'}",
        )
        if self._answers_looked < self._resets:
            await self._recall_answers()
        question = self._with_answer() or question
        box, key = self._mailbox, question.tool_call_id or ""
        if key in self._recalled:
            self._mailbox.answered.append(key)
            self._answered(question, self._recalled.pop(key))
        elif key in box.resolves:
            await self._resolve(question, box.take_resolve(key))
        elif key in box.answers:
            answer = box.take_answer(question.tool_call_id)
            if answer.is_late and await self._is_late(answer.sent, deadline):
                box.answered.remove(key)
            else:
                box.note_taken(answer)
                self._answered(question, Returned(answer.text), answer.by)
        elif deadline is not None and workflow.now() >= deadline and not self._running.cancelled:
            self._answered(question, Failed(f"Nobody answered within {deadline - self._progress.since}"))

    def _with_answer(self) -> Question | None:
        """Return the first question that has its answer: none waits for those that are asked before it."""
        known = (self._mailbox.answers, self._mailbox.resolves, self._recalled)
        return next((one for one in self._state.questions if any((one.tool_call_id or "") in of for of in known)), None)

    async def _recall_answers(self) -> None:
        """Find what the questions of the turn were answered with before the run was reset."""
        resets = self._resets
        found = await self._around(names.ANSWERED, self._reference(after=self._progress.turn.seq))
        asked = {question.tool_call_id or "" for question in self._state.questions}
        self._recalled = {key: read_outcome(outcome) for key, outcome in (found or {}).items() if key in asked}
        if "" in asked and "" not in self._recalled:
            self._recalled |= await self._recall_said()
        self._answers_looked = resets

    def _leaves(self) -> bool:
        """Whether the history has grown so long, by messages alone, that the run must continue as new."""
        return is_long() and self._may_leave()

    def _may_leave(self) -> bool:
        """Whether nobody would lose anything if the run continued as new now."""
        late = any(answer.is_late for answer in self._mailbox.answers.values())  # when it was sent this history tells
        needed = late or self._exports or self._running.cancelled or self._keeping is not None
        return not needed and workflow.all_handlers_finished()

    def _answered(self, question: Question, outcome: Outcome, by: str | None = None) -> None:
        """Take what became of a question: the result of its call, or what a person says to the agent."""
        call_id = question.tool_call_id
        if call_id is None:
            said = outcome.content if isinstance(outcome, Returned) else _text(outcome)
            self._hear_first(said_by_user(said, by=by))
        else:
            position = self._progress.turn.calls[call_id].position
            if position not in self._progress.turn.sources:
                spent = {} if question.usage is None else {"spent": question.usage.plain()}
                who = {} if by is None else {"by": by}
                self._progress.turn.sources[position] = write_outcome(outcome) | spent | who
            self._progress.unknown.pop(call_id, None)
        self._state = self._state.answered(question)
        if not self._state.questions:
            self._progress.since = None
        self._end_waiting(*(item for item in self._waiting if item.name == (call_id or "")))

    async def _resolve(self, question: Question, resolve: Resolve) -> None:
        call: Call = self._progress.unknown[resolve.tool_call_id]
        at = workflow.now().isoformat()
        self._progress.resolved = self._progress.resolved[1 - _RESOLVED :]
        self._progress.resolved.append(
            {
                "tool_call_id": call.id,
                "decision": resolve.decision,
                "by": resolve.by,
                "reason": None if resolve.reason is None else resolve.reason[:500],
                "at": at,
            }
        )
        match resolve.decision:
            case "happened":
                self._answered(question, Returned(resolve.result), resolve.by)
            case "leave":
                self._answered(question, Unknown(resolve.reason or ""))
            case "not-happened":
                await self._run_again(question, call)

    async def _run_again(self, question: Question, call: Call) -> None:
        """Run a call that did not happen. Until it has, which may take a deploy, nobody else decides on it."""
        self._progress.turn.dispatches.setdefault(call.position, 1)
        self._progress.unknown.pop(call.id, None)
        self._mailbox.answered.append(call.id)
        self._end_waiting(*(item for item in self._waiting if item.name == call.id))
        outcome = await self._calls.run_again(call, self._state, self._mailbox.written)
        match outcome:
            case Unknown() | Asked():
                self._progress.turn.sources.pop(call.position, None)
                self._mailbox.answered.remove(call.id)
                text = outcome.question if isinstance(outcome, Asked) else question.question
                if isinstance(outcome, Unknown):
                    self._progress.unknown[call.id] = call
                self._state = self._state.asked_instead(question, text)
            case _:
                self._answered(question, outcome)

    # --- approvals ---

    async def _await_approvals(self, questions: Sequence[Question]) -> None:
        """Wait until a gate of the turn is decided; all are open at once."""
        turn = self._progress.turn
        for question in questions:
            gate = Gate.read(question.gate or {})
            if gate.name not in self._deciding:
                call = turn.calls[gate.name]
                shown = {"tool": call.name, "arguments": turn.arguments.get(call.id, call.shown)}
                if call.id in turn.sizes:
                    place = {"run_key": self._progress.run, "turn": turn.number, "position": call.position}
                    shown |= {"size": turn.sizes[call.id], "reference": place}
                self._deciding[gate.name] = asyncio.create_task(self._at_gate(gate, question.question, **shown))
                self._gates.pop(gate.name, None)
        tasks = self._deciding
        await workflow.wait_condition(lambda: any(task.done() for task in tasks.values()) or bool(self._exports))
        if self._running.cancelled or self._gates_leave:
            await self._gates_left()
        self._take_passed()

    async def _gates_left(self) -> None:
        """Wait until no gate is being decided: each ends by itself when the run is cancelled, or goes on as new."""
        if self._deciding:
            await asyncio.gather(*self._deciding.values())
        self._take_passed()

    def _take_passed(self) -> None:
        for name in [name for name, task in self._deciding.items() if task.done()]:
            self._passed(self._deciding.pop(name).result())

    def _passed(self, gate: Gate) -> None:
        """Take in what became of a gate."""
        self._state = self._state.decided(gate)
        if gate.status == "approved":
            turn = self._progress.turn
            turn.approved[turn.calls[gate.name].position] = let_through(gate)

    def _show_progress(self, gate: Gate) -> None:
        super()._show_progress(gate)
        if gate.status == "open":  # an export has it, too
            self._state = self._state.decided(gate)

    def _leaves_gate(self, gate: Gate) -> None:
        if gate.status == "open":
            self._gates[gate.name] = {}  # still, while the run goes on as new
        else:
            self._gates.pop(gate.name, None)

    def _as_kept(self, decision: Decision) -> Decision:
        if decision.edit is None:
            return decision
        return decision.model_copy(update={"edit": edit_reference(decision.edit)})

    def _run_key(self) -> str:
        return self._progress.run

    def _recorded_with(self, decision: Decision) -> dict[str, Any]:
        asks = {"access": True} if "approve" in self._facts.hooks else {}
        return self._recalled_with(decision.gate) | asks

    def _recalled_with(self, gate: str) -> dict[str, Any]:
        turn = self._progress.turn
        return {"call": [turn.number, turn.calls[gate].position]} if gate in turn.calls else {}

    def _may_come_to(self, gate: str) -> bool:
        return False  # the gates of an agent are of calls, on which nobody can decide who has not seen them

    def _leave_if_long(self) -> None:
        self._gates_leave = self._gates_leave or is_long()

    def _resumed(self, model: str | None) -> None:
        self._progress.model = model or self._progress.model

    def _learn(self, found: Surroundings) -> None:
        self._facts = replace(self._facts, search=found["search"], notices=found.get("notices", False))
        if found["search"]:
            show_started(self._progress.session_id, self._given.tenant_id)

    # --- hooks ---

    async def _start_hook(self) -> None:
        while True:
            try:
                state = await self._around(names.START, self._reference())
            except ActivityError as error:
                if await self.pause("on_start", why(error)):
                    continue
                if self._running.cancelled:
                    return
                raise failed(error) from None
            if state is not None:
                self._progress.opened["agent_state"] = state
            return

    # --- exports ---

    async def _serve_exports(self) -> None:
        """Export where the transcript is whole: between two actions, with no call in flight."""
        if self._loop_state is None or (self._state.open_calls and not self._state.gates):
            return
        while self._exports:
            request = self._exports.pop(0)
            state, unheard = self._state, [*self._progress.say, *self._mailbox.messages]
            reference = self._reference(
                iterations=state.iterations,
                usage=None if state.usage is None else state.usage.model_dump(),
                questions=[question.model_dump() for question in state.kept_questions],
                at_gate=bool(state.gates) or None,
                say=None if state.open_calls or state.questions else unheard or None,
            )
            try:
                exported = await self._around(names.EXPORT, reference)
            except ActivityError as error:  # nothing of the run depends on it
                exported = {"error": f"export: {why(error)}"}
            request.update(exported or {"error": "export: the run was cancelled"})

    def _questions(self) -> list[dict[str, Any]]:
        return [question.model_dump() for question in self._state.questions]

    # --- what is told ---

    @workflow.query(name=names.STATUS, description="How far the run is, what it waits for, what it refused")
    def status(self, *ignored: Any) -> dict[str, Any]:
        seen = self._seen()
        if self._loop_state is None:
            return {"status": self._ended or (self._status() if self._waiting else "starting")} | seen
        state = self._state
        return {
            "status": self._ended or self._status(),
            "session_id": self._progress.session_id,
            "turn": self._progress.turn.number,
            "iterations": state.iterations,
            "max_iterations": state.loop.max_iterations,
            "usage": None if state.usage is None else state.usage.model_dump(),
            "running": [{"tool_call_id": call.id, "tool": call.name, "arguments": call.shown}
                        for call in cast("tuple[Call, ...]", () if state.gates else state.open_calls)],
            "resolved": self._progress.resolved,
            "run_key": self._progress.run,
        } | seen  # fmt: skip


def _text(outcome: Outcome) -> str:
    return outcome.error if isinstance(outcome, Failed) else ""
