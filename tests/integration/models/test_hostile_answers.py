"""Answers that keep a worker busy or are unreadable end in one clear error, in both drivers."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel
from support.doubles import echo
from support.drivers import Driver
from support.temporal_runs import Run, Temporal, pending, result, until

from integration.local.test_tool_approvals import posts, world
from standfast import Agent, Approval, pipeline, run_pipeline
from standfast.runtime import users_functions
from standfast.temporal import start_pipeline
from standfast.testing import ScriptedModel

MEGABYTE = 1_000_000


class Found(BaseModel):
    items: list[int] = []


# At the length of the first, an expression that once read fences held the interpreter for a quarter of a minute.
HOSTILE = {
    "a fence that is never closed": "```json\n" + "\n" * 2_000 + "x",
    "a megabyte of line breaks in a fence": "```json\n" + "\n" * MEGABYTE + "```",
    "brackets": "[" * MEGABYTE,
    "objects": '{"a":' * (MEGABYTE // 5),
    "wrong items": '{"items": [' + ",".join(['"x"'] * (MEGABYTE // 4)) + "]}",
    "a long number": '{"items": [' + "9" * MEGABYTE + "]}",
    "the same key": "{" + ",".join(['"items":1'] * (MEGABYTE // 10)) + "}",
    "half characters": "\ud800" * MEGABYTE,
    "NUL": "\0" * MEGABYTE,
    "marks of direction": "\u202e" * (MEGABYTE // 3),
    "marks of a cut": "\n[cut: 1,1 of 1 bytes]" * (MEGABYTE // 22),
    "marks of Markdown": "*_`[<&" * (MEGABYTE // 6),
}
CPU_SECONDS = 10  # of this process, server apart; the longest takes one


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
async def test_a_hostile_answer_is_read_at_once_and_refused_in_words(driver: Driver, answer: str) -> None:
    agent = Agent("finder", instructions="Find.", output=Found)
    before = time.process_time()
    ended = await driver.run(agent, ScriptedModel([answer] * 9))
    assert time.process_time() - before < CPU_SECONDS
    assert ended.status == "error"
    assert "does not fit the agent's output" in str(ended.error)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("count", [3_000, 1])
async def test_hostile_calls_are_answered_one_by_one(driver: Driver, count: int) -> None:
    calls = [{"id": "call_1_1", "name": f"{'x' * (MEGABYTE // count)}{n}", "arguments": "["} for n in range(count)]
    before = time.process_time()
    ended = await driver.run(
        Agent("caller", instructions="Call.", tools=[echo]), ScriptedModel([{"tool_calls": calls}, "done"])
    )
    assert time.process_time() - before < CPU_SECONDS
    assert ended.status == "complete"


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[BaseModel]]:
    """Return an output that is never done with reading while the test lasts."""
    release = threading.Event()

    def for_ever(items: list[int]) -> list[int]:
        release.wait()
        return items

    class Slow(BaseModel):
        items: Annotated[list[int], AfterValidator(for_ever)]

    monkeypatch.setattr(users_functions, "READ_SECONDS", 0.2)
    yield Slow
    release.set()


async def test_an_output_that_is_never_done_with_reading_ends_in_words(
    driver: Driver, endless: type[BaseModel]
) -> None:
    ended = await driver.run(Agent("slow", instructions="Find.", output=endless), ScriptedModel(['{"items": []}'] * 9))
    assert (ended.status, "reading it took more than 0.2 s" in str(ended.error)) == ("error", True)


async def test_an_output_whose_validator_raises_anything_ends_in_words(driver: Driver) -> None:
    def fail(items: list[int]) -> list[int]:
        raise KeyError("price")

    class Broken(BaseModel):
        items: Annotated[list[int], AfterValidator(fail)]

    ended = await driver.run(Agent("broken", instructions="Find.", output=Broken), ScriptedModel(['{"items": []}'] * 9))
    assert (ended.status, "KeyError: 'price'" in str(ended.error)) == ("error", True)


async def test_a_kept_turn_that_cannot_be_read_is_told_in_words_and_read_again_when_it_is_mended(
    temporal: Temporal, tmp_path: Path
) -> None:
    posted, post = world(Approval(message="ok?"))
    agent, model = Agent("a", tools=[post]), posts("hi")
    async with temporal.worker(agent, llm=model):
        handle = await temporal.start(agent)
        (item,) = await pending(handle)
    path = tmp_path / "standfast.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        (kept,) = db.execute("SELECT reply FROM model_replies WHERE turn = 1").fetchone()
        db.execute("UPDATE model_replies SET reply = ? WHERE turn = 1", (kept[: len(kept) // 2],))
    again = await temporal.elsewhere()
    async with again.worker(agent, llm=model):
        await handle.signal("approve", {"gate": "c1", "by": "ada", "digest": item["digest"]})
        words = await until(lambda: _last_failure(handle))
        assert "turn 1 of run" in words
        assert "cannot be read" in words
        assert not posted
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("UPDATE model_replies SET reply = ? WHERE turn = 1", (kept,))
        assert (await result(handle))["status"] == "complete"
    assert posted == ["hi"]


async def _last_failure(handle: Run) -> str | None:
    described = await handle.describe()
    texts = [one.last_failure.message for one in described.raw_description.pending_activities]
    return next((text for text in texts if "cannot be read" in text), None)


@pytest.mark.parametrize("driver_name", ["in process", "on Temporal"])
async def test_a_step_whose_output_is_never_done_with_reading_ends_in_words(
    temporal: Temporal, driver_name: str, endless: type[BaseModel]
) -> None:
    agent = Agent("slow", instructions="Find.")
    found = pipeline("slow-steps", input=str).step("find", agent=agent, input=str, output=endless).build()
    model = ScriptedModel(['```json\n{"items": []}\n```'] * 9)
    if driver_name == "in process":
        ended: Any = await run_pipeline(found, input="go", llm=model)
        reason, words = ended.error_reason, ended.error
    else:
        async with temporal.worker(agent, llm=model, pipelines=[found]):
            handle = await start_pipeline(temporal.client, found, input="go", task_queue=temporal.name)
            answer = await result(handle)
            reason, words = answer["error_reason"], answer["error"]
    assert (reason, "more than 0.2 s" in words) == ("schema-mismatch", True)
