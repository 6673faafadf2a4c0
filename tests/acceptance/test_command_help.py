"""docs/commands.md matches `--help`: `RECORD=1 pytest tests/acceptance/test_command_help.py` updates it."""

import os
from pathlib import Path

import click
from click.testing import CliRunner

from standfast.cli import main

DOCUMENT = Path(__file__).parents[2] / "docs" / "commands.md"
MARK = "<!-- what follows is written by RECORD=1 pytest tests/acceptance/test_command_help.py -->\n"


def said(*words: str) -> str:
    result = CliRunner().invoke(main, [*words, "--help"], prog_name="standfast", terminal_width=100)
    assert result.exit_code == 0, result.output
    return result.output.rstrip()


def shared() -> tuple[str, str]:
    """Return the lines of help that commands share: of the server, and of the output."""
    lines = said("ls").splitlines(keepends=True)
    server, output, rest = (
        next(n for n, line in enumerate(lines) if line.startswith(f"  {option}"))
        for option in ("--address", "-o, --output", "-h, --help")
    )
    return "".join(lines[server:output]), "".join(lines[output:rest])


def test_the_help_of_every_command_is_in_its_document() -> None:
    server, output = shared()
    sections = [f"\n## Options of the server, and of the output\n\n```text\n{server}{output}```\n"]
    for name in main.commands:
        help_ = said(name).replace(server, "  … of the server\n").replace(output, "  … of the output\n")
        sections.append(f"\n## standfast {name}\n\n```text\n{help_}\n```\n")
    before, mark, written = DOCUMENT.read_text().partition(MARK)
    now = "".join(sections)
    if os.environ.get("RECORD"):
        DOCUMENT.write_text(before + mark + now)
        written = now
    assert written == now


def test_every_command_and_option_has_help() -> None:
    shown = {name: command.get_short_help_str(1_000) for name, command in main.commands.items()}
    for name, text in shown.items():
        command = main.get_command(click.Context(main), name)
        assert command is not None
        assert command.get_short_help_str(1_000) == text  # although it was not loaded
        for option in command.params:
            assert option.param_type_name == "argument" or getattr(option, "help", None), (name, option.name)
