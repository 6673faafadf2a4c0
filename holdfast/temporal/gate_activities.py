"""What activities do at gates: find out which calls must pass one, and record what people decided."""

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic_core import to_json
from temporalio import activity

from holdfast.agent_loop import Decision, GateRule, LoopState, access_problem, edit_problem, open_gates
from holdfast.agents import Agent
from holdfast.checkpoints import Question
from holdfast.local.pipeline_results import Kept
from holdfast.messages import ToolCall
from holdfast.temporal import names
from holdfast.temporal.hosts import AgentHost, TypedErrors
from holdfast.temporal.wire import GATES_BYTES, INLINE_BYTES, SHOWN_BYTES, edit_digest, shown_arguments

T = TypeVar("T")

_LOG = logging.getLogger("holdfast")


async def find_gates(
    host: AgentHost, agent: Agent, state: LoopState, requester: str | None
) -> tuple[list[Question], dict[str, str]]:
    """Return the gates that the calls of a state have to pass, and by id why some cannot run at all."""
    if not state.unasked:
        return [], {}

    async def find() -> tuple[list[Question], dict[str, str], list[str]]:
        return open_gates(agent, state.unasked, at=datetime.now(UTC), requester=requester)

    questions, refused, faults = await host.thread.run(find())
    for fault in faults:
        _LOG.warning("Agent %s: %s", agent.name, fault)
    size = 0
    for question in list(questions):
        size += len(to_json(question))
        if size > GATES_BYTES:
            questions.remove(question)
            refused[str(question.tool_call_id)] = "Not run: too many calls of a turn need approval; ask again for these"
    return questions, refused


def arguments_shown(calls: Iterable[ToolCall], gates: Sequence[Question]) -> dict[str, Any]:
    """Return by id what people see of the arguments of calls that they are asked about; all of them if not large."""
    asked, shown, left = {gate.tool_call_id for gate in gates}, {}, INLINE_BYTES
    for call in calls:
        if call.id in asked:
            left -= (size := len(to_json(call.arguments)))
            shown[call.id] = call.arguments if size <= SHOWN_BYTES and left > 0 else shown_arguments(call.arguments)
    return shown


class GateActivities:
    """Records what people decide."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    def all(self) -> list[Any]:
        return [self.decide, self.searchable]

    @activity.defn(name=names.DECIDE)
    async def decide(self, reference: dict[str, Any]) -> str | None:
        """Record a decision; returns why it does not count."""
        with TypedErrors():
            given = dict(reference)
            run, at = given.pop("run"), datetime.fromisoformat(given.pop("at"))
            refused: str | None = given.pop("refused")
            has_rule, call = given.pop("access", False), given.pop("call", None)
            decision = Decision(**given)
            if refused is None and has_rule:
                may = self._host.pipeline().access.get("approve")
                denied = await self._called(lambda: access_problem(may, decision.by))
                refused = None if denied is None else f"gate {decision.gate}: {denied} decide it"
            if refused is None and call is not None:
                refused = await self._edited(run, call, decision)
            info = activity.info()
            key = f"{info.workflow_run_id}/{info.activity_id}"
            await Kept(run, self._host.store).record(decision, at, refused, key)
            return refused

    @activity.defn(name=names.SEARCHABLE)
    async def searchable(self) -> bool:
        """Return whether the namespace has the search attributes."""
        return self._host.search

    async def _edited(self, run: str, call: Sequence[int], decision: Decision) -> str | None:
        """Keep edited arguments, or return why they cannot be used."""
        turn, position = call
        record = await self._host.load_record(run, turn)
        asked, agent = record.calls[position], self._host.agent()
        gate = next((one.gate for one in record.gates if one.tool_call_id == asked.id and one.gate is not None), None)
        rule = GateRule.read(gate["rule"]) if gate is not None else GateRule()
        problem = await self._called(lambda: edit_problem(agent, asked, decision, rule))
        if problem is None:
            await keep_edit(self._host, run, decision.edit)
        return problem

    async def _called(self, function: Callable[[], T]) -> T:
        """Call what a user declared, where users' code runs."""

        async def work() -> T:
            return function()

        return await self._host.thread.run(work())


async def keep_edit(host: AgentHost, run: str, edit: object) -> None:
    """Keep the arguments that people have put in place of the model's."""
    if edit is not None:
        await host.store.save_reply(edit_place(run, edit_digest(edit)), 0, to_json(edit).decode())


def edit_place(run: str, digest: str) -> str:
    """Return where edited arguments are kept."""
    return f"{run}/edits/{digest}"
