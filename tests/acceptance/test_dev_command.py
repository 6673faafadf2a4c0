"""`standfast dev`: a server and a worker in a terminal, used only with the `temporal` command."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from acceptance.programs import CTRL_C, ROOT, STANDFAST, Terminal, left_running, listening, marked_environment, sinks
from activities import load_feed
from standfast.temporal.client.queues.servers import temporal_binary

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")

DEV = (*STANDFAST, "dev")
README = (ROOT / "README.md").read_text()
READY = "Worker of triage, researcher, writer, editor, reviewer on queue standfast is ready"


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a shell in which the application's tools are set up."""
    load_feed(tmp_path / "issues.db")
    marked = marked_environment(STANDFAST_ISSUES=str(tmp_path / "issues.db"))
    with sinks(tmp_path / "sinks", marked_environment()) as settings:
        yield {**marked, **settings}


def dev(environment: dict[str, str], folder: Path, *options: str | Path, port: str = "0") -> Terminal:
    ports = ("--port", port, "--ui-port", "0", "--web-port", "0")
    return Terminal(*DEV, *ports, *options, environment=environment, cwd=folder)


class Temporal:
    """The `temporal` command, as someone uses it who has never heard of standfast."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [temporal_binary(), "workflow", *arguments, "--address", self.address, "--output", "json"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env={"HOME": "/nowhere"})

    def say(self, *arguments: str) -> Any:
        answer = self.ask(*arguments)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return json.loads(answer.stdout) if answer.stdout.strip() else None

    def start(self, issue: str) -> str:
        """Start the triage of an issue; return its workflow id."""
        run = f"triage/{issue.lower()}"
        queue = ("--task-queue", "standfast", "--input", json.dumps({"message": f"{issue} came in"}))
        self.say("start", "--type", "triage", "--workflow-id", run, *queue)
        return run

    def question(self, run: str) -> str:
        """Wait for a run's question."""
        for _ in range(100):
            if waiting := self.say("query", "--workflow-id", run, "--type", "pending")["queryResult"][0]:
                return str(waiting[0]["message"])
            time.sleep(0.1)
        raise AssertionError(f"{run} asks nothing")

    def result(self, run: str) -> Any:
        return self.say("result", "--workflow-id", run)["result"]


@pytest.mark.slow
def test_an_agent_is_started_asked_and_answered_with_the_temporal_command_while_its_worker_dies(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with dev(environment, tmp_path, "--worker", ROOT / "worker.py") as terminal:
        temporal = Temporal(terminal.read_until(r"Temporal +(\S+:\d+)").group(1))
        # Two processes print these, either of them first.
        worker = terminal.read_until(rf"(?s)(?=.*{READY}).*worker\.py, process (\d+)").group(1)
        run = temporal.start("ISSUE-121")
        assert "ISSUE-121" in temporal.question(run)

        os.kill(int(worker), signal.SIGKILL)
        terminal.read_until(f"process {worker} was ended by SIGKILL; it restarts in 0.5 s")
        terminal.read_until(READY)
        answer = ("--workflow-id", run, "--name", "answer", "--input")
        refused = temporal.ask("update", "execute", *answer, '{"words": "severe"}')
        assert refused.returncode != 0
        assert "answer: " in refused.stdout + refused.stderr
        temporal.say("update", "execute", *answer, '{"text": "not severe"}')
        assert temporal.result(run)["status"] == "complete"
        assert len((tmp_path / "sinks" / "posts.jsonl").read_text().splitlines()) == 1

        terminal.type(CTRL_C)
        assert terminal.end() == 0, terminal.shown
        assert terminal.shown.endswith("Stopped.\n")
        assert (left_running(environment), listening(terminal.shown)) == ([], [])


@pytest.mark.slow
def test_what_waits_when_it_is_stopped_continues_when_it_is_started_again(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "worker.py").symlink_to(ROOT / "worker.py")
    with dev(environment, tmp_path) as terminal:
        temporal = Temporal(terminal.read_until(r"Temporal +(\S+:\d+)").group(1))
        run = temporal.start("ISSUE-134")
        temporal.question(run)
        terminal.process.terminate()  # as a shell script would
        assert terminal.end() == 0, terminal.shown
    with dev(environment, tmp_path, port=temporal.address.rpartition(":")[2]) as terminal:
        terminal.read_until(READY)
        temporal.say("signal", "--workflow-id", run, "--name", "answer", "--input", '{"text": "severe"}')
        assert temporal.result(run)["status"] == "complete"
        terminal.type(CTRL_C)
        assert terminal.end() == 0, terminal.shown
        assert left_running(environment) == []


@pytest.mark.slow
def test_a_worker_that_cannot_start_is_tried_again_ever_more_slowly_and_ctrl_c_still_stops_all(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text("raise SystemExit(7)")
    environment = marked_environment()
    with dev(environment, tmp_path) as terminal:
        terminal.read_until(r"process \d+ ended with code 7; it restarts in 0\.5 s")
        terminal.read_until(r"process \d+ ended with code 7; it restarts in 1 s")
        terminal.type(CTRL_C)
        assert terminal.end() == 0, terminal.shown
        assert left_running(environment) == []


@pytest.mark.slow
def test_a_worker_that_does_not_end_is_killed_at_the_second_ctrl_c(tmp_path: Path) -> None:
    deaf = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(600)"
    )
    (tmp_path / "deaf.py").write_text(deaf)
    environment = marked_environment()
    with dev(environment, tmp_path, "--worker", "deaf.py") as terminal:
        terminal.read_until("deaf\n")
        terminal.type(CTRL_C)
        terminal.read_until("press Ctrl-C again to stop without waiting")
        terminal.type(CTRL_C)
        assert terminal.end() == 0, terminal.shown
        assert left_running(environment) == []


APP = """
from standfast import Agent
from standfast.testing import ScriptedModel

llm = ScriptedModel(lambda messages, tools: "WORDS")
clerk = Agent("clerk")
"""


@pytest.mark.slow
def test_an_application_is_served_and_served_again_when_its_file_changes(tmp_path: Path) -> None:
    file, environment = tmp_path / "shop.py", marked_environment()
    file.write_text(APP.replace("WORDS", "first"))
    with dev(environment, tmp_path, "shop.py") as terminal:
        address = terminal.read_until(r"Temporal +(\S+:\d+)").group(1)
        terminal.read_until("Worker of clerk on queue standfast is ready")

        def answer() -> str:
            words = (*STANDFAST, "start", "clerk", "-m", "hello", "--wait", "--address", address, "-o", "json")
            said = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path)
            assert said.returncode == 0, said.stderr
            return str(json.loads(said.stdout)["result"]["response"])

        assert answer() == "first"
        file.write_text(APP.replace("WORDS", "second"))
        terminal.read_until("its files have changed")
        terminal.read_until("Worker of clerk on queue standfast is ready")
        assert answer() == "second"
        file.write_text("this is no Python")
        terminal.read_until("ended with code 1; it restarts in 0.5 s")
        file.write_text(APP.replace("WORDS", "third"))
        terminal.read_until("Worker of clerk on queue standfast is ready")
        assert answer() == "third"
        terminal.type(CTRL_C)
        assert terminal.end() == 0, terminal.shown
        assert "temporalio" not in terminal.shown
        assert left_running(environment) == []


@pytest.mark.slow
def test_the_page_starts_what_the_application_defines_and_knows_it_when_its_file_changes(tmp_path: Path) -> None:
    file, environment = tmp_path / "shop.py", marked_environment()
    file.write_text(APP)
    with dev(environment, tmp_path, "shop.py") as terminal:

        def starts() -> list[str]:
            page = terminal.read_until(r"The page is at (http://[\d.:]+)")[1]
            with urllib.request.urlopen(f"{page}/start") as shown:  # on this machine people need not sign in
                return re.findall(r'<a href="/start/(\w+)">', shown.read().decode())

        assert starts() == ["clerk"]
        file.write_text(f'{APP}\nseller = Agent("seller")\n')
        assert starts() == ["clerk", "seller"]
        file.write_text("def (:")
        terminal.read_until(r"shop.py cannot be loaded, so the page cannot start runs: SyntaxError")
        page = terminal.read_until(r"The page is at (http://[\d.:]+)")[1]
        with urllib.request.urlopen(f"{page}/changes?of=/"):  # as an open page has it
            terminal.type(CTRL_C)
            assert terminal.end() == 0, terminal.shown
        assert "Traceback" not in terminal.shown
        assert left_running(environment) == []


def test_the_first_approval_is_as_the_readme_says(tmp_path: Path) -> None:
    environment = marked_environment(STANDFAST_USER="ada")
    with dev(environment, tmp_path, ROOT / "examples" / "shop.py") as terminal:
        at = {**environment, "TEMPORAL_ADDRESS": terminal.read_until(r"Temporal +(\S+:\d+)").group(1)}
        terminal.read_until("Worker of clerk, returns on queue standfast is ready")
        commands = re.findall(r"^\.venv/bin/standfast ((?:start|approve|show) .*?)(?:  +#.*)?$", README, re.MULTILINE)
        assert [command.split()[0] for command in commands] == ["start", "approve", "show"]
        for command in commands:
            with Terminal(*STANDFAST, *shlex.split(command), environment=at, cwd=tmp_path) as one:
                if command.startswith("approve"):
                    one.read_until(r'Arguments +\{"order": 42, "amount": 129.9, "reason": "broken"\}')
                    one.read_until(r"Approve\? \[y/N\]")
                    one.type("y\n")
                assert one.end() == 0, one.shown
            if command.startswith("approve"):
                waiting = [*STANDFAST, "watch", "clerk/order-42"]
                subprocess.run(waiting, check=True, timeout=60, env=at, cwd=tmp_path, capture_output=True)
        assert "129.9 refunded for order 42" in one.shown
        terminal.type(CTRL_C)
        assert terminal.end() == 0, terminal.shown


@pytest.mark.slow
def test_two_servers_do_not_keep_their_workflows_in_one_file(tmp_path: Path) -> None:
    environment = marked_environment()
    with dev(environment, tmp_path) as terminal:
        terminal.read_until(r"Worker +none")
        with dev(environment, tmp_path) as second:
            second.read_until(
                "Another `standfast dev` keeps its workflows in temporal.db: end that one, or give --db-filename"
            )
            assert second.end() == 1
        terminal.type(CTRL_C)
        assert terminal.end() == 0, terminal.shown


@pytest.mark.slow
def test_a_new_store_beside_an_old_server_is_offered_the_command_with_which_the_worker_starts(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    worker = ("--worker", ROOT / "worker.py")
    with dev(environment | {"STANDFAST_STORE": "old.db"}, tmp_path, *worker) as terminal:
        terminal.read_until(READY)
        terminal.type(CTRL_C)
        assert terminal.end() == 0, terminal.shown
    with dev(environment | {"STANDFAST_STORE": "new.db"}, tmp_path, *worker) as terminal:
        refused = r"has the store \w+, and this worker has another one.*run: temporal (workflow terminate [^\r\n]+)"
        offered = terminal.read_until(refused).group(1)
        command = [temporal_binary(), *shlex.split(offered)]
        subprocess.run(command, check=True, capture_output=True, timeout=60, env={"HOME": "/nowhere"})
        terminal.read_until(READY)
        terminal.type(CTRL_C)
        assert terminal.end() == 0, terminal.shown


def test_without_a_worker_there_is_a_server_and_it_dies_with_a_command_that_is_killed(tmp_path: Path) -> None:
    environment = marked_environment()
    with dev(environment, tmp_path) as terminal:
        address = terminal.read_until(r"Temporal +(\S+:\d+)").group(1)
        terminal.read_until("Worker +none")
        assert listening(address) != []
        terminal.process.kill()
        deadline = time.monotonic() + 10
        while (left_running(environment) or listening(address)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (left_running(environment), listening(address)) == ([], [])


def test_what_keeps_it_from_starting_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ran = subprocess.run([*DEV, "--port", port], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
    assert ran.stderr.startswith(f"Error: The Temporal server cannot have port {port} of 127.0.0.1: ")
    assert ran.stderr.endswith("; port 0 is a free one\n")
