"""The guard shared by the frameworks' adapters: it distinguishes calls, and words a lost one for the model."""

import asyncio
import contextlib
import importlib
import inspect
import re
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

from standfast import DefinitionError, InputError, MemoryStoreNotDurableError, ToolDurabilityError, memory_store
from standfast.integrations._guards import ToolGuard, check_version, key_of
from standfast.stores import SQLiteStore


class DeferredError(Exception):
    """A framework's own: the tool waits for someone, and has not run."""


class CountingStore:
    """A store that notes what is asked of it."""

    durable = True

    def __init__(self, store: SQLiteStore) -> None:
        self._store = store
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def ask(*arguments: Any, **options: Any) -> Any:
            self.asked.append(name)
            return await found(*arguments, **options)

        return ask


class Charges:
    def __init__(self, *raised: Exception) -> None:
        self.raised, self.count = list(raised), 0

    async def __call__(self) -> Any:
        self.count += 1
        if self.raised:
            raise self.raised.pop(0)
        return {"charged": 5}


@pytest.fixture
def guard(store: SQLiteStore) -> ToolGuard:
    return ToolGuard(store, not_run=(DeferredError,))


async def test_tools_whose_long_names_begin_alike_are_told_apart(guard: ToolGuard) -> None:
    charge, names = Charges(), ["a" * 100, "a" * 100 + "b", "a" * 100 + "c"]
    for name in [*names, *names]:
        assert await guard.run(name, "call_1", {}, charge, key="order-7") == {"charged": 5}
    assert charge.count == 3


async def call(guard: ToolGuard, charge: Any, key: str = "k", cents: int = 5) -> Any:
    return await guard.run("charge", "call_1", {"cents": cents}, charge, key=key)


async def test_a_call_runs_once_and_its_result_is_kept(guard: ToolGuard) -> None:
    charge = Charges()
    assert [await call(guard, charge), await call(guard, charge)] == [{"charged": 5}] * 2
    assert charge.count == 1


async def test_a_guarded_call_is_two_writes_and_a_repeated_one_is_one(store: SQLiteStore) -> None:
    counting: Any = CountingStore(store)
    guard = ToolGuard(counting, not_run=(DeferredError,))

    async def asked(*raised: Exception, key: str) -> list[str]:
        counting.asked.clear()
        with contextlib.suppress(ValueError, DeferredError):
            await call(guard, Charges(*raised), key)
        return list(counting.asked)

    await asked(key="first")  # which takes a name for this process
    assert [await asked(key="a"), await asked(key="a")] == [["claim", "finish"], ["claim"]]
    assert [await asked(ValueError(), key="b"), await asked(key="b")] == [["claim", "finish"], ["claim"]]
    assert await asked(DeferredError(), key="c") == ["claim", "abandon"]
    counting.asked.clear()
    for _ in range(2):
        await asyncio.to_thread(guard.run_plain, "charge", "c", {}, lambda: 5, key="d")
    assert counting.asked == ["claim", "finish", "claim"]


async def test_what_a_tool_raised_passes_once_and_is_read_by_the_model_after_that(guard: ToolGuard) -> None:
    charge = Charges(ValueError("no such card"))
    with pytest.raises(ValueError, match="no such card"):
        await call(guard, charge)
    assert await call(guard, charge) == {"error": "ValueError: no such card"}
    assert charge.count == 1


async def test_a_result_that_is_not_json_is_lost_and_the_model_reads_that_it_ran(guard: ToolGuard) -> None:
    async def odd() -> Any:
        return object()

    assert (await call(guard, odd))["error"].startswith("ran, but its result was lost")
    assert (await call(guard, odd))["error"].startswith("ran, but its result was lost")


async def test_a_call_that_has_not_run_may_be_made_again_with_what_people_made_of_it(guard: ToolGuard) -> None:
    charge = Charges(DeferredError("wait"))
    with pytest.raises(DeferredError):
        await call(guard, charge)
    assert await call(guard, charge, cents=7) == {"charged": 5}
    assert charge.count == 2


async def test_a_call_that_was_broken_off_is_unknown_to_the_model_by_the_id_that_it_gave(guard: ToolGuard) -> None:
    charge = Charges(KeyboardInterrupt())  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        await call(guard, charge)
    read = await call(guard, charge)
    assert {name: read[name] for name in read if name != "error"} == {
        "kind": "tool-durability-error", "toolName": "charge", "toolCallId": "call_1",
    }  # fmt: skip
    assert charge.count == 1


async def test_a_tool_that_cannot_tell_is_unknown_to_the_model_at_once_and_later(guard: ToolGuard) -> None:
    charge = Charges(ToolDurabilityError("charge", "call_1", reason="it timed out"))
    read = [await call(guard, charge), await call(guard, charge)]
    assert [part["kind"] for part in read] == ["tool-durability-error"] * 2
    assert all("it timed out" in part["error"] for part in read)
    assert charge.count == 1


async def test_a_call_that_another_guard_has_let_through_runs(guard: ToolGuard) -> None:
    charge = Charges()

    async def again() -> Any:
        return await call(guard, charge)

    assert await call(guard, again) == {"charged": 5}
    assert charge.count == 1


async def test_other_arguments_or_no_name_or_no_ids_are_refused(guard: ToolGuard) -> None:
    charge = Charges()
    await call(guard, charge)
    with pytest.raises(InputError):
        await call(guard, charge, cents=7)
    with pytest.raises(InputError, match="without a name"):
        await guard.run("", "call_1", {}, charge, key="k")
    with pytest.raises(InputError, match="without the ids"):
        key_of("conversation", "")
    assert charge.count == 1


async def test_a_plain_function_is_guarded_alike(guard: ToolGuard) -> None:
    runs = []

    def charge(cents: int = 5) -> dict[str, int]:
        runs.append(cents)
        return {"charged": cents}

    def call_plain(function: Any, key: str) -> Any:
        return guard.run_plain("charge", "call_1", {"cents": 5}, function, key=key)

    assert [await asyncio.to_thread(call_plain, charge, "a") for _ in range(2)] == [{"charged": 5}] * 2
    assert runs == [5]
    with pytest.raises(ZeroDivisionError):
        call_plain(lambda: 1 / 0, "b")
    assert call_plain(charge, "b") == {"error": "ZeroDivisionError: division by zero"}


async def test_of_two_guards_around_a_call_the_inner_one_lets_it_run(guard: ToolGuard) -> None:
    charge = Charges()
    for _ in range(2):
        assert await call(guard, lambda: call(guard, charge)) == {"charged": 5}
    assert charge.count == 1

    def inner() -> Any:
        return guard.run_plain("charge", "c", {}, lambda: "ran", key="p")

    assert guard.run_plain("charge", "c", {}, inner, key="p") == "ran"


def test_the_keys_of_other_calls_are_others_however_long() -> None:
    keys = {
        key_of("a", "b/c"),
        key_of("a/b", "c"),
        key_of("a", "b", "c"),
        key_of("a" * 500, "b"),
        key_of("a" * 501, "b"),
    }
    assert len(keys) == 5
    assert max(map(len, keys)) <= 400


def test_a_store_that_forgets_is_refused() -> None:
    with pytest.raises(MemoryStoreNotDurableError, match=r"^The guard around tools: a memory store forgets"):
        ToolGuard(memory_store())  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r"^The guard around tools: store must be a store, .* got 'shop.db'"):
        ToolGuard("shop.db")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("adapter", "package"),
    [("agent_framework", "agent-framework-core"), ("claude_agent_sdk", "claude-agent-sdk"),
     ("google_adk", "google-adk"), ("langchain", "langchain"), ("openai_agents", "openai-agents"),
     ("pydantic_ai", "pydantic-ai-slim"), ("strands", "strands-agents")],
)  # fmt: skip
def test_an_adapter_without_its_framework_says_what_to_install(adapter: str, package: str) -> None:
    try:
        version(package)
    except PackageNotFoundError:
        with pytest.raises(ImportError, match=rf"needs {package} .*: pip install .*{adapter.replace('_', '-')}"):
            importlib.import_module(f"standfast.integrations.{adapter}")
    else:
        pytest.skip(f"{package} is here")


def test_a_framework_that_is_not_there_or_is_too_old_is_an_import_error_that_names_versions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check_version("pydantic", "2.12", "3", "web")
    with pytest.raises(ImportError, match=r"needs pydantic 3\.1 or later, and found 2\..*: pip install"):
        check_version("pydantic", "3.1", "4", "web")
    with pytest.raises(ImportError, match=r"needs no-such-framework 1 or later: pip install"):
        check_version("no-such-framework", "1", "2", "web")
    assert caplog.messages == []


def test_a_framework_that_is_newer_than_those_that_are_tested_is_taken_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check_version("pydantic", "1.0", "2", "web")
    [warning] = caplog.messages
    assert re.search(r"is tested with pydantic below 2, and found 2\.", warning)
