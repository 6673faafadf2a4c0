"""The tutorial is followed step by step, with real processes, and prints what it shows."""

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.documents import DOCS
from support.postgres import postgres_server, versions

from acceptance.programs import STANDFAST, Terminal, marked_environment

STEPS = re.split(r"^## \d\. ", (DOCS / "tutorial.md").read_text(), flags=re.MULTILINE)[1:]


def blocks(step: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", step, flags=re.DOTALL)


def replaced(program: str, block: str) -> str:
    """Return the program after a block has replaced what has the same names, as a reader would do it."""

    def names(node: ast.stmt) -> set[str]:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                return {name}
            case ast.Assign(targets=[ast.Name(id=name)]):
                return {name}
        return set()

    old, new = ast.parse(program).body, ast.parse(block).body
    said = set[str]().union(*map(names, new))
    imports = [node for node in (*new, *old) if isinstance(node, ast.Import | ast.ImportFrom)]
    rest = [node for node in new if node not in imports]
    kept = [node for node in old if node not in imports and not names(node) & said]
    at = next(number for number, node in enumerate(kept) if names(node) & {"clerk"} or isinstance(node, ast.If))
    return ast.unparse(ast.Module([*imports, *kept[:at], *rest, *kept[at:]], []))


def commands(console: str) -> list[tuple[str, str]]:
    """Return the commands of a console block, and what each prints."""
    return [tuple(part.split("\n", 1)) for part in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]]  # type: ignore[misc]


def check(command: str, shown: str, folder: Path, **environment: str) -> None:
    """Run a command of the tutorial, and check that it prints what is shown; dots stand for lines."""
    typed = re.search(r": (approve|reject)$", shown, flags=re.MULTILINE)
    given, shown = (None, shown) if typed is None else (f"{typed[1]}\n", shown.replace(f"{typed[1]}\n", "", 1))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        command, shell=True, cwd=folder, env={**marked_environment(**environment), "PATH": path},
        input=given, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    if shown == "Killed\n":
        assert ran.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), ran
        return
    assert ran.returncode == 0, ran
    if shown == "...\n":
        return
    lines = [".*" if line == "..." else re.escape(line) for line in shown.splitlines()]
    assert re.fullmatch("\n".join([*lines, ""]), ran.stdout, flags=re.DOTALL), (command, ran.stdout)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Follow the steps in one process, compare what is printed, and return the program that comes out."""
    folder, program = tmp_path_factory.mktemp("tutorial"), ""
    for step in STEPS[:4]:
        for part in re.findall(r"```python\n.*?```.*?```console\n.*?```", step, flags=re.DOTALL):
            ((block,), (console,)) = blocks(part, "python"), blocks(part, "console")
            program = replaced(program, block) if program else block
            (folder / "clerk.py").write_text(program)
            for command, shown in commands(console):
                check(command, shown, folder)
    return program


@pytest.mark.slow
def test_a_worker_dies_in_the_middle_of_what_a_person_approved(finished: str, tmp_path: Path) -> None:
    (tmp_path / "clerk.py").write_text(finished)
    (first, *_), said = (commands(block) for block in blocks(STEPS[4], "console"))
    assert first == ("rm charges.txt clerk.db*", "")
    here = marked_environment(DIE="1")
    ports = ("--port", "0", "--ui-port", "0", "--web-port", "0")
    with Terminal(*STANDFAST, "dev", "clerk.py", *ports, environment=here, cwd=tmp_path) as terminal:
        address = terminal.read_until(r"Temporal +(\S+:\d+)").group(1)
        terminal.read_until("Worker of clerk on queue standfast is ready")
        for command, shown in said:
            check(waiting_if(command), shown, tmp_path, TEMPORAL_ADDRESS=address)
        terminal.read_until("was ended by SIGKILL")
        terminal.interrupt()
    assert (tmp_path / "charges.txt").read_text().count("ada 9.5") == 1


def waiting_if(command: str) -> str:
    """Return a command that waits until there is something to decide on, which a reader does without noticing."""
    if not command.startswith("standfast pending"):
        return command
    return f"until {command} | grep -q approval; do sleep 0.2; done; {command}"


@pytest.mark.slow
@pytest.mark.skipif(not versions(), reason="no PostgreSQL")
def test_another_machine_continues_what_was_approved(finished: str, tmp_path: Path, address: str) -> None:
    (settings,) = (commands(block) for block in blocks(STEPS[5], "console"))
    assert [one.partition("=")[0] for one, _ in settings[:2]] == ["export STANDFAST_STORE", "export TEMPORAL_ADDRESS"]
    worker = settings[2][0].split()[1:]
    with postgres_server() as postgres:
        at = {"STANDFAST_STORE": postgres.dsn(), "TEMPORAL_ADDRESS": address}
        machines = [tmp_path / name for name in ("one", "two")]
        for machine in machines:
            machine.mkdir()
            (machine / "clerk.py").write_text(finished)
            (machine / "charges.txt").symlink_to(tmp_path / "charges.txt")  # the provider is one for both
        with Terminal(*STANDFAST, *worker, environment=marked_environment(DIE="1", **at), cwd=machines[0]) as one:
            one.read_until("Worker of clerk on queue standfast is ready")
            check('standfast start clerk -m "Settle invoice 7" -s invoice-7', "...\n", machines[1], **at)
            check(waiting_if("standfast pending"), "...\n", machines[1], **at)
            # The worker may die before it can tell the approver that the decision counts.
            check("standfast approve clerk/invoice-7 --by ada --yes || true", "...\n", machines[1], **at)
            one.end()
            assert one.process.wait() == -signal.SIGKILL
        with Terminal(*STANDFAST, *worker, environment=marked_environment(**at), cwd=machines[1]) as two:
            check("standfast watch clerk/invoice-7", "...\ncharged ada 9.5\n", machines[1], **at)
            two.interrupt()
        assert not (machines[0] / "clerk.db").exists()
    assert (tmp_path / "charges.txt").read_text().count("ada 9.5") == 1
