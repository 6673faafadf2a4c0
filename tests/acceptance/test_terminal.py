"""The command `standfast` in a real terminal: prompts, colours, confirmations, Ctrl-C; and none of them in a pipe."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.cli.test_local_commands import APP

from acceptance.programs import CTRL_C, Terminal, marked_environment
from standfast.testing import DevServer, dev_server

COMMAND = (sys.executable, "-W", "error", "-m", "standfast")


@pytest.fixture
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(getattr(request, "param", APP))
    return tmp_path


@pytest.fixture
def environment() -> dict[str, str]:
    return marked_environment(STANDFAST_USER="ada", TERM="xterm-256color")


def test_a_conversation_with_questions_and_approvals_and_ctrl_c(shop: Path, environment: dict[str, str]) -> None:
    words = (*COMMAND, "chat", "clerk", "--app", "shop.py", "-s", "s")
    with Terminal(*words, environment=environment, cwd=shop) as terminal:
        terminal.read_until("Session s; continue it with --session s")
        terminal.read_until("> ")
        terminal.type("hello\n")
        terminal.read_until("you said hello")
        terminal.type("ask Which account?\n")
        terminal.read_until(r"\x1b\[1mWhich account\?")  # bold
        terminal.read_until(r"\? ")
        terminal.type("savings\n")
        terminal.read_until("so: savings")
        terminal.type("charge\n")
        terminal.read_until("Waits for approval")
        terminal.read_until(r"or all arguments as JSON\? ")
        terminal.type("approve\n")
        terminal.read_until("so: charged 5")
        terminal.read_until("> ")
        assert terminal.interrupt() == 130, terminal.shown
        assert "Traceback" not in terminal.shown


@pytest.fixture
def address(shop: Path, environment: dict[str, str]) -> Iterator[str]:
    ports = ("--port", "0", "--ui-port", "0", "--no-web")
    with Terminal(*COMMAND, "dev", "shop.py", *ports, environment=environment, cwd=shop) as terminal:
        found = terminal.read_until(r"Temporal +(\S+:\d+)").group(1)
        terminal.read_until("Worker of clerk on queue standfast is ready")
        yield found
        terminal.type(CTRL_C)
        assert terminal.end() == 0, terminal.shown


@pytest.mark.slow
def test_a_person_sees_what_is_approved_and_is_asked_once_more(
    shop: Path, environment: dict[str, str], address: str
) -> None:
    at = {**environment, "TEMPORAL_ADDRESS": address}

    def say(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60, env=at, cwd=shop)

    assert say("start", "clerk", "-m", "charge", "-s", "s").stdout == "Started clerk/s\n"
    with Terminal(*COMMAND, "watch", "clerk/s", environment=at, cwd=shop) as terminal:
        terminal.read_until("waits for approval")
        terminal.type(CTRL_C)
        assert terminal.end() == 130
    for typed, code in (("n\n", 1), ("y\n", 0)):
        with Terminal(*COMMAND, "approve", "clerk/s", "--edit", '{"amount": 7}', environment=at, cwd=shop) as terminal:
            terminal.read_until(r'Arguments +\{"amount": 5\}')
            terminal.read_until(r'Instead: \{"amount": 7\}')
            terminal.read_until(r"Approve\? \[y/N\]")
            terminal.type(typed)
            assert terminal.end() == code, terminal.shown
    assert say("start", "clerk", "-m", "charge", "-s", "stopped").returncode == 0
    with Terminal(*COMMAND, "approve", "clerk/stopped", environment=at, cwd=shop) as terminal:
        terminal.read_until(r"Approve\? \[y/N\]")
        assert terminal.interrupt() in (1, 130), terminal.shown
        assert "Traceback" not in terminal.shown
    assert json.loads(say("pending", "clerk/stopped", "-o", "json").stdout)[0]["name"] == "c2"  # nothing was sent
    ended = say("watch", "clerk/s", "-o", "json")
    assert "charged 7" in json.loads(ended.stdout)["result"]["response"]

    for more, colored in (({}, True), ({"NO_COLOR": "1"}, False)):
        with Terminal(*COMMAND, "ls", environment={**at, **more}, cwd=shop) as terminal:
            assert terminal.end() == 0
            assert "clerk/s" in terminal.shown
            assert ("\x1b[1m" in terminal.shown) or not colored
            assert "\x1b[3" not in terminal.shown or colored
    assert "\x1b" not in say("ls").stdout
    assert "\x1b[1m" in say("ls", "--color", "always").stdout
    refused = say("approve", "clerk/s")
    assert refused.returncode == 1
    assert refused.stderr.endswith("\nError: Run clerk/s does not wait for an approval\n")


SLOW = """
import asyncio
from pathlib import Path

from standfast import Agent


class Slow:
    async def chat(self, messages, tools, **settings):
        raise AssertionError("the stream was not used")

    async def stream(self, messages, tools, **settings):
        yield "first "
        while not Path("go").exists():
            await asyncio.sleep(0.05)
        yield "second"
        yield {"text": "first second"}


llm = Slow()
clerk = Agent("clerk")
"""


@pytest.mark.slow
@pytest.mark.parametrize("shop", [SLOW], indirect=True, ids=["slow"])
def test_words_of_a_run_on_temporal_appear_as_they_come_and_once(
    shop: Path, environment: dict[str, str], address: str
) -> None:
    at = {**environment, "TEMPORAL_ADDRESS": address}
    with Terminal(*COMMAND, "chat", "clerk", "--store", "standfast.db", environment=at, cwd=shop) as terminal:
        terminal.read_until("> ")
        terminal.type("hello\n")
        terminal.read_until("first ")
        (shop / "go").touch()
        terminal.read_until("second\n")
        terminal.read_until("> ")
        terminal.type("/quit\n")
        assert terminal.end() == 0, terminal.shown
        assert terminal.shown.count("second") == 1, terminal.shown


def test_ctrl_c_while_the_command_is_loaded_is_quiet(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)")
    ended = subprocess.run([*COMMAND, "ls"], capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_a_client_that_reads_only_the_beginning_sees_no_error(shop: Path, environment: dict[str, str]) -> None:
    subprocess.run(
        [*COMMAND, "chat", "clerk", "--app", "shop.py", "-s", "s"],
        input="hello\n" * 3, capture_output=True, text=True, check=True, timeout=60, env=environment, cwd=shop,
    )  # fmt: skip
    command = " ".join([*COMMAND, "sessions", "s", "-o", "jsonl"])
    shown = subprocess.run(
        f"{command} | head -1", shell=True, capture_output=True, text=True, timeout=60, env=environment, cwd=shop
    )
    assert json.loads(shown.stdout)["content"] == "hello"
    assert "Error" not in shown.stderr
    assert os.path.exists(shop / "standfast.db")


def test_what_differs_in_a_replay_is_one_sentence_and_the_output_is_json(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    history = json.loads((Path(__file__).parents[1] / "histories" / "gates.json").read_text())["history"]
    scheduled = "activityTaskScheduledEventAttributes"
    next(event[scheduled] for event in history["events"] if scheduled in event)["activityType"]["name"] = "other"
    (tmp_path / "changed.json").write_text(json.dumps(history))
    words = [*COMMAND, "replay", "changed.json", "-o", "json"]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path)
    (row,) = json.loads(shown.stdout)
    assert (shown.returncode, shown.stderr, row["ok"]) == (1, "", False)
    assert row["error"].startswith("[TMPRL1100] Nondeterminism error: Activity type of scheduled event 'other' does")


@pytest.mark.slow
async def test_a_server_that_is_lost_is_one_line_which_programs_do_not_read(
    shop: Path, environment: dict[str, str]
) -> None:
    async with dev_server() as server:
        _lose(server, shop, environment)


def _lose(server: DevServer, shop: Path, environment: dict[str, str]) -> None:
    at = {**environment, "TEMPORAL_ADDRESS": server.address}
    with Terminal(*COMMAND, "worker", "shop.py", environment=at, cwd=shop) as worker:
        worker.read_until("Worker of clerk on queue standfast is ready")
        subprocess.run([*COMMAND, "start", "clerk", "-m", "charge", "-s", "s"], check=True, env=at, cwd=shop)
        words = [*COMMAND, "watch", "clerk/s", "-o", "jsonl"]
        watch = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=at, cwd=shop)
        assert watch.stdout is not None
        assert json.loads(watch.stdout.readline())["workflow_id"] == "clerk/s"
        server.kill()
        more, says = watch.communicate(timeout=60)
        assert {json.loads(line)["workflow_id"] for line in more.splitlines()} <= {"clerk/s"}
        assert (watch.returncode, says.count("\n")) == (1, 1)
        assert says.startswith("Error: The Temporal server does not answer: ")
        worker.read_until("The Temporal server does not answer: Connection refused. Retrying until it does")
        worker.type(CTRL_C)
        assert worker.end() == 0, worker.shown
        assert (worker.shown.count("does not answer"), worker.shown.count("gRPC")) == (1, 0), worker.shown
