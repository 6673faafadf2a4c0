"""`make demo` is a newcomer's first look: its output is true, it ends, and leaves nothing running."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from acceptance.programs import CTRL_C, ROOT, Terminal, left_running, listening, marked_environment

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")

DEMO = (sys.executable, "-W", "error", "-m", "examples.demo")
FREE = ("--port", "0", "--ui-port", "0")


def posted(folder: Path) -> list[str]:
    lines = (folder / "sinks" / "posts.jsonl").read_text().splitlines()
    return sorted(json.loads(line)["text"].split()[0] for line in lines)


def demo(*options: str | Path) -> tuple[int, str, str, list[str]]:
    """Run the demo without a terminal; return exit code, output, errors, and what it left running."""
    environment = marked_environment()
    ran = subprocess.run(
        [*DEMO, *options],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )
    return ran.returncode, ran.stdout, ran.stderr, left_running(environment)


@pytest.mark.slow
def test_without_a_terminal_the_demo_answers_for_the_team_counts_and_ends(tmp_path: Path) -> None:
    code, shown, errors, left = demo("--folder", tmp_path / "demo", *FREE)
    assert (code, errors, left) == (0, "", []), shown + errors
    assert "\x1b" not in shown
    for line in ("    ISSUE-119       1       1\n", "    ISSUE-121       1       0\n"):
        assert line in shown
    assert "kill -9" in shown
    assert "\n  ! post_message        tool-durability-error: Tool 'post_message'" in shown
    assert "so the demo answers for the team" in shown
    assert posted(tmp_path / "demo") == ["ISSUE-119", "ISSUE-121"]
    assert listening(shown) == []


@pytest.mark.slow
def test_at_a_terminal_the_demo_asks_there_and_runs_until_ctrl_c(tmp_path: Path) -> None:
    environment = marked_environment()
    with Terminal(*DEMO, "--folder", tmp_path / "demo", *FREE, environment=environment) as terminal:
        page = terminal.read_until(r"http://\S+/workflows/triage%2Fissue-121").group()
        terminal.read_until("your answer, then Enter:")
        terminal.type("severe\n")
        terminal.read_until(r"ISSUE-121 .*1 +1\n")
        terminal.read_until("Everything keeps running until Ctrl-C")
        with urllib.request.urlopen(page, timeout=10) as answer:
            assert answer.status == 200
        worker = int(terminal.read_until(r"process (\d+); kill it").group(1))
        os.kill(worker, signal.SIGKILL)
        assert int(terminal.read_until(r"process (\d+); kill it").group(1)) != worker
        terminal.type(CTRL_C)
        assert terminal.end() == 0, terminal.shown
        assert terminal.shown.endswith("Stopped.\n")
        assert "\x1b[1m" in terminal.shown
        assert (left_running(environment), listening(terminal.shown)) == ([], [])


@pytest.mark.slow
def test_a_demo_that_is_stopped_halfway_leaves_nothing_and_does_not_say_that_all_is_well(tmp_path: Path) -> None:
    environment = marked_environment(NO_COLOR="1")
    with Terminal(*DEMO, "--folder", tmp_path / "demo", *FREE, environment=environment) as terminal:
        terminal.read_until("the chat has the post")
        terminal.type(CTRL_C)
        assert terminal.end() == 130, terminal.shown
        assert "\x1b" not in terminal.shown
        assert (left_running(environment), listening(terminal.shown)) == ([], [])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere they outlive a parent that is killed")
def test_a_demo_that_is_killed_takes_its_worker_and_servers_with_it(tmp_path: Path) -> None:
    environment = marked_environment()
    with Terminal(*DEMO, "--folder", tmp_path / "demo", *FREE, environment=environment) as terminal:
        os.kill(int(terminal.read_until(r"worker (\d+) has the run").group(1)), 0)  # it is there
        terminal.process.kill()
        terminal.process.wait()
        end = time.monotonic() + 30
        # An ending process loses its environment first, and its sockets last.
        while (left_running(environment) or listening(terminal.shown)) and time.monotonic() < end:
            time.sleep(0.05)
        assert (left_running(environment), listening(terminal.shown)) == ([], [])


@pytest.mark.slow
def test_what_keeps_the_demo_from_starting_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    code, _, errors, left = demo("--folder", tmp_path, *FREE)
    assert (code, errors.count("\n"), left) == (1, 1, [])
    assert "is not a folder of the demo" in errors
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, errors, left = demo("--folder", tmp_path / "demo", "--port", str(port))
        assert (code, errors.count("\n"), left) == (1, 1, [])
        assert f"cannot have port {port}" in errors
