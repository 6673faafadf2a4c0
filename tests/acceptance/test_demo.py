"""`make demo` is a newcomer's first look: its output must be true."""

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "at_most_once.py"


@pytest.mark.slow
def test_the_demo_charges_a_card_once_where_a_naive_loop_charges_it_twice() -> None:
    shown = subprocess.run([sys.executable, DEMO], capture_output=True, text=True, check=True)
    assert shown.stderr == ""
    assert shown.stdout.count("died by signal 9") == 2
    assert "tool-durability-error" not in shown.stdout.split("== standfast")[0]
    assert "    a loop that repeats lost calls      2\n" in shown.stdout
    assert "    standfast                           1\n" in shown.stdout
