"""PostgreSQL is recovered from `pg_basebackup` and its archived log: to the latest point, or to an earlier one."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.postgres import PostgresServer, new_schema, postgres_server
from support.temporal_runs import Run, Temporal, check_healthy, failure, pending, result, until, waiting
from support.transcripts import asks_for, call, kind_of

from standfast import Agent, Approval, NotConfirmedError, tool
from standfast.runtime.restored_stores import current_epoch
from standfast.stores import open_store
from standfast.testing import ScriptedModel

_DEBIAN = Path("/usr/lib/postgresql/15/bin")
POSTED: list[str] = []


@tool(approval=Approval(message="ok?", timeout=None))
async def post(text: str) -> str:
    """Post a text."""
    POSTED.append(text)
    return f"posted {text}"


poster = Agent("poster", tools=[post])


def posts_twice() -> ScriptedModel:
    def answer(messages: list[object], _: object) -> object:
        done = sum(getattr(message, "role", "") == "tool" for message in messages)
        return "done" if done == 2 else asks_for(call("post", f"c{done + 1}", text=f"t{done + 1}"))

    return ScriptedModel(answer)


@pytest.fixture
def cluster() -> Iterator[PostgresServer]:
    """A server that archives its log, with the commands of the operations guide."""
    if not _DEBIAN.is_dir():
        pytest.skip("pg_basebackup is missing: apt-get install postgresql-15")
    POSTED.clear()
    archive = 'mkdir -p "$PWD/../archive" && test ! -f ../archive/%f && cp %p ../archive/%f'
    with postgres_server("-c", "archive_mode=on", "-c", f"archive_command={archive}", programs=_DEBIAN) as server:
        yield server


def back_up(cluster: PostgresServer) -> None:
    data = Path(cluster._data)
    cluster._run(
        "pg_basebackup", "-D", str(data.with_name("backup")), "-d", cluster.dsn(), "-c", "fast", "-X", "stream"
    )


def recover(cluster: PostgresServer, *settings: str) -> None:
    """Put the backup in place of the data, and start the server, which recovers from the archive."""
    cluster.kill()
    data = Path(cluster._data)
    data.rename(data.with_name("lost"))
    data.with_name("backup").rename(data)
    # What the dead server had not archived: its disk is still there.
    unarchived = data.with_name("lost") / "pg_wal"
    if not settings:
        for one in unarchived.iterdir():
            if one.is_file() and not (data.with_name("archive") / one.name).exists():
                subprocess.run(["cp", "-p", str(one), str(data / "pg_wal")], check=True)
    written = "\n".join(["restore_command = 'cp ../archive/%f %p'", *settings])
    for name, text in (("postgresql.auto.conf", written), ("recovery.signal", "")):
        with open(data / name, "a") as file:
            file.write(f"{text}\n")
        os.chown(data / name, *(lambda found: (found.st_uid, found.st_gid))(data.stat()))
    cluster.start()


async def has_ended_recovery(cluster: PostgresServer) -> bool:
    with contextlib.suppress(AssertionError):
        return cluster.sql("SELECT pg_is_in_recovery()") == "f"
    return False


async def waits_for(run: Run, name: str) -> dict[str, object] | None:
    return next((item for item in await waiting(run) if item["name"] == name), None)


async def decide(temporal: Temporal, run: Run, gate: str) -> None:
    with contextlib.suppress(NotConfirmedError):
        await temporal.people_who_wait(1).decide(run.id, gate, "approve")


async def begun(temporal: Temporal, cluster: PostgresServer, address: str) -> Run:
    """Return a run that waits at its second gate, after a backup at its first, where a point of recovery is as well."""
    async with open_store(address) as store, temporal.worker(poster, llm=posts_twice(), store=store):
        run = await temporal.start(poster)
        await pending(run)
        back_up(cluster)
        cluster.sql("SELECT pg_create_restore_point('first_gate')")
        await decide(temporal, run, "c1")
        await until(lambda: waits_for(run, "c2"))
    segment = cluster.sql("SELECT pg_walfile_name(pg_switch_wal())")
    archived = f"SELECT last_archived_wal >= '{segment}' FROM pg_stat_archiver"
    await until(lambda: cluster.sql(archived) == "t")  # it archives beside what else it does
    return run


@pytest.mark.slow
async def test_a_cluster_that_is_recovered_to_the_latest_point_continues(
    temporal: Temporal, cluster: PostgresServer
) -> None:
    address = f"{cluster.dsn()}?schema={new_schema()}"
    run = await begun(temporal, cluster, address)
    recover(cluster)
    await until(lambda: has_ended_recovery(cluster))
    async with open_store(address) as store, temporal.worker(poster, llm=posts_twice(), store=store):
        await decide(temporal, run, "c2")
        assert (await result(run))["status"] == "complete"
        assert await current_epoch(store) == 1  # another timeline
    assert POSTED == ["t1", "t2"]
    await check_healthy(run)


@pytest.mark.slow
async def test_a_cluster_that_is_recovered_to_an_earlier_point_repeats_no_effect_in_silence(
    temporal: Temporal, cluster: PostgresServer
) -> None:
    address = f"{cluster.dsn()}?schema={new_schema()}"
    run = await begun(temporal, cluster, address)
    recover(cluster, "recovery_target_name = 'first_gate'", "recovery_target_action = 'promote'")
    await until(lambda: has_ended_recovery(cluster))
    worker = {"llm": posts_twice(), "store_patience": 1}
    async with open_store(address) as store, temporal.worker(poster, store=store, **worker):
        await decide(temporal, run, "c2")
        shown = await until(lambda: waits_for(run, "store"))
        assert "is older than run" in str(shown["message"])
        assert POSTED == ["t1"]
        await temporal.people.resume(run.id, "abort")
        assert (await failure(run)).type == "StoreBehindError"
        again = await temporal.start(poster, None)
        for gate in ("c1", "c2"):
            await until(lambda gate=gate: waits_for(again, gate))
            await temporal.people.decide(again.id, gate, "approve")
        assert (await result(again))["status"] == "complete"
        messages = await store.load_messages(temporal.session())
    assert kind_of(messages, "c1") == "tool-durability-error"
    assert POSTED == ["t1", "t2"]
    await check_healthy(again)
