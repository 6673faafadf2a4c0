"""An in-process decision lets the following step run once: after a failure, people are asked again."""

from pathlib import Path
from typing import Any

import pytest

from standfast import (
    Approval,
    InputError,
    PipelineResult,
    Step,
    TerminalError,
    pipeline,
    run_pipeline,
    sqlite_store,
    tool,
)
from standfast.stores import AgentStore

RUN_KEY = "order-1"


class Bank:
    """Pays whatever it is told to, and says that it failed as often as it is told to."""

    def __init__(self, fails: int) -> None:
        self.paid: list[int] = []
        self._fails = fails

    def pipeline(self, **approval: Any) -> Any:
        @tool
        async def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            if len(self.paid) <= self._fails:
                raise TerminalError("the line went dead")
            return f"paid {amount}"

        def amount(ctx: Any) -> dict[str, int]:
            return {"amount": (ctx.prev["ok"]["edit"] or {}).get("amount", 5)}

        asks = Step("ok", approval=Approval(message="Pay?", **approval))
        return pipeline("orders").step(asks).step("pay", run=pay, input=amount).build()


async def go(flow: Any, store: AgentStore, *decisions: dict[str, Any]) -> PipelineResult:
    return await run_pipeline(flow, store=store, run_key=RUN_KEY, decisions=decisions)


def approve(**more: Any) -> dict[str, Any]:
    return {"gate": "ok", "decision": "approve", "by": "ada", **more}


async def test_a_failed_payment_is_asked_about_again_before_it_is_tried_again(tmp_path: Path) -> None:
    bank, store = Bank(fails=2), sqlite_store(tmp_path / "a.db")
    flow = bank.pipeline()

    await go(flow, store)
    assert (await go(flow, store, approve())).error_reason == "tool-failed"
    again = await go(flow, store)
    assert (again.status, again.pending_step, bank.paid) == ("pending", "ok", [5])
    assert (await go(flow, store)).status == "pending"  # however often it is called

    assert (await go(flow, store, approve())).error_reason == "tool-failed"
    assert (await go(flow, store)).status == "pending"
    assert (await go(flow, store, approve())).status == "complete"
    assert bank.paid == [5, 5, 5]
    assert (await go(flow, store)).status == "complete"
    assert bank.paid == [5, 5, 5]
    rows = await store.load_decisions(f"orders/{RUN_KEY}")
    assert [row.refused for row in rows] == [None] * 3
    assert len({row.digest for row in rows}) == 3  # each was on a separate gate


async def test_a_person_who_looked_before_the_failure_has_not_approved_what_is_asked_after_it(tmp_path: Path) -> None:
    bank, store = Bank(fails=1), sqlite_store(tmp_path / "a.db")
    flow = bank.pipeline()
    await go(flow, store)
    await go(flow, store, approve())
    (counted,) = await store.load_decisions(f"orders/{RUN_KEY}")

    with pytest.raises(InputError, match="has changed"):
        await go(flow, store, approve(digest=counted.digest))
    assert bank.paid == [5]


async def test_what_is_approved_the_second_time_is_what_runs(tmp_path: Path) -> None:
    bank, store = Bank(fails=1), sqlite_store(tmp_path / "a.db")
    flow = bank.pipeline()
    await go(flow, store)
    await go(flow, store, approve(edit={"amount": 7}))

    went = await go(flow, store, approve(edit={"amount": 9}))

    assert (went.status, bank.paid) == ("complete", [7, 9])
    assert went.outputs["ok"]["edit"] == {"amount": 9}
    assert (await go(flow, store)).outputs == went.outputs


async def test_so_many_must_approve_it_again(tmp_path: Path) -> None:
    bank, store = Bank(fails=1), sqlite_store(tmp_path / "a.db")
    flow = bank.pipeline(approvers=["ada", "bob"], quorum=2)
    await go(flow, store)
    await go(flow, store, approve(), approve(by="bob"))

    half = await go(flow, store, approve())
    assert (half.status, half.approved_by, bank.paid) == ("pending", ("ada",), [5])
    assert (await go(flow, store, approve(by="bob"))).status == "complete"


async def test_a_step_that_is_done_is_not_asked_about_again(tmp_path: Path) -> None:
    bank, store = Bank(fails=0), sqlite_store(tmp_path / "a.db")
    flow = bank.pipeline()
    await go(flow, store)
    await go(flow, store, approve())

    assert (await go(flow, store)).status == "complete"
    assert bank.paid == [5]
