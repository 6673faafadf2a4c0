"""Runs with five gates and a question, each killed at one point; every life is a fork of one process.

A model makes two calls in one turn, then a question and a call in one turn, then two more calls one after another. The
decisions are: approve, reject, reject, edit, approve. `python -m MODULE` reads lines of `[folder, store, point]`, kills
the run once at the point, continues it, and prints the outcome. An empty point kills nothing; the output lists all
points.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from standfast import Agent, Approval, InterruptError, SessionConflictError, is_interrupted, resume, run, tool
from standfast.temporal.client.clients import RunsInProcess
from standfast.testing import ScriptedModel
from support.any_store import open_store
from support.foreign_shops import note, noted
from support.mortal_programs import TESTS
from support.transcripts import asks_for, call

Call = tuple[str, str, dict[str, Any]]

CHARGE: dict[str, Any] = {"cents": 5}
STEPS: tuple[tuple[Call, ...], ...] = (
    (("c0", "charge", CHARGE), ("c1", "charge", CHARGE)),
    (("c2", "ask", {}), ("c3", "charge", CHARGE)),
    (("c4", "charge", CHARGE),),
    (("c5", "charge", CHARGE),),
)
VERDICTS: dict[str, dict[str, Any]] = {
    "c0": {"decision": "approve"},
    "c1": {"decision": "reject", "comment": "no 1"},
    "c3": {"decision": "reject", "comment": "no 3"},
    "c4": {"decision": "approve", "edit": {"cents": 4}},
    "c5": {"decision": "approve"},
}
CHARGED = {"c0": "5", "c4": "4", "c5": "5"}
"""What each approved call charges."""
TOLD = {"c0": "5", "c1": "rejected by ada: no 1", "c2": "visa", "c3": "rejected by ada: no 3", "c4": "4", "c5": "5"}
"""A part of what the model reads of each call."""

_READS = ("load_", "list_", "running_calls", "identity", "place", "standing_approvals")


@dataclass
class Desk:
    """One life of a run."""

    folder: Path
    place: str
    point: str
    _counts: Counter[str] = field(default_factory=Counter)

    def reach(self, point: str) -> None:
        """Note a point, and kill this process if it is the one, once in the life of the folder."""
        self._counts[point] += 1
        named = f"{point} {self._counts[point]}"
        note(self.folder, "points", named)
        if named == self.point and not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def answer(self, read: Sequence[str]) -> tuple[Call, ...]:
        """Return the model's next calls, and none when it has read all results."""
        self.reach("model")
        at = 0
        for step in STEPS:
            if at == len(read):
                return step
            at += len(step)
        return ()

    def charge(self, cents: int) -> dict[str, int]:
        self.reach("before the charge")
        note(self.folder, "charges", str(cents))
        self.reach("behind the charge")
        return {"charged": cents}

    def store(self) -> Any:
        return _Dying(open_store(self.place), self)

    def verdict(self, gate: str, digest: str) -> dict[str, Any]:
        note(self.folder, "gates", gate)
        return {"gate": gate, "by": "ada", "digest": digest, **VERDICTS[gate]}

    async def decide_outside(self, address: str, gate: str) -> None:
        """Decide on a gate where nothing runs."""
        async with open_store(self.place) as store:
            people = RunsInProcess(store)
            item = next(one for one in await people.pending(address) if one["name"] == gate)
            await people.decide(address, self.verdict(item["name"], item["digest"]))
        self.reach("decided")


class _Dying:
    """A store of any kind; its process may die on both sides of each write."""

    def __init__(self, store: Any, desk: Desk) -> None:
        self._store, self._desk = store, desk

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name.startswith(("_", *_READS)) or not asyncio.iscoroutinefunction(method):
            return method

        async def write(*arguments: Any, **options: Any) -> Any:
            self._desk.reach(f"before {name}")
            result = await method(*arguments, **options)
            self._desk.reach(f"after {name}")
            return result

        return write

    async def __aenter__(self) -> "_Dying":
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._store.__aexit__(*error)


def running(make: Callable[[Desk], Any], **options: Any) -> Callable[[Desk], Awaitable[dict[str, str]]]:
    """Return a life of an agent that our driver in this process runs; every second decision is made outside."""

    async def live(desk: Desk) -> dict[str, str]:
        agent = make(desk)
        async with desk.store() as store:
            common: dict[str, Any] = {"session_id": "order-7", "store": store, **options}
            result = await run(agent, message="Sell it.", message_id="sale", **common)
            while is_interrupted(result):
                if not result.approvals:
                    result = await resume(agent, result.checkpoint, "visa", **common)
                elif (item := result.approvals[0]).gate in ("c0", "c3", "c5"):
                    await desk.decide_outside(f"in-process:{agent.name}/order-7", item.gate)
                    result = await run(agent, message="Sell it.", message_id="sale", **common)
                else:
                    result = await run(agent, decisions=[desk.verdict(item.gate, item.digest)], **common)
            assert result.status == "complete"
            messages = await store.load_messages("order-7")
            assert [message.role for message in messages].count("user") == 1
            return {str(one.tool_call_id): one.content for one in messages if one.role == "tool"}

    return live


def play(live: Callable[[Desk], Awaitable[dict[str, str]]]) -> None:
    """Play the runs of this program's input."""
    for line in sys.stdin:
        folder, *words = json.loads(line)
        sys.stdout.write(json.dumps(_played(live, Desk(Path(folder), *words))) + "\n")
        sys.stdout.flush()


def _played(live: Callable[[Desk], Awaitable[dict[str, str]]], desk: Desk) -> dict[str, Any]:
    desk.folder.mkdir()
    deaths = 0
    while (process := os.fork()) and (code := os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])) == -signal.SIGKILL:
        deaths += 1
    if not process:
        code = 1
        try:
            told = asyncio.run(_until_free(live, desk))
            (desk.folder / "told").write_text(json.dumps(told))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    told = json.loads((desk.folder / "told").read_text()) if code == 0 else None
    kept = {name: noted(desk.folder, name) for name in ("points", "charges", "gates")}
    return {"failed": code, "deaths": deaths, "told": told, **kept}


async def _until_free(live: Callable[[Desk], Awaitable[dict[str, str]]], desk: Desk) -> dict[str, str]:
    while True:
        try:
            return await live(desk)
        except SessionConflictError:  # the dead process holds it for a while, on D1
            if not (desk.folder / "died").exists():
                raise
            await asyncio.sleep(0.1)


# --- for tests ---


def check_killed_everywhere(
    module: str, folder: Path, place_of: Callable[[Path], str] | None = None, every: int = 10
) -> None:
    """Play a module's run, kill it at every n-th point, and check each.

    Args:
        place_of: returns the place of a new store for a folder; by default SQLite in it.
    """
    place_of = place_of or (lambda where: json.dumps(["sqlite", [str(where / "standfast.db")], {}]))
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-m", module], env=environment, **pipes) as program:

        def played(point: str, number: int) -> dict[str, Any]:
            assert program.stdin is not None
            assert program.stdout is not None
            where = folder / str(number)
            print(json.dumps([str(where), place_of(where), point]), file=program.stdin, flush=True)
            said: dict[str, Any] = json.loads(program.stdout.readline())
            return said

        whole = played("", 0)
        _check_told(whole, "nowhere", 0)
        for number, point in enumerate(whole["points"][::every]):
            _check_told(played(point, number + 1), point, 1)


def _check_told(said: dict[str, Any], point: str, deaths: int) -> None:
    """Check that a call was asked about and run at most once, and that the model was told what happened."""
    told: dict[str, str] | None = said["told"]
    assert (said["failed"], said["deaths"]) == (0, deaths), (point, said)
    assert told is not None
    assert sorted(told) == list(TOLD), (point, told)
    unknown = {call for call in ("c2", *CHARGED) if "tool-durability-error" in told[call]}
    assert len(unknown) <= deaths, (point, told)
    assert [call for call in TOLD if call not in unknown and TOLD[call] not in told[call]] == [], (point, told)
    ran = Counter(said["charges"])
    known = Counter(CHARGED[call] for call in CHARGED if call not in unknown)
    open_ = Counter(CHARGED[call] for call in unknown if call in CHARGED)
    assert known <= ran <= known + open_, (point, said)
    decided = Counter(said["gates"])
    assert set(decided) == set(VERDICTS), (point, decided)
    assert decided.total() <= len(VERDICTS) + deaths, (point, decided)  # a decision may die before it is recorded


def _own(desk: Desk) -> Any:
    @tool(approval=Approval())
    def charge(cents: int) -> dict[str, int]:
        return desk.charge(cents)

    @tool
    def ask() -> str:
        raise InterruptError("Which card?")

    return Agent("shop", tools=[charge, ask])


def _own_model(desk: Desk) -> Any:
    def say(messages: Any, tools: Any) -> Any:
        made = desk.answer([message.content for message in messages if message.role == "tool"])
        return asks_for(*(call(name, id_, **arguments) for id_, name, arguments in made)) if made else "sold"

    return ScriptedModel(say)


if __name__ == "__main__":
    play(lambda desk: running(_own, llm=_own_model(desk))(desk))
