"""A process dies while a call is approved in advance: the call runs once, and is recorded once."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from integration.temporal.test_standing_approvals import SESSION, payer, pays, x
from standfast import is_interrupted, memory_store, run, sqlite_store
from standfast.runtime.pipeline_results import Kept
from standfast.stores import StandingFilter


class Died(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_process_that_dies_at_a_decision_in_advance_finds_it_again(tmp_path: Path, when: str) -> None:
    paid, agent = payer()
    record, died = Kept.record, []

    async def dies(kept: Kept, decision: Any, *args: Any, **options: Any) -> None:
        if decision.standing is None or died:
            await record(kept, decision, *args, **options)
            return
        died.append(when)
        if when == "after":
            await record(kept, decision, *args, **options)
        raise Died

    async with sqlite_store(tmp_path / "a.db") as store:
        given: Any = {"session_id": "s", "store": store, "llm": pays(x(), x())}
        first = await run(agent, message="go", **given)
        assert is_interrupted(first)
        [item] = first.approvals
        wish = {"gate": item.gate, "decision": "approve", "by": "ana", "digest": item.digest, "remember": SESSION}
        with patch.object(Kept, "record", dies), pytest.raises(Died):
            await run(agent, decisions=[wish], **given)
        assert len(paid) == 1
        ended = await run(agent, **given)
        rows = await store.load_decisions("payer/s")
    assert (ended.status, len(paid)) == ("complete", 2)
    assert [(row.gate, row.refused, row.standing is None) for row in rows] == [("c1", None, True), ("c2", None, False)]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_process_that_dies_while_one_is_given_gives_it_with_the_decision_or_not_at_all(
    tmp_path: Path, when: str
) -> None:
    paid, agent = payer()
    async with sqlite_store(tmp_path / "a.db") as store:
        given: Any = {"session_id": "s", "store": store, "llm": pays(x(), x())}
        first = await run(agent, message="go", **given)
        assert is_interrupted(first)
        [item] = first.approvals
        wish = {"gate": item.gate, "decision": "approve", "by": "ana", "digest": item.digest, "remember": SESSION}
        give = store.give_standing_approval

        async def dies(approval: Any, decided: Any) -> None:
            if when == "after":
                await give(approval, decided)
            raise Died

        with patch.object(store, "give_standing_approval", dies), pytest.raises(Died):
            await run(agent, decisions=[wish], **given)
        kept, rows = await store.standing_approvals(StandingFilter()), await store.load_decisions("payer/s")
        assert len(kept) == len(rows) == (1 if when == "after" else 0)
        ended = await run(agent, decisions=[wish], **given)
    assert (ended.status, len(paid)) == ("complete", 2)


async def test_a_run_without_a_store_that_keeps_them_remembers_nothing() -> None:
    paid, agent = payer()
    model = pays(x(), x())
    first = await run(agent, message="go", llm=model)
    assert is_interrupted(first)
    [item] = first.approvals
    wish = {"gate": item.gate, "decision": "approve", "by": "ana", "digest": item.digest, "remember": SESSION}
    with pytest.raises(Exception, match="has no store for standing approvals"):
        await run(agent, checkpoint=first.checkpoint, decisions=[wish], llm=model)
    assert paid == []


async def test_a_store_in_memory_remembers_for_its_own_lifetime() -> None:
    paid, agent = payer()
    store, model = memory_store(), pays(x(), x())
    first = await run(agent, message="go", store=store, llm=model)
    assert is_interrupted(first)
    [item] = first.approvals
    wish = {"gate": item.gate, "decision": "approve", "by": "ana", "digest": item.digest, "remember": SESSION}
    ended = await run(agent, session_id=first.session_id, decisions=[wish], store=store, llm=model)
    assert (ended.status, len(paid)) == ("complete", 2)
    assert len(await store.standing_approvals(StandingFilter())) == 1
