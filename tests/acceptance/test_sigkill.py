"""A process is killed in every window of a tool call; another process continues its session."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PROGRAM = '''
import asyncio, json, os, signal, sys
from standfast import Agent, NotHappened, RunResult, run, sqlite_store, tool
from standfast.testing import ScriptedModel

folder, window, kind = sys.argv[1:]
ledger = f"{folder}/effects.txt"


def here(name):
    if name == window:
        os.kill(os.getpid(), signal.SIGKILL)


async def note(text: str) -> str:
    """Append a line to a file that standfast knows nothing of."""
    here("in the handler, before the effect")
    with open(ledger, "a") as file:
        file.write(text + "\\n")
        file.flush()
        os.fsync(file.fileno())
    here("in the handler, after the effect")
    return f"noted {text}"


def note_plainly(text: str) -> str:
    """Do the same in a plain function, which runs in a thread."""
    return asyncio.run(note(text))


class Windows:
    """Forwards everything to a store and dies around its writes."""

    def __init__(self, store):
        self._store, self._writes = store, 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def append_messages_atomic(self, *args, **options):
        self._writes += 1
        here(f"before write {self._writes}")
        result = await self._store.append_messages_atomic(*args, **options)
        here(f"after write {self._writes}")
        return result


def answer(messages, tools):
    said = sum(message.role == "assistant" for message in messages)
    call = {"id": "c1", "name": "note", "arguments": {"text": "hello"}}
    return "done" if said else {"tool_calls": [call]}


async def main():
    handler = note_plainly if kind == "plain" else note
    declared = tool(name="note", safe_to_retry=kind == "safe")(handler)
    agent, model = Agent("noter", tools=[declared]), ScriptedModel(answer)
    async with sqlite_store(f"{folder}/standfast.db") as store:
        message = None if await store.load_session("s") else "go"
        result = await run(agent, message=message, llm=model, store=Windows(store), session_id="s")
        stored = [message.model_dump(mode="json") for message in await store.load_messages("s")]
    print(json.dumps({"status": result.status, "model_calls": len(model.calls), "stored": stored}))


asyncio.run(main())
'''

WINDOWS = (
    "before write 1",
    "after write 1",
    "in the handler, before the effect",
    "in the handler, after the effect",
    "before write 2",
    "after write 2",
    "before write 3",
    "after write 3",
)
BEFORE_THE_EFFECT = WINDOWS[1:3]
IN_DOUBT = WINDOWS[1:5]


class Ended(NamedTuple):
    code: int
    output: str
    errors: str


def start(folder: Path, window: str, kind: str) -> Ended:
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", PROGRAM, str(folder), window, kind],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def killed_and_resumed(folder: Path, window: str, kind: str) -> dict[str, Any]:
    assert start(folder, window, kind) == Ended(-signal.SIGKILL, "", "")
    resumed = start(folder, "nowhere", kind)
    assert (resumed.code, resumed.errors) == (0, "")
    result: dict[str, Any] = json.loads(resumed.output)
    return result


def effects(folder: Path) -> int:
    path = folder / "effects.txt"
    return len(path.read_text().splitlines()) if path.exists() else 0


def shape(stored: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return role and content; of a durability error its kind, of a call its id."""
    lines = []
    for message in stored:
        content = message["content"]
        if message.get("tool_calls"):
            content = "calls " + " ".join(call["id"] for call in message["tool_calls"])
        elif "tool-durability-error" in content:
            content = json.loads(content)["kind"]
        lines.append((message["role"], content))
    return lines


def transcript(result: str) -> list[tuple[str, str]]:
    return [("user", "go"), ("assistant", "calls c1"), ("tool", result), ("assistant", "done")]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("window", WINDOWS)
def test_an_unsafe_call_of_a_killed_process_has_its_effect_at_most_once(tmp_path: Path, window: str) -> None:
    resumed = killed_and_resumed(tmp_path, window, "unsafe")
    result = "tool-durability-error" if window in IN_DOUBT else "noted hello"
    assert (resumed["status"], shape(resumed["stored"])) == ("complete", transcript(result))
    assert effects(tmp_path) == (0 if window in BEFORE_THE_EFFECT else 1)


def test_an_unsafe_call_in_a_thread_of_a_killed_process_has_its_effect_at_most_once(tmp_path: Path) -> None:
    resumed = killed_and_resumed(tmp_path, "in the handler, after the effect", "plain")
    assert (effects(tmp_path), shape(resumed["stored"])) == (1, transcript("tool-durability-error"))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("window", WINDOWS)
def test_a_safe_call_of_a_killed_process_runs_again_and_the_model_never_sees_the_crash(
    tmp_path: Path, window: str
) -> None:
    resumed = killed_and_resumed(tmp_path, window, "safe")
    assert (resumed["status"], shape(resumed["stored"])) == ("complete", transcript("noted hello"))
    assert effects(tmp_path) == (2 if window in ("in the handler, after the effect", "before write 2") else 1)


def test_a_session_that_was_finished_when_its_process_died_calls_no_model_again(tmp_path: Path) -> None:
    resumed = killed_and_resumed(tmp_path, "after write 3", "unsafe")
    assert (resumed["model_calls"], resumed["status"]) == (0, "complete")


@pytest.mark.slow
def test_a_process_that_dies_again_while_it_continues_changes_nothing(tmp_path: Path) -> None:
    assert start(tmp_path, "in the handler, after the effect", "unsafe").code == -signal.SIGKILL
    assert start(tmp_path, "before write 1", "unsafe").code == -signal.SIGKILL
    assert start(tmp_path, "after write 1", "unsafe").code == -signal.SIGKILL
    resumed = json.loads(start(tmp_path, "nowhere", "unsafe").output)
    assert (effects(tmp_path), shape(resumed["stored"])) == (1, transcript("tool-durability-error"))


def test_a_killed_process_leaves_a_file_that_another_one_opens_and_closes_cleanly(tmp_path: Path) -> None:
    killed_and_resumed(tmp_path, "before write 2", "unsafe")
    files = ["effects.txt", "standfast.db", "standfast.db-lock", "standfast.db-mark"]
    assert sorted(os.listdir(tmp_path)) == files
