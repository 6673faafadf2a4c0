"""What the documents show is run here, as it stands."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_EXAMPLES = [document for document in DOCUMENTS if "```python" in document.read_text()]


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


@pytest.mark.parametrize("document", WITH_EXAMPLES, ids=lambda path: path.name)
async def test_the_examples_of_a_document_do_what_it_says(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = compile(code_of(document), document, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, Any] = {"__name__": "example"}
    running = eval(program, names)
    if inspect.isawaitable(running):
        await running
    for store in (value for value in names.values() if hasattr(value, "close") and hasattr(value, "durable")):
        await store.close()


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name
)
def test_a_link_in_a_document_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text())
    assert [link for link in links if "://" not in link and not (document.parent / link).exists()] == []
