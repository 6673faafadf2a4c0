"""Starts that are repeated because their outcome is unknown."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.temporal_runs import Temporal, events, result

from standfast import Agent, SessionConflictError
from standfast.stores import SQLiteStore
from standfast.stores.protocol import DecisionRecord
from standfast.temporal import OnRecord
from standfast.testing import ScriptedModel


class Forgetful(SQLiteStore):
    """A store of a process that dies before it has noted what a start came to."""

    async def record_decision(self, record: DecisionRecord) -> None:
        if record.outcome == "intended":
            await super().record_decision(record)


@pytest.mark.parametrize("if_running", ["refuse", "message"])
async def test_a_start_is_one_run_even_if_its_process_died_before_it_could_say_so(
    temporal: Temporal, tmp_path: Path, if_running: Any
) -> None:
    async with (
        Forgetful(tmp_path / "standfast.db") as store,
        temporal.worker(Agent("a"), llm=ScriptedModel(["ok"] * 3)),
    ):
        for keeps in (store, temporal.store):  # then another process, which lives
            given = {"on_record": OnRecord(store=keeps, by="ada", id="one"), "if_running": if_running}
            run = await temporal.start("a", **given)
            await result(run)
        await result(await temporal.start("a", "and?"))  # another one of the session
        given = {"on_record": OnRecord(store=store, by="ada", id="one"), "if_running": if_running}
        assert (await temporal.start("a", **given)).id == run.id
    said = [message.content for message in await temporal.messages() if message.role == "user"]
    assert said == ["go", "and?"]
    first = str((await events(run))[0].workflow_execution_started_event_attributes.first_execution_run_id)
    assert [row.outcome for row in await temporal.store.load_decisions(first)] == ["done"]


async def test_a_start_that_is_sent_twice_at_once_is_one_run_without_an_audit_trail(temporal: Temporal) -> None:
    starts = [temporal.start("a", on_record=OnRecord(store=None, id="one")) for _ in range(5)]
    runs = await asyncio.gather(*starts)
    with pytest.raises(SessionConflictError):
        await temporal.start("a", on_record=OnRecord(store=None, id="another"))
    async with temporal.worker(Agent("a"), llm=ScriptedModel(["ok"])):
        assert [(await result(run))["response"] for run in runs] == ["ok"] * 5
