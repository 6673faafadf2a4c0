"""What the demo prints: plain text in columns, with colour on a terminal that wants it."""

import os
import shutil
import sys
import textwrap
import time

LABEL = 12  # width of the first column


class Screen:
    """Prints, and knows how long it has been doing so."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._width = min(100, max(60, shutil.get_terminal_size((100, 24)).columns))
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def say(self, *lines: str) -> None:
        for line in lines or ("",):
            print(line, flush=True)

    def heading(self, text: str) -> None:
        self.say("", self.bold(text), "")

    def row(self, label: str, text: str, *, width: int = LABEL, mark: str = "  ") -> None:
        """Print a label and a text that is wrapped in its column."""
        lines = textwrap.wrap(text, self._width - width - 4, break_on_hyphens=False, break_long_words=False)
        self.lines(label, *lines, width=width, mark=mark)

    def lines(self, label: str, *lines: str, width: int = LABEL, mark: str = "  ") -> None:
        """Print a label and preformatted lines."""
        head = f"{mark:<4}{self.dim(f'{label:<{width}}')}"
        self.say(*(f"{head if number == 0 else ' ' * (width + 4)}{line}" for number, line in enumerate(lines or ("",))))

    def command(self, label: str, *parts: str) -> None:
        """Print a shell's command in several lines, as it can be copied."""
        self.lines(label, *(f"{part} \\" for part in parts[:-1]), parts[-1])

    def cut(self, label: str, text: str, *, width: int = LABEL) -> None:
        """Print a label and as much of a text as goes into one line."""
        line, room = " ".join(text.split()), self._width - width - 4
        self.lines(label, line if len(line) <= room else f"{line[: room - 1]}…", width=width)

    def event(self, text: str) -> None:
        """Print what has just happened, and when."""
        self.lines(f"{time.monotonic() - self._begun:.1f} s", text)

    def ask(self, label: str, text: str) -> None:
        """Print a prompt."""
        print(f"    {self.dim(f'{label:<{LABEL}}')}{self.bold(text)} ", end="", flush=True)

    def bold(self, text: str) -> str:
        return self._styled(text, 1)

    def dim(self, text: str) -> str:
        return self._styled(text, 2)

    def red(self, text: str) -> str:
        return self._styled(text, 31)

    def green(self, text: str) -> str:
        return self._styled(text, 32)

    def _styled(self, text: str, code: int) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and text.strip() else text
