"""Pipelines in process: continuing from stored results or by a run key, and observing."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from integration.pipelines.test_pipelines import Draft, echo, says, writer
from standfast import (
    Approval,
    InputError,
    MemoryStoreNotDurableError,
    Message,
    SessionAccessDeniedError,
    SessionConflictError,
    Step,
    memory_store,
    pipeline,
    run_pipeline,
)
from standfast.events import StepCompleted, StepFailed, StepStarted
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel

gated = (
    pipeline("w")
    .step("write", agent=writer, output=Draft)
    .step("ok", approval=Approval(message="fine?", timeout="7d"))
    .step("publish", agent=writer, input=lambda ctx: f"publish {ctx.prev['write'].title}")
    .build()
)


# --- results that the caller keeps ---


async def test_a_later_run_continues_after_the_gate_with_the_results_before_it() -> None:
    first = await run_pipeline(gated, llm=says('{"title": "A"}'))
    assert first.deadline is not None
    kept = json.loads(json.dumps({name: step.model_dump() for name, step in first.step_results.items()}))
    model = ScriptedModel(echo)
    went = await run_pipeline(gated, llm=model, resume_after="ok", previous_results=kept)
    assert went.status == "complete"
    assert went.outputs["publish"] == {"response": "<publish A>"}
    assert list(went.step_results) == ["write", "publish"]
    assert len(model.calls) == 1


async def test_a_run_may_continue_after_any_step() -> None:
    model = ScriptedModel(echo)
    went = await run_pipeline(
        gated, llm=model, resume_after="write", previous_results={"write": {"status": "complete", "response": "{}"}}
    )
    assert (went.status, went.failed_step, went.error_reason) == ("error", "write", "schema-mismatch")
    assert model.calls == []


@pytest.mark.parametrize("kept", [None, {}, {"other": {"status": "complete"}}], ids=str)
async def test_results_that_are_missing_are_named(kept: Any) -> None:
    with pytest.raises(InputError, match="resume_after='ok' skips write, but previous_results has no result of it"):
        await run_pipeline(gated, llm=says(), resume_after="ok", previous_results=kept)


async def test_a_step_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r'^Step "nope" not found in workflow "w"\.$'):
        await run_pipeline(gated, llm=says(), resume_after="nope")


@pytest.mark.parametrize("kept", [5, ["write"], {"write": "complete"}, {"write": {"status": "fine"}}], ids=str)
async def test_results_that_cannot_be_read_are_refused(kept: Any) -> None:
    with pytest.raises(InputError, match="previous_results cannot be used"):
        await run_pipeline(gated, llm=says(), resume_after="ok", previous_results=kept)


async def test_continuing_after_a_gate_is_a_decision_of_who_does_it() -> None:
    strict = pipeline("w").step("ok", approval=Approval(approvers=["ada"])).step("b", agent=writer).build()
    with pytest.raises(InputError, match="bob may not decide it"):
        await run_pipeline(strict, llm=says(), resume_after="ok", user_id="bob")
    assert (await run_pipeline(strict, llm=says("done"), resume_after="ok", user_id="ada")).status == "complete"


async def test_results_that_are_complete_are_not_made_again() -> None:
    flow = pipeline("w").step("a", agent=writer).step("b", agent=writer, output=Draft).build()
    first = await run_pipeline(flow, llm=says("one", "no JSON"))
    assert first.error_reason == "invalid-json"
    kept = {"a": first.step_results["a"]}
    went = await run_pipeline(flow, llm=says('{"title": "B"}'), previous_results=kept)
    assert went.outputs == {"a": {"response": "one"}, "b": Draft(title="B")}


# --- a run key ---


async def test_a_run_key_continues_where_it_stopped(store: SQLiteStore) -> None:
    model = ScriptedModel(_draft_then_echo)
    first = await run_pipeline(gated, llm=model, store=store, run_key="k")
    assert (first.status, first.run_key) == ("pending", "k")
    again = await run_pipeline(gated, llm=model, store=store, run_key="k")
    assert (again.pending_step, again.deadline) == (first.pending_step, first.deadline)
    decision = {"gate": "ok", "decision": "approve", "by": "ada"}
    went = await run_pipeline(gated, llm=model, store=store, run_key="k", decisions=[decision])
    assert went.outputs["publish"] == {"response": "<publish A>"}
    assert await run_pipeline(gated, llm=model, store=store, run_key="k") == went
    assert len(model.calls) == 2


def _draft_then_echo(messages: Sequence[Message], tools: Any) -> str:
    return '{"title": "A"}' if messages[-1].content == 'Execute step "write"' else echo(messages, tools)


async def test_a_run_without_a_key_gets_one(store: SQLiteStore) -> None:
    first = await run_pipeline(gated, llm=ScriptedModel(_draft_then_echo), store=store)
    went = await run_pipeline(
        gated, llm=ScriptedModel(_draft_then_echo), store=store, run_key=first.run_key, resume_after="ok"
    )
    assert went.status == "complete"


async def test_only_the_step_that_failed_runs_again(store: SQLiteStore) -> None:
    flow = pipeline("w").step("a", agent=writer).step("b", agent=writer, output=Draft).build()
    first = await run_pipeline(flow, llm=says("one", "no JSON"), store=store, run_key="k")
    assert first.failed_step == "b"
    model = says('{"title": "B"}')
    went = await run_pipeline(flow, llm=model, store=store, run_key="k")
    assert (went.status, len(model.calls)) == ("complete", 1)
    assert [message.role for message in model.calls[0].messages] == ["system", "user"]  # of a separate session


async def test_every_decision_is_recorded(store: SQLiteStore) -> None:
    strict = pipeline("w").step("ok", approval=Approval(approvers=["ada"])).build()
    await run_pipeline(strict, llm=says(), store=store, run_key="k")
    with pytest.raises(InputError):
        await run_pipeline(strict, store=store, run_key="k", decisions=[
            {"gate": "ok", "decision": "approve", "by": "bob", "comment": "me, too"}])  # fmt: skip
    await run_pipeline(strict, store=store, run_key="k", decisions=[
        {"gate": "ok", "decision": "reject", "by": "ada", "edit": {"n": 1}}])  # fmt: skip
    rows = [(row.by, row.decision, row.comment, row.edit, row.refused) for row in await store.load_decisions("w/k")]
    assert rows == [
        ("bob", "approve", "me, too", None, "gate ok: bob may not decide it; ada may"),
        ("ada", "reject", None, {"n": 1}, None),
    ]


@pytest.mark.parametrize(
    ("on_timeout", "ends"),
    [("fail", "approval-timeout"), ("reject", "approval-rejected"), ("approve", None)],
)
async def test_a_gate_whose_time_is_over_has_decided_itself(
    store: SQLiteStore, on_timeout: Any, ends: str | None
) -> None:
    gate = Approval(timeout=timedelta(milliseconds=1), on_timeout=on_timeout)
    flow = pipeline("w").step("ok", approval=gate).step("b", agent=writer).build()
    await run_pipeline(flow, llm=says("done"), store=store, run_key="k")
    await asyncio.sleep(0.005)
    decision = {"gate": "ok", "decision": "approve"}
    late = run_pipeline(flow, llm=says("done"), store=store, run_key="k", decisions=[decision])
    with pytest.raises(InputError, match=r"was (timed out|rejected|approved) already"):
        await late
    went = await run_pipeline(flow, llm=says("done"), store=store, run_key="k")
    assert (went.status, went.error_reason) == ("complete" if ends is None else "error", ends)


async def test_a_gate_that_escalates_asks_others(store: SQLiteStore) -> None:
    leads = Approval(approvers=["eve"], timeout="1d")
    gate = Approval(approvers=["ada"], timeout=timedelta(milliseconds=1), on_timeout="escalate", escalate_to=leads)
    flow = pipeline("w").step("ok", approval=gate).build()
    await run_pipeline(flow, store=store, run_key="k")
    await asyncio.sleep(0.005)
    with pytest.raises(InputError, match="ada may not decide it; eve may"):
        await run_pipeline(flow, store=store, run_key="k", decisions=[
            {"gate": "ok", "decision": "approve", "by": "ada"}])  # fmt: skip
    went = await run_pipeline(flow, store=store, run_key="k", decisions=[
        {"gate": "ok", "decision": "approve", "by": "eve"}])  # fmt: skip
    assert went.outputs == {"ok": {"decision": "approve", "by": ["eve"], "comment": None, "edit": None}}


async def test_a_run_belongs_to_who_began_it_and_to_its_input(store: SQLiteStore) -> None:
    flow = pipeline("w").step("ok", approval=Approval()).build()
    await run_pipeline(flow, input=1, store=store, run_key="k", user_id="ada")
    with pytest.raises(SessionAccessDeniedError):
        await run_pipeline(flow, store=store, run_key="k", user_id="bob")
    with pytest.raises(InputError, match="started with another input"):
        await run_pipeline(flow, input=2, store=store, run_key="k", user_id="ada")
    assert (await run_pipeline(flow, input=1, store=store, run_key="k", user_id="ada")).status == "pending"


async def test_a_run_is_in_one_place_at_a_time(store: SQLiteStore, tmp_path: Path) -> None:
    waits = asyncio.Event()

    async def slow(messages: Any, tools: Any) -> str:
        await waits.wait()
        return "done"

    flow = pipeline("w").step("a", agent=writer).build()
    first = asyncio.create_task(run_pipeline(flow, llm=ScriptedModel(slow), store=store, run_key="k"))
    await asyncio.sleep(0.02)
    with pytest.raises(SessionConflictError, match="is in flight"):
        await run_pipeline(flow, llm=says(), store=store, run_key="k")
    waits.set()
    assert (await first).status == "complete"


DIES = """
import asyncio, os, sys
from standfast import Agent, pipeline, run_pipeline, sqlite_store, tool
from standfast.testing import ScriptedModel

file, path, safe, dies = sys.argv[1], sys.argv[2], sys.argv[3] == "True", sys.argv[4] == "True"

@tool(safe_to_retry=safe)
def post(text: str) -> str:
    "Post it."
    with open(file, "a") as posts:
        posts.write(text)
    if dies:
        os._exit(9)
    return "posted"

flow = (
    pipeline("w")
    .step("write", agent=Agent("writer"))
    .step("post", run=post, input=lambda ctx: {"text": "x"})
    .step("end", agent=Agent("writer"))
    .build()
)
model = ScriptedModel(lambda messages, tools: messages[-1].content)
went = asyncio.run(run_pipeline(flow, llm=model, store=sqlite_store(path), run_key="k"))
print(went.status, went.failed_step, went.error_reason, len(model.calls))
"""


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("safe", "posts", "ends"), [(False, "x", "error post tool-failed 0"), (True, "xx", "complete None None 1")]
)
def test_a_process_that_dies_in_an_effect_is_followed_by_one_that_knows(
    tmp_path: Path, safe: bool, posts: str, ends: str
) -> None:
    def program(dies: bool) -> "subprocess.CompletedProcess[str]":
        arguments = [str(tmp_path / "posts"), str(tmp_path / "kept.db"), str(safe), str(dies)]
        return subprocess.run([sys.executable, "-c", DIES, *arguments], capture_output=True, text=True)

    assert program(dies=True).returncode == 9
    assert program(dies=False).stdout.strip() == ends
    assert program(dies=False).stdout.strip().rpartition(" ")[0] == ends.rpartition(" ")[0]
    assert (tmp_path / "posts").read_text() == posts


DIES_IN_A_ROUND = """
import asyncio, os, sys
from standfast import Agent, Step, pipeline, run_pipeline, sqlite_store, tool
from standfast.testing import ScriptedModel

file, path, dies = sys.argv[1:]

def note(line):
    with open(file, "a") as notes:
        notes.write(line + "\\n")

@tool
def post(text: str) -> str:
    "Post it."
    note(text)
    return "posted"

def say(messages, _):
    if messages[-1].content == dies:
        os._exit(9)
    note(messages[-1].content)
    return "said"

def two(ctx):
    return [1, 2]

writer = Agent("writer")
flow = (
    pipeline("w")
    .map("items", Step("line", agent=writer, input=lambda ctx: f"line {ctx.index}"), over=two, concurrency=1)
    .map("posts", Step("post", run=post, input=lambda ctx: {"text": f"post {ctx.index}"}), over=two, concurrency=1)
    .loop("rounds", Step("draft", agent=writer, input=lambda ctx: f"draft {ctx.iteration}"),
          until=lambda ctx: ctx.iteration == 2)
    .loop("sent", Step("send", run=post, input=lambda ctx: {"text": f"send {ctx.iteration}"}),
          until=lambda ctx: ctx.iteration == 1)
    .step("end", agent=writer, input=lambda ctx: "end")
    .build()
)
went = asyncio.run(run_pipeline(flow, llm=ScriptedModel(say), store=sqlite_store(path), run_key="k"))
print(went.status)
"""


@pytest.mark.slow
def test_what_items_and_rounds_gave_before_their_process_died_is_found_by_the_next(tmp_path: Path) -> None:
    def program(dies: str) -> "subprocess.CompletedProcess[str]":
        arguments = [str(tmp_path / "notes"), str(tmp_path / "kept.db"), dies]
        return subprocess.run([sys.executable, "-c", DIES_IN_A_ROUND, *arguments], capture_output=True, text=True)

    for dies in ("line 1", "draft 1", "draft 2", "end"):
        assert program(dies).returncode == 9, dies
    assert program("nowhere").stdout.strip() == "complete"
    happened = (tmp_path / "notes").read_text().splitlines()
    assert sorted(happened) == sorted(
        ["line 0", "line 1", "post 0", "post 1", "draft 0", "draft 1", "draft 2", "send 0", "send 1", "end"]
    )


# --- what is refused, and who looks on ---


async def test_events_tell_of_steps_that_really_run() -> None:
    seen: list[Any] = []
    first = await run_pipeline(gated, llm=says('{"title": "A"}'), on_progress=seen.append)
    await run_pipeline(
        gated, llm=says("done"), resume_after="ok", previous_results=first.step_results, on_progress=seen.append
    )
    assert seen == [
        StepStarted("write"), StepCompleted("write", 1, '{"title": "A"}'),
        StepStarted("publish"), StepCompleted("publish", 1, "done"),
    ]  # fmt: skip


async def test_a_step_whose_answer_does_not_fit_has_started_and_failed() -> None:
    seen: list[Any] = []
    await run_pipeline(gated, llm=says("no JSON"), on_progress=seen.append)
    assert [type(event) for event in seen] == [StepStarted, StepFailed]
    assert (seen[1].step, seen[1].reason) == ("write", "invalid-json")


async def test_a_person_who_looks_on_cannot_disturb() -> None:
    def raises(event: Any) -> None:
        raise RuntimeError("no")

    assert (await run_pipeline(gated, llm=says('{"title": "A"}'), on_progress=raises)).status == "pending"


async def test_what_cannot_be_run_is_refused(store: SQLiteStore) -> None:
    with pytest.raises(InputError, match=r"end the builder with \.build\(\)"):
        await run_pipeline(pipeline("w").step("a", agent=writer))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="needs a store"):
        await run_pipeline(gated, run_key="k")
    with pytest.raises(MemoryStoreNotDurableError):
        await run_pipeline(gated, store=memory_store())
    with pytest.raises(InputError, match="run_key must be"):
        await run_pipeline(gated, store=store, run_key="a b")
    with pytest.raises(InputError, match="A decision is invalid: decision"):
        await run_pipeline(gated, store=store, decisions=[{"gate": "ok", "decision": "maybe"}])


async def test_a_cancel_ends_what_runs(store: SQLiteStore) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def slow(messages: Any, tools: Any) -> str:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return ""

    flow = pipeline("w").parallel("both", Step("a", agent=writer), Step("b", agent=writer)).build()
    task = asyncio.create_task(run_pipeline(flow, llm=ScriptedModel(slow), store=store, run_key="k"))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert (await run_pipeline(flow, llm=ScriptedModel(echo), store=store, run_key="k")).status == "complete"
