"""People decide concurrently through all doors; `python -m support.races` in tests/ runs a thousand races."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.race_doors import Said
from support.races import Ended, Race, Told, faults, races, run_all, world
from support.racing_runs import DOORS

from standfast.stores import DecisionRecord
from standfast.testing import DevServer

RACES = 45  # each pair of doors once


@pytest.mark.slow
async def test_nobody_who_races_is_told_what_is_not_so(temporal_server: DevServer, tmp_path: Path) -> None:
    async with world(temporal_server.address, tmp_path) as made:
        done = await run_all(made, races(RACES, seed=2))
    assert [ended for ended in done if ended.wrong] == []
    assert {told.who[:-1] for ended in done for told in ended.told} >= {*DOORS}
    # The first one wins by luck, but one must always win. A signal returns nothing to its sender.
    assert {told.who[:-1] for ended in done for told in ended.told if told.said.counts} - {"signal"}


def row(by: str, decision: str, **more: Any) -> DecisionRecord:
    known = {"journal_key": "k", "gate": "c1", "at": datetime.now(UTC), "key": "run/receipt 1"}
    return DecisionRecord.model_validate({**known, "decision": decision, "by": by, **more})


ADA = ("ada", "approve", True)
WRONG: dict[str, tuple[list[Any], list[DecisionRecord], list[int], str]] = {
    "told that it counts": ([ADA], [row("bob", "approve")], [1], "counts, and it does not"),
    "told that it does not": ([("bob", "reject", False)], [row("bob", "reject")], [], "does not count, and it does"),
    "decided twice": ([ADA], [row("ada", "approve"), row("bob", "reject")], [1], "decided more than once"),
    "ran twice": ([ADA], [row("ada", "approve")], [1, 1], "was not approved"),
    "ran unapproved": ([("bob", "reject", True)], [row("bob", "reject")], [1], "was not approved"),
    "did not run": ([ADA], [row("ada", "approve")], [], "was not shipped"),
    "ran otherwise": ([ADA], [row("ada", "approve", edit={"amount": 7})], [1], "approved with 7"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_race_with_a_fault_is_found(what: str) -> None:
    told, counted, shipped, why = WRONG[what]
    said = [Told(who, decision, "c1", Said(counts)) for who, decision, counts in told]
    found = faults(Ended(Race(1, "plain", ()), said, counted, shipped, "completed"))
    assert any(why in one for one in found), found
