"""Effects and gates of in-process pipelines: nothing bypasses them."""

import asyncio
from typing import Any

import pytest

from integration.pipelines.test_pipelines import Draft, echo, says, writer
from standfast import (
    Approval,
    InputError,
    Step,
    pipeline,
    run_pipeline,
    tool,
)
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


async def test_an_effect_whose_result_does_not_fit_is_not_repeated(store: SQLiteStore) -> None:
    paid: list[str] = []

    @tool
    async def pay() -> dict[str, int]:
        """Pay."""
        paid.append("x")
        return {"receipt": 7}

    flow = pipeline("w").step("pay", run=pay, output=Draft).build()
    for _ in range(3):
        went = await run_pipeline(flow, store=store, run_key="k")
        assert (went.failed_step, went.error_reason) == ("pay", "schema-mismatch")
    fits = pipeline("w").step("pay", run=pay, output=dict[str, int]).build()
    assert (await run_pipeline(fits, store=store, run_key="k")).outputs == {"pay": {"receipt": 7}}
    assert paid == ["x"]


async def test_continuing_after_a_later_step_decides_on_the_gates_before_it(store: SQLiteStore) -> None:
    flow = pipeline("w").step("ok", approval=Approval(approvers=["ada"])).step("b", agent=writer).build()
    options: dict[str, Any] = {"store": store, "run_key": "k", "llm": says("done")}
    await run_pipeline(flow, **options, user_id="bob")
    later = {"resume_after": "b", "previous_results": {"b": {"status": "complete", "response": "hi"}}}
    with pytest.raises(InputError, match="bob may not decide it"):
        await run_pipeline(flow, **options, **later, user_id="bob")
    assert [row.by for row in await store.load_decisions("w/k")] == ["bob"]


async def test_runs_whose_keys_look_alike_are_two(store: SQLiteStore) -> None:
    inner = pipeline("inner").step("web", agent=writer).build()
    flow = pipeline("w").step("par", pipeline=inner).step("web", agent=writer, input=lambda ctx: ctx.input).build()
    await run_pipeline(flow, input="A", llm=ScriptedModel(echo), store=store, run_key="x")
    went = await run_pipeline(flow, input="B", llm=ScriptedModel(echo), store=store, run_key="x.par")
    assert went.outputs["web"] == {"response": "<B>"}


async def test_a_decision_that_does_not_count_disturbs_nothing_beside_it(store: SQLiteStore) -> None:
    paid: list[str] = []

    @tool
    async def pay() -> str:
        """Pay."""
        paid.append("begun")
        await asyncio.sleep(0.05)
        paid.append("ended")
        return "paid"

    gate = Step("ok", approval=Approval(approvers=["ada"]))
    flow = pipeline("w").parallel("both", Step("pay", run=pay), gate).build()
    decision = {"gate": "both/ok", "decision": "approve", "by": "bob"}
    with pytest.raises(InputError, match="bob may not decide it"):
        await run_pipeline(flow, input="go", store=store, run_key="k", decisions=[decision])
    went = await run_pipeline(flow, store=store, run_key="k", decisions=[{**decision, "by": "ada"}])
    assert (went.status, paid) == ("complete", ["begun", "ended"])


async def test_a_decision_at_a_gate_that_is_not_open_is_refused_and_recorded(store: SQLiteStore) -> None:
    flow = pipeline("w").step("ok", approval=Approval()).step("then", approval=Approval()).build()
    approve = {"gate": "ok", "decision": "approve", "by": "ada"}
    await run_pipeline(flow, store=store, run_key="k")
    for _ in range(2):  # the same once more changes nothing
        went = await run_pipeline(flow, store=store, run_key="k", decisions=[approve])
    assert went.pending_step == "then"
    for other in ({"by": "bob"}, {"edit": 7}):
        with pytest.raises(InputError, match="gate ok was decided already"):
            await run_pipeline(flow, store=store, run_key="k", decisions=[{**approve, **other}])
    rows = [(row.by, row.edit, row.refused) for row in await store.load_decisions("w/k")]
    late = "gate ok was decided already"
    assert rows == [("ada", None, None), ("bob", None, late), ("ada", 7, late)]


async def test_a_run_that_was_never_begun_cannot_be_decided_on(store: SQLiteStore) -> None:
    """Else a typo in the run key would begin another run, approve it and carry it out."""
    flow = pipeline("w").step("ok", approval=Approval()).build()
    await run_pipeline(flow, store=store, run_key="order-1")
    with pytest.raises(InputError, match="there is no run ordre-1 of pipeline 'w' to decide on"):
        await run_pipeline(flow, store=store, run_key="ordre-1", decisions=[{"gate": "ok", "decision": "approve"}])


async def test_what_a_function_raises_says_at_which_step(store: SQLiteStore) -> None:
    flow = pipeline("w").step("a", agent=writer, input=lambda ctx: ctx.prev["nope"]).build()
    with pytest.raises(KeyError) as raised:
        await run_pipeline(flow, llm=says(), store=store, run_key="r")
    assert raised.value.__notes__ == ["at step 'a' of pipeline 'w', run_key='r'"]


async def test_a_quorum_tells_who_has_approved(store: SQLiteStore) -> None:
    flow = pipeline("w").step("ok", approval=Approval(approvers=["ada", "bob"], quorum=2)).build()
    approve = {"gate": "ok", "decision": "approve", "by": "ada"}
    await run_pipeline(flow, store=store, run_key="k")
    went = await run_pipeline(flow, store=store, run_key="k", decisions=[approve])
    assert (went.status, went.approved_by, went.pending_steps) == ("pending", ("ada",), ("ok",))
