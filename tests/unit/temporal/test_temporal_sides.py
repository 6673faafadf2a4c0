"""The sides of the driver on Temporal: what is deterministic, what workers do, what any process does, the wire."""

import ast
from pathlib import Path

import pytest

import standfast
from unit.test_shape import FORBIDDEN_WITHOUT_IO, NO_IO, imports_of

LIBRARY = Path(standfast.__file__).parent
TEMPORAL = LIBRARY / "temporal"
SIDES = {
    "wire": {"wire"},
    "workflows": {"workflows", "wire"},
    "activities": {"activities", "wire"},  # and `client.runs.ended_runs`: who waits for another run is its client
    "client": {"client", "wire"},
}
MODULES = sorted(path for path in TEMPORAL.rglob("*.py") if path.parent != TEMPORAL)


def side(path: Path) -> str:
    return path.relative_to(TEMPORAL).parts[0]


OF_WORKERS = "worker_internals"  # beside other code for the SDK, but no workflow imports it
WITHOUT_IO = [path for path in MODULES if side(path) in ("wire", "workflows") and path.stem != OF_WORKERS]
# Of the parts that may do I/O, what does none: the words of the store's contract, and the names of sessions.
PURE = {
    "runtime.child_agents",
    "stores.deletion",
    "stores.kept_values",
    "stores.partial_answers",
    "stores.protocol",
    "stores.waits",
    "stores.workers",
}


def name(path: Path) -> str:
    return str(path.relative_to(TEMPORAL))


def is_ours(dotted: str) -> bool:
    place = LIBRARY.parent / dotted.replace(".", "/")
    return place.is_dir() or place.with_suffix(".py").is_file()


def ours(path: Path) -> set[str]:
    """Return what a module imports of the library: modules, or packages whose names it takes."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inner = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {one if is_ours(one) else str(node.module) for one in inner.values()}
    return {one.removeprefix("standfast").removeprefix(".") for one in found if one.split(".")[0] == "standfast"}


def test_every_module_stands_on_a_side_and_the_plugin_above() -> None:
    assert {path.name for path in TEMPORAL.glob("*.py")} == {"__init__.py", "plugin.py"}
    assert {side(path) for path in MODULES} == set(SIDES)


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_no_import_crosses_a_side(path: Path) -> None:
    used = [one.split(".") for one in ours(path) if one.split(".")[0] in ("", "temporal")]
    assert [one for one in used if len(one) == 1] == []  # what the packages give out is for users
    shared = ["temporal", "client", "runs", "ended_runs"] if side(path) == "activities" else None
    assert {one[1] for one in used if one != shared} <= SIDES[side(path)]


@pytest.mark.parametrize("path", WITHOUT_IO, ids=name)
def test_what_is_deterministic_imports_the_wire_and_what_does_no_io(path: Path) -> None:
    beyond = {one for one in ours(path) if not one.startswith("temporal.")}
    assert {one for one in beyond - PURE if one.split(".")[0] not in NO_IO} == set()
    imported = imports_of(path)
    assert imported & (FORBIDDEN_WITHOUT_IO - {"asyncio"}) == set()
    assert not any(
        one.startswith(("temporalio.client", "temporalio.activity", "temporalio.service")) for one in imported
    )


@pytest.mark.parametrize("one", sorted(PURE))
def test_what_the_store_says_does_no_io(one: str) -> None:
    path = LIBRARY / (one.replace(".", "/") + ".py")
    assert imports_of(path) & (FORBIDDEN_WITHOUT_IO - {"asyncio"}) == set()
    assert {other for other in ours(path) if other.split(".")[0] not in NO_IO} <= PURE


def test_only_code_that_wraps_a_worker_reaches_into_it() -> None:
    users = {path.stem for path in MODULES if any(one.endswith(f".{OF_WORKERS}") for one in ours(path))}
    assert users == {"query_order"}
