"""Many people decide on the page while it and the worker are killed: each gate counts once, and nobody is misled."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from acceptance.replays import failed_replays
from acceptance.temporal_world import World, until
from standfast.notices.approval_links import ApprovalLinks
from standfast.temporal.client.runs.owners import Run
from standfast.web.page.rendering import run_path

RUNS, PEOPLE = 4, 4
SILENT = 5  # seconds after which an activity of a dead worker is begun again
SECRET = "a secret of the links for tests"
_UNSURE = (502, 503, 504)  # it may count; the sender looks, or sends it again


@dataclass
class Page:
    """The page as a separate process, and what it told whom about each run."""

    folder: Path
    address: str
    port: int
    accepted: set[tuple[str, str, str]] = field(default_factory=set)  # run, who, decision
    refused: set[tuple[str, str, str]] = field(default_factory=set)
    unsure: set[tuple[str, str, str]] = field(default_factory=set)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def token(self, person: str) -> str:
        return f"the token of {person} for tests"

    def start(self) -> None:
        people = self.folder / "people.toml"
        names = [f"p{number}" for number in range(PEOPLE)]
        people.write_text("".join(f'[people.{who}]\nrole = "approver"\ntoken = "{self.token(who)}"\n' for who in names))
        given = ["--port", str(self.port), "--people", str(people), "--store", str(self.folder / "standfast.db")]
        self.process = subprocess.Popen(
            [Path(sys.executable).with_name("standfast"), "web", "--address", self.address, *given],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "STANDFAST_LINK_SECRET": SECRET},
        )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    async def decide(self, client: httpx.AsyncClient, item: dict[str, Any], who: str, decision: str) -> None:
        """Decide on the page by a bearer token, or by a signed link, until the outcome is known."""
        run, said = item["workflow_id"], {"decision": decision, "gate": item["name"], "digest": item["digest"]}
        path, headers = f"/runs/{run_path(run)}/decide", {"Authorization": f"Bearer {self.token(who)}"}
        if who == "p0":
            made = ApprovalLinks(page=self.url, secret=SECRET, by=who)
            path, headers = made.to(run, item).removeprefix(self.url), {}
        told = (run, who, decision)
        while True:
            try:
                answer = await client.post(path, data=said, headers=headers)
            except httpx.ConnectError:  # the page starts
                await asyncio.sleep(0.05)
            except httpx.TransportError:  # the page died while it handled it
                self.unsure.add(told)
            else:
                if answer.status_code not in _UNSURE:
                    assert answer.status_code in (303, 409), answer.text
                    (self.accepted if answer.status_code == 303 else self.refused).add(told)
                    return
                self.unsure.add(told)


@pytest.fixture
def page(world: World) -> Iterator[Page]:
    """Give the page, which comes up while the first worker does."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        page = Page(world.folder, world.address, free.getsockname()[1])
    page.start()
    try:
        yield page
    finally:
        page.kill()


@pytest.fixture
async def asked(world: World) -> dict[str, tuple[Run, dict[str, Any]]]:
    """Give runs that wait at their gates, with their waiting items."""
    await world.worker("a", dead_after=SILENT)
    found: dict[str, tuple[Run, dict[str, Any]]] = {}
    given = [(f"run-{number}", "charge_approved") for number in range(RUNS)]
    soon = timedelta(seconds=2)  # a task that died with its worker is given to another one
    for run in await asyncio.gather(*(world.start(*one, task_timeout=soon) for one in given)):
        await world.asks(run)
        found[run.id] = (run, (await world.people.pending(run.id))[0] | {"workflow_id": run.id})
    return found


@pytest.mark.slow
async def test_each_gate_counts_once_and_everybody_is_told_the_truth_while_page_and_worker_die(
    world: World, page: Page, asked: dict[str, tuple[Run, dict[str, Any]]]
) -> None:
    async with httpx.AsyncClient(base_url=page.url, timeout=30) as client, asyncio.timeout(60):
        sending = [
            asyncio.create_task(
                page.decide(client, item, f"p{number}", "approve" if (number + place) % 3 else "reject")
            )
            for place, (_, item) in enumerate(asked.values())
            for number in range(PEOPLE)
            for _ in range(2)  # a double click
        ]
        await until(lambda: bool(page.accepted), "somebody was heard")
        world.processes[0].kill()
        page.kill()
        page.start()
        await world.worker("b", dead_after=SILENT)
        await asyncio.gather(*sending)
    counted = set()
    for number, (run, _) in enumerate(asked.values()):
        assert (await run.result())["status"] == "complete"
        rows = await world.store.load_decisions((await run.describe()).raw_info.first_run_id)
        (verdict,) = [row for row in rows if row.refused is None]
        counted.add((run.id, str(verdict.by), str(verdict.decision)))
        assert world.effects(f"run-{number}.1") == (verdict.decision == "approve")
    assert page.accepted <= counted
    assert counted <= page.accepted | page.unsure
    assert await failed_replays(world) == []
