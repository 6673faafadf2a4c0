"""A store's file is moved or replaced while it is open: nothing is written to the lost file."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.stores import append, contents
from support.temporal_runs import Temporal, check_healthy, result, until, waiting
from support.transcripts import asks_for, call

from standfast import Agent, StoreError, sqlite_store, tool
from standfast.testing import ScriptedModel


async def test_a_store_that_was_moved_away_takes_nothing_until_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "moved.db"
    async with sqlite_store(path) as store:
        await append(store, "before")
        path.rename(tmp_path / "elsewhere.db")
        with pytest.raises(StoreError, match="was moved or deleted while it was open"):
            await append(store, "meanwhile")
        assert not path.exists()
        (tmp_path / "elsewhere.db").rename(path)
        await append(store, "after")
        assert await contents(store) == ["before", "after"]


async def test_a_store_that_was_replaced_takes_nothing_until_its_file_is_back(tmp_path: Path) -> None:
    path, other = tmp_path / "one.db", tmp_path / "other.db"
    async with sqlite_store(other) as store:
        await append(store, "another's")
    async with sqlite_store(path) as store:
        await append(store, "before")
        path.rename(tmp_path / "elsewhere.db")
        other.rename(path)
        for work in (partial(append, store, "meanwhile"), partial(contents, store)):
            with pytest.raises(StoreError, match="was replaced by another file while it was open"):
                await work()
        (tmp_path / "elsewhere.db").replace(path)
        assert await contents(store) == ["before"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("how", ["file", "folder", "replaced"])
async def test_a_run_waits_while_its_store_is_somewhere_else_and_its_tool_runs_once(
    temporal: Temporal, tmp_path: Path, how: str
) -> None:
    effects, folder, aside = list[str](), tmp_path / "stores", tmp_path / "aside"
    folder.mkdir()
    path = folder / "moved.db"

    def move(here: Path, there: Path) -> None:
        if how == "folder":
            here.rename(there)
        else:
            for one in here.glob(f"{path.name}*"):  # with SQLite's files beside it
                one.replace(there / one.name)

    @tool
    async def post(text: str) -> str:
        """Post a text."""
        effects.append(text)
        return text

    agent, model = Agent("poster", tools=[post]), ScriptedModel([asks_for(call("post", "p1", text="x")), "done"])
    async with (
        sqlite_store(path) as store,
        temporal.worker(agent, llm=model, store=store, store_patience=0.3),
    ):
        if how != "folder":
            aside.mkdir()
        move(folder, aside)
        if how == "replaced":
            async with sqlite_store(path) as other:
                await other.load_session("s")
        run = await temporal.start(agent)
        shown = await until(partial(_waits_for_the_store, run))
        assert "while it was open" in shown["message"]
        move(aside, folder)
        assert (await result(run))["response"] == "done"
        await check_healthy(run)
        assert [message.content for message in await store.load_messages(temporal.session())][-1] == "done"
    assert effects == ["x"]


async def _waits_for_the_store(run: Any) -> Any:
    return next((item for item in await waiting(run) if item["kind"] == "store"), None)
