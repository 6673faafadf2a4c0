"""Deliberate changes that break runs in flight: replaying the saved histories detects each of them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio import workflow
from test_replays import FOLDER, differing

from standfast.agent_loop import Gate, GateRule, LoopState
from standfast.temporal.wire import names, run_state
from standfast.temporal.wire.inputs import AgentInput
from standfast.temporal.wire.run_state import Progress
from standfast.temporal.wire.snapshots import Facts
from standfast.temporal.workflows.calls import tool_calls
from standfast.temporal.workflows.calls.tool_calls import Calls
from standfast.temporal.workflows.gates import approvals
from standfast.temporal.workflows.gates.gate_keeper import CallApprovals, GateKeeper
from standfast.temporal.workflows.inbox.messages import Questions
from standfast.temporal.workflows.run.agent_run_state import RunState
from standfast.temporal.workflows.run.agent_workflows import AgentRun, Closing
from standfast.temporal.workflows.run.pipeline_workflows import PipelineRun
from standfast.temporal.workflows.run.run_lifetime import Running
from standfast.temporal.workflows.run.run_parts import Pauses, RunParts, StoreWaits

Patch = pytest.MonkeyPatch
MUTANTS: list[Any] = []


def mutant(history: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Add a change, and the history that has to notice it."""

    def add(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTANTS.append(pytest.param(apply, history, id=apply.__name__.replace("_", " ")))
        return apply

    return add


def renamed(patch: Patch, owner: Any, function: str, old: str, new: str) -> None:
    """Have a function of the package return a key under another name."""
    original = getattr(owner, function)

    def returns(*arguments: Any, **options: Any) -> Any:
        found = original(*arguments, **options)
        return {new if key == old else key: value for key, value in found.items()}

    patch.setattr(owner, function, returns)


@mutant("storeless")
def an_activity_is_renamed(patch: Patch) -> None:
    patch.setattr(names, "SETTLE", "standfast.settled")


@mutant("escalated")
def the_messages_of_escalations_are_forgotten(patch: Patch) -> None:
    patch.setattr(GateRule, "asking", lambda rule, later: rule)


@mutant("escalated")
def a_gate_opens_that_is_too_large_to_be_read(patch: Patch) -> None:
    patch.setattr(approvals, "INLINE_BYTES", 500_000)


@mutant("answered_early")
def an_answer_is_refused_while_earlier_ones_are_looked_up(patch: Patch) -> None:
    patch.setattr(Questions, "_is_held", lambda questions, data: False)


@mutant("sent_again")
def a_decision_is_judged_before_a_reset_is_detected(patch: Patch) -> None:
    patch.setattr(GateKeeper, "_has_undetected_reset", lambda keeper: False)


@mutant("sent_again_to_rounds")
def a_users_workflow_judges_before_it_looks(patch: Patch) -> None:
    patch.setattr(Running, "may_follow_reset", lambda running, arrived: False)


@mutant("unseen")
def a_gate_is_no_longer_shown_whole_where_nothing_was_looked_up(patch: Patch) -> None:
    patch.setattr(approvals, "WHOLE_GATES", {"search": False})


@mutant("stopped")
def those_whom_a_guardrail_asks_are_forgotten(patch: Patch) -> None:
    patch.setattr(Gate, "_asking_next", lambda gate, at: replace(gate, later=(), status="approved"))


@mutant("held")
def nobody_tells_the_model_activity_what_was_decided(patch: Patch) -> None:
    patch.setattr(LoopState, "decided_answer", property(lambda state: None))


@mutant("hooks")
def a_local_activity_is_renamed(patch: Patch) -> None:
    patch.setattr(names, "OPEN", "standfast.begin")


@mutant("hooks")
def an_activity_is_left_out(patch: Patch) -> None:
    async def nothing(run: AgentRun) -> None:
        """Replace the hook by nothing."""

    patch.setattr(AgentRun, "_start_hook", nothing)


@mutant("gates")
def what_runs_at_once_begins_in_another_order(patch: Patch) -> None:
    original = PipelineRun._start

    def start(run: PipelineRun, todo: Any) -> None:
        original(run, type(todo)(tuple(reversed(todo.actions))))

    patch.setattr(PipelineRun, "_start", start)


@mutant("storeless")
def a_timer_is_added(patch: Patch) -> None:
    original = Calls._settle

    async def settle(calls: Calls, *arguments: Any, **options: Any) -> Any:
        await workflow.sleep(timedelta(seconds=1))
        return await original(calls, *arguments, **options)

    patch.setattr(Calls, "_settle", settle)


@mutant("storeless")
def a_key_that_tools_are_told_is_renamed(patch: Patch) -> None:
    renamed(patch, Calls, "_reference", "turn", "number")


@mutant("unknown")
def a_key_that_model_calls_are_told_is_renamed(patch: Patch) -> None:
    renamed(patch, RunState, "reference", "sources", "results")


@mutant("hooks")
def a_recorded_fact_is_renamed(patch: Patch) -> None:
    original = Facts.read

    def read(data: dict[str, Any], **options: Any) -> Facts:
        return original({key: value for key, value in data.items() if key != "hooks"}, **options)

    patch.setattr(Facts, "read", read)


@mutant("told")
def what_a_run_knows_of_webhooks_is_renamed(patch: Patch) -> None:
    original = RunParts.learn

    def learn(parts: RunParts, found: Mapping[str, Any]) -> None:
        original(parts, {key: value for key, value in found.items() if key != "notices"})

    patch.setattr(RunParts, "learn", learn)


@mutant("long")
def a_key_of_what_the_next_run_carries_on_is_renamed(patch: Patch) -> None:
    renamed(patch, Progress, "carried", "state", "loop_state")


@mutant("approvals_moved")
def a_key_of_what_the_run_before_has_carried_on_is_renamed(patch: Patch) -> None:
    original = Progress.read

    def read(data: dict[str, Any]) -> Progress:
        return original({key: value for key, value in data.items() if key != "calls"})

    patch.setattr(Progress, "read", read)


@mutant("stages")
def the_id_of_a_child_is_another(patch: Patch) -> None:
    patch.setattr(names, "child_id", lambda parent, name: f"{parent}.{name}")


@mutant("stages")
def a_key_of_a_childs_input_is_renamed(patch: Patch) -> None:
    renamed(patch, AgentInput, "plain", "step", "of")


@mutant("asked")
def a_signal_is_renamed(patch: Patch) -> None:
    patch.setattr(names, "APPROVE", "accept")


@mutant("asked")
def an_update_is_renamed(patch: Patch) -> None:
    patch.setattr(names, "DECIDE_UPDATE", "judge")


@mutant("paused")
def a_pause_does_not_wait(patch: Patch) -> None:
    async def goes_on(pauses: Pauses, name: str, message: str) -> bool:
        return True

    patch.setattr(Pauses, "pause", goes_on)


@mutant("attached")
def a_result_of_a_model_call_is_read_under_another_name(patch: Patch) -> None:
    patch.setattr(run_state, "read_calls", lambda data: [])


@mutant("awaited")
def the_result_of_a_run_has_another_key(patch: Patch) -> None:
    renamed(patch, Closing, "result", "session_id", "session")


@mutant("late")
def the_look_for_when_a_signal_was_sent_is_renamed(patch: Patch) -> None:
    patch.setattr(names, "SENT", "standfast.when_sent")


@mutant("recalled")
def the_look_for_answers_behind_a_reset_is_renamed(patch: Patch) -> None:
    patch.setattr(names, "ANSWERED", "standfast.answers")


@mutant("recalled")
def where_the_call_of_a_recalled_gate_is_has_another_key(patch: Patch) -> None:
    renamed(patch, CallApprovals, "recalled_with", "call", "position")


@mutant("skipped")
def a_skipped_call_is_answered_under_another_key(patch: Patch) -> None:
    renamed(patch, tool_calls, "source_of", "failed", "error")


@mutant("settled")
def the_ledger_is_not_told_that_an_agent_was_not_run(patch: Patch) -> None:
    patch.setattr(names, "AGENTS_SETTLED", "standfast.agents-told")


@mutant("junk")
def nothing_put_in_for_an_agents_end_is_another_agents(patch: Patch) -> None:
    patch.setattr(names, "OTHERS_SAID", "standfast.others-told")


@mutant("failed")
def an_agents_terminal_error_is_only_a_text(patch: Patch) -> None:
    patch.setattr(names, "TERMINAL_KEPT", "standfast.terminal-told")


@mutant("reported")
def a_report_that_the_store_is_away_changes_nothing(patch: Patch) -> None:
    patch.setattr(StoreWaits, "take_signal", lambda waits, data: None)


@pytest.mark.parametrize(("apply", "history"), MUTANTS)
async def test_a_change_that_breaks_runs_in_flight_is_noticed(
    apply: Callable[[Patch], None], history: str, monkeypatch: Patch
) -> None:
    path = FOLDER / f"{history}.json"
    before = await differing(path)
    apply(monkeypatch)
    assert set(await differing(path)) - set(before)
