"""Runs the examples of a document."""

import ast
import inspect
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


def code_of(document: Path) -> str:
    """Return a document's Python blocks as one program, each line where it stands in the document."""
    lines = [""] * len(document.read_text().splitlines())
    inside = False
    for number, line in enumerate(document.read_text().splitlines()):
        if line.startswith("```"):
            inside = line == "```python"
        elif inside:
            lines[number] = line
    return "\n".join(lines)


async def run_examples(document: Path | str) -> None:
    """Run a document's Python blocks in the current folder; a text names a document in docs/."""
    document = DOCS / document
    program = compile(code_of(document), document, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, Any] = {"__name__": "example"}
    running = eval(program, names)
    if inspect.isawaitable(running):
        await running
    for store in (value for value in names.values() if hasattr(value, "close") and hasattr(value, "durable")):
        await store.close()
