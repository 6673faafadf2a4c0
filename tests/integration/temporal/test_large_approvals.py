"""Calls with arguments too large for a history: people read all of them before they decide."""

import pytest
from support.commands import data, done, refused
from support.temporal_runs import Temporal, pending, result

from integration.temporal.test_temporal_tool_approvals import TEAM, at_gate
from standfast import StoreError, sqlite_store
from standfast.temporal.client.board.gate_contents import is_cut, load_arguments


async def test_all_of_large_arguments_is_read_from_the_store_by_what_is_pending(temporal: Temporal) -> None:
    async with at_gate(temporal, TEAM, "x" * 20_000, "small") as (handle, _):
        large, small = await pending(handle, 2)
        assert (is_cut(large), is_cut(small)) == (True, False)
        assert large["size"] == len('{"text":"' + "x" * 20_000 + '","times":1}')
        assert await load_arguments(temporal.store, large) == {"text": "x" * 20_000, "times": 1}
        assert await load_arguments(temporal.store, small) == {"text": "small", "times": 1}


async def test_other_arguments_than_those_of_the_digest_are_not_shown(temporal: Temporal) -> None:
    async with at_gate(temporal, TEAM, "x" * 20_000) as (handle, _):
        (item,) = await pending(handle)
        for changed in ({"digest": "0" * 32}, {"reference": {**item["reference"], "position": 1}}):
            with pytest.raises(StoreError, match="do not match the digest"):
                await load_arguments(temporal.store, {**item, **changed})


async def test_another_store_does_not_have_them(temporal: Temporal) -> None:
    async with at_gate(temporal, TEAM, "x" * 20_000) as (handle, _), sqlite_store(":memory:") as other:
        (item,) = await pending(handle)
        with pytest.raises(StoreError, match="is it the worker's"):
            await load_arguments(other, item)


async def test_the_command_shows_all_of_them_and_approves_none_unseen(temporal: Temporal) -> None:
    async with at_gate(temporal, TEAM, "x" * 20_000) as (handle, posted):
        (item,) = await pending(handle)
        given = [handle.id, "--store", str(temporal.store._path)]
        shown = await data(temporal, "pending", *given, "--full")
        assert shown[0]["arguments"]["text"] == "x" * 20_000
        unseen = await refused(temporal, "approve", *given, "--by", "ada", "--yes")
        assert "which were not shown here" in unseen
        assert posted == []
        await done(temporal, "approve", *given, "--by", "ada", "--digest", item["digest"])
        await result(handle)
        assert posted == ["x" * 20_000]
