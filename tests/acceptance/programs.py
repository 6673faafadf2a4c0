"""Programs as a user runs them, with or without a terminal, and the processes that they leave running."""

import contextlib
import os
import pty
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

ROOT = Path(__file__).parents[2]
MARK = "STANDFAST_TEST_PROGRAM"  # in the environment of a program and all that it starts
CTRL_C = "\x03"
STANDFAST = (sys.executable, "-W", "error", "-c", "from standfast.cli import main; main(prog_name='standfast')")

# A terminal's signals reach whose controlling terminal it is; a `preexec_fn` would warn in a process with threads.
_AT_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


def marked_environment(**more: str) -> dict[str, str]:
    """Return an environment that decides about no server, no colour and no model."""
    left_out = ("TEMPORAL_", "STANDFAST_", "OPENAI_", "NO_COLOR")
    ours = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return {**ours, "TERM": "xterm", "STANDFAST_MODEL": "scripted", MARK: uuid4().hex, **more}


def left_running(environment: dict[str, str]) -> list[str]:
    """Return the commands of the processes that have this environment's mark."""
    mark, found = f"{MARK}={environment[MARK]}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended in the meantime
            if mark in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def listening(shown: str) -> list[str]:
    """Return the addresses in a text at which someone listens."""
    found = []
    for port in set(re.findall(r"127\.0\.0\.1:(\d+)", shown)):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(port)), timeout=5):
            found.append(port)
    return found


class Terminal:
    """A program in a terminal at which a test sits."""

    def __init__(self, *command: str | os.PathLike[str], environment: dict[str, str], cwd: Path = ROOT) -> None:
        self._file, there = pty.openpty()
        words = [sys.executable, "-c", _AT_TERMINAL, *(os.fspath(word) for word in command)]
        self.process = subprocess.Popen(
            words, stdin=there, stdout=there, stderr=there, cwd=cwd, env=environment, start_new_session=True
        )
        os.close(there)
        self.shown = ""
        self._read = 0

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._file)

    def read_until(self, pattern: str, seconds: float = 60) -> re.Match[str]:
        """Return the first match behind the last one that was found."""
        end = time.monotonic() + seconds
        while (found := re.compile(pattern).search(self.shown, self._read)) is None:
            assert self._more(end - time.monotonic()), f"no {pattern!r} in:\n{self.shown}"
        self._read = found.end()
        return found

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def interrupt(self) -> int:
        """Press Ctrl-C until the program ends, and return its exit code.

        Python's readline loses a signal that comes between its prompt and its reading, faster than any person is.
        """
        for _ in range(10):
            self.type(CTRL_C)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.end(2)
        raise AssertionError(f"it does not end:\n{self.shown}")

    def end(self, seconds: float = 60) -> int:
        """Wait for the program's end, and return its exit code."""
        end = time.monotonic() + seconds
        while self._more(end - time.monotonic()):
            pass
        return self.process.wait(max(1.0, end - time.monotonic()))

    def _more(self, seconds: float) -> bool:
        if not select.select([self._file], [], [], max(0.0, seconds))[0]:
            return False
        try:
            text = os.read(self._file, 65536)
        except OSError:  # everyone has closed the other side
            return False
        self.shown += text.decode(errors="replace").replace("\r\n", "\n")
        return bool(text)


@contextlib.contextmanager
def sinks(folder: Path, environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """Run `python -m examples.sinks`; yield the settings that it prints."""
    command = [sys.executable, "-m", "examples.sinks", "--dir", str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield dict(process.stdout.readline().strip().split("=", 1) for _ in range(3))
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
