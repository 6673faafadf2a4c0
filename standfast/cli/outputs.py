"""Writes text for people or JSON for programs, without terminal escape sequences."""

import json
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import click

from standfast.messages import visible, visible_json

if TYPE_CHECKING:
    from rich.console import Console

Form = Literal["text", "json", "jsonl"]
Row = Mapping[str, Any]

_WIDE = 10_000  # columns without a terminal: lines of a table are not broken
_FOLDED = 12  # columns in which a folded text is still readable
_IDS = ("RUN", "NAME", "SESSION")  # columns that people copy into other commands


def shown(value: Any) -> str:
    """Return a value as text that is safe in a terminal."""
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    return visible(text)


@dataclass(frozen=True)
class Output:
    """The output of a command.

    Args:
        form: "json" is one document, "jsonl" one line per item.
        color: None lets the terminal decide.
    """

    form: Form = "text"
    color: bool | None = None

    @property
    def is_text(self) -> bool:
        return self.form == "text"

    @cached_property
    def console(self) -> "Console":
        return self._console(stderr=False)

    @cached_property
    def errors(self) -> "Console":
        """The console for progress and notes, which must not get into a pipe."""
        return self._console(stderr=True)

    def _console(self, *, stderr: bool) -> "Console":
        from rich.console import Console  # 60 ms, which `--help` need not wait for

        console = Console(
            stderr=stderr,
            no_color=True if self.color is False else None,
            force_terminal=True if self.color else None,
            highlight=False,
            markup=False,
            emoji=False,
        )
        if not console.is_terminal:
            console = Console(stderr=stderr, width=_WIDE, highlight=False, markup=False, emoji=False, color_system=None)
        return console

    def rows(self, rows: Iterable[Row], columns: Mapping[str, Callable[[Row], Any]], *, nothing: str) -> None:
        """Write a list: a table of these columns, or each row unchanged."""
        found = list(rows)
        if self.form == "json":
            click.echo(_json(found, indent=2))
        elif self.form == "jsonl":
            for row in found:
                click.echo(_json(row))
        elif not found:
            self.note(nothing)
        else:
            self._table(found, columns)

    def _table(self, rows: Sequence[Row], columns: Mapping[str, Callable[[Row], Any]]) -> None:
        """Write a table in which ids stay whole: in narrow terminals other columns fold or disappear, from the end."""
        from rich.table import Table
        from rich.text import Text

        cells = {name: [Text(" ".join(shown(value(row)).split())) for row in rows] for name, value in columns.items()}
        widths = {name: max(len(name), *(cell.cell_len for cell in cells[name])) for name in columns}
        least = {name: width if name in _IDS else min(width, _FOLDED) for name, width in widths.items()}
        for name in reversed(list(columns)):
            if _table_width(least) > self.console.width and name not in _IDS:
                del least[name]
        needed = _table_width(least)
        wider = needed if needed > self.console.width else None  # than the terminal, whose line breaks are not copied
        table = Table(box=None, pad_edge=False, header_style="bold", width=wider)
        for name in least:
            table.add_column(name, overflow="fold", no_wrap=widths[name] == least[name])
        for row in zip(*(cells[name] for name in least), strict=True):
            table.add_row(*row)
        if self.console.is_terminal:
            self.console.print(table, crop=False)
            return
        with self.console.capture() as written:
            self.console.print(table)
        click.echo("\n".join(line.rstrip() for line in written.get().splitlines()))

    def item(self, item: Row, text: Callable[[], None]) -> None:
        """Write one item: with `text` for people, otherwise unchanged."""
        if self.is_text:
            text()
        else:
            click.echo(_json(item, indent=2 if self.form == "json" else None))

    def line(self, text: str, style: str | None = None) -> None:
        """Write a line for people."""
        self.console.print(shown(text), style=style, soft_wrap=True)

    def words(self, text: str, style: str | None = None) -> None:
        """Write a part of a line for people."""
        self.console.print(shown(text), style=style, soft_wrap=True, end="")

    def fields(self, fields: Mapping[str, Any]) -> None:
        """Write names and values for people, without empty ones. No line of a value looks like a field."""
        width = max((len(name) for name, value in fields.items() if value not in (None, "")), default=0)
        for name, value in fields.items():
            if value not in (None, ""):
                text = shown(value).replace("\n", "\n" + " " * (width + 4))
                self.line(f"{name:<{width}}  {text}")

    def note(self, text: str) -> None:
        """Write a note, separate from the output."""
        self.errors.print(shown(text), style="dim", soft_wrap=True)


def _table_width(columns: Mapping[str, int]) -> int:
    return sum(columns.values()) + 2 * (len(columns) - 1)


def _json(value: Any, indent: int | None = None) -> str:
    """Return JSON that is also safe in a terminal, and that programs read as the same value."""
    return visible_json(value, indent=indent, default=str)


@contextmanager
def stoppable() -> Iterator[None]:
    """Let Ctrl-C end a prompt at once; asyncio would only record it."""
    if threading.current_thread() is not threading.main_thread():  # signals cannot be set there
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def number_of(number: int, what: str) -> str:
    """Return a number of things as text: "1 run", "2 runs"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def ago(at: datetime | str | None) -> str:
    """Return a time difference in one unit: "3 min", "in 2 d"."""
    if at is None:
        return ""
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    seconds = (datetime.now(UTC) - moment).total_seconds()
    ahead, seconds = seconds < 0, abs(seconds)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{'in ' if ahead else ''}{round(seconds / size)} {unit}"
    return f"{'in ' if ahead else ''}{int(seconds)} s"
