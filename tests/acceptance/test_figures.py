"""Figures in the documents come from saved rows of the benchmarks, measured with this version."""

import runpy
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

figures = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "figures.py")))


@pytest.mark.parametrize("document", ["docs/performance.md", "README.md"])
def test_a_document_has_the_figures_of_the_newest_rows(document: str) -> None:
    assert figures.block_of(document) == figures.texts()[document], "python benchmarks/figures.py writes them"


@pytest.mark.parametrize(("what", "where", "how"), figures.TABLE, ids=[what for what, _, _ in figures.TABLE])
def test_a_figure_was_measured_with_this_minor_version(what: str, where: str, how: str) -> None:
    minor = version("standfast").split(".")[:2]
    assert {tuple(row["standfast"].split(".")[:2]) for row in figures.newest(where)} == {tuple(minor)}


def test_rows_that_are_older_than_the_engine_are_told_with_what_renews_them() -> None:
    just = defaultdict(lambda: figures.MOST_COMMITS)
    assert figures.stale(just) == []
    old = figures.stale(defaultdict(lambda: figures.MOST_COMMITS + 1))
    assert len(old) == len(figures.TABLE)
    assert all("python benchmarks/" in one and one.endswith("renews it") for one in old)


def test_several_rows_of_one_commit_give_a_range() -> None:
    assert format(figures.Spread([0.5, 0.612]), ".2f") == "0.50–0.61"
    assert format(figures.Spread([0.5, 0.501]), ".2f") == "0.50"
