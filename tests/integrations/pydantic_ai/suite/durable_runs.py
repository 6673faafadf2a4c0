"""Runs pydantic-ai's own tests twice, unchanged and with every run durable: `make test-pydantic-ai-suite SOURCES=…`.

As a plugin of pytest it gives `StandfastDurability` to each agent that is made, and a conversation to each run. As a
program it takes the repository of pydantic-ai, and fails if a test that passes without durability fails with it, unless
`differences.txt` says why.
"""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from functools import wraps
from pathlib import Path
from typing import Any
from uuid import uuid4
from xml.etree import ElementTree as ET

import pytest

FILES = (
    "agent", "capability_process_event_stream", "capability_stream_teardown", "concurrency", "deps",
    "history_processor", "nested_sync_agent", "run_cancellation", "run_context_usage_limits", "streaming",
    "streaming_errors", "tools", "toolsets", "validation_context",
)  # fmt: skip
HERE = Path(__file__).parent
_FAILED = {"failure", "error"}


def pytest_configure(config: pytest.Config) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.durable_exec import BaseDurabilityCapability

    from standfast import sqlite_store
    from standfast.agents import NAME
    from standfast.integrations.pydantic_ai import StandfastDurability

    class EveryRun(StandfastDurability):
        """Makes a run durable that lacks its own conversation, under an id like that which it would have had."""

        def get_default_conversation_id(self, run_id: str) -> str | None:
            return str(uuid4())

    store = sqlite_store(Path(tempfile.mkdtemp(), "store.db"))
    make = Agent.__init__

    @wraps(make)
    def make_durable(agent: Any, *arguments: Any, **options: Any) -> None:
        given = options.get("capabilities") or ()
        if not any(isinstance(one, BaseDurabilityCapability) for one in given):
            name = options.get("name") or ""
            name = name if NAME.fullmatch(name) else "agent"  # each run has its own conversation
            options["capabilities"] = [*given, EveryRun(store, name=name)]
        make(agent, *arguments, **options)

    Agent.__init__ = make_durable  # type: ignore[method-assign]


def run_tests(sources: Path, report: Path, *options: str) -> dict[str, bool]:
    """Run the tests, and return by name whether each passed; those that were skipped are left out."""
    paths = [f"tests/test_{name}.py" for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-c", os.devnull, "--rootdir=.", "-W", "ignore"]
    command += ["-p", "no:cacheprovider", "--timeout=60", "-n", "2", f"--junit-xml={report}", *options]
    environment = {
        **os.environ,
        "BLOCKBUSTER_ENABLED": "false",  # it looks for calls that block inside of pydantic-ai
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(HERE),
    }
    subprocess.run([*command, *paths], cwd=sources, env=environment, check=False)
    found = dict[str, bool]()
    for case in ET.parse(report).iter("testcase"):
        kinds = {part.tag for part in case}
        if "skipped" not in kinds:
            found[f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}"] = not kinds & _FAILED
    return found


def known_differences() -> set[str]:
    """Return the names of the tests that fail with durability for a reason that is told above them."""
    lines = (HERE / "differences.txt").read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def main(sources: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bare = run_tests(Path(sources), Path(folder, "bare.xml"))
        durable = run_tests(Path(sources), Path(folder, "durable.xml"), "-p", "durable_runs")
    passed = [name for name, did in bare.items() if did]
    failed = {name for name in passed if not durable.get(name)}
    without, with_it = Counter(map(_file, passed)), Counter(_file(name) for name in passed if name not in failed)
    for file, count in sorted(without.items()):
        print(f"{file}: {count} pass without durability, {with_it[file]} of them with it")
    print(f"All: {len(passed)} pass without durability, {len(passed) - len(failed)} of them with it")
    known = known_differences()
    print(*(f"Did not fail this time: {name}" for name in sorted(known - failed)), sep="\n")
    sys.exit("\n".join(f"Fails, and nothing says why: {name}" for name in sorted(failed - known)) or None)


def _file(name: str) -> str:
    return name.split("::")[0].split(".")[0]


if __name__ == "__main__":
    main(sys.argv[1])
