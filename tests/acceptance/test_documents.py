"""What the documents show is run here, as it stands."""

import re
from pathlib import Path

import pytest
from support.documents import run_examples

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ADAPTERS = sorted((ROOT / "docs" / "integrations").glob("*.md"))  # run by tests/integrations
OTHERS = [ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")]
TEXTS = [*DOCUMENTS, *ADAPTERS, *OTHERS]
WITH_EXAMPLES = [document for document in DOCUMENTS if "```python" in document.read_text()]


@pytest.mark.parametrize("document", WITH_EXAMPLES, ids=lambda path: path.name)
async def test_the_examples_of_a_document_do_what_it_says(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await run_examples(document)


@pytest.mark.parametrize("document", TEXTS, ids=lambda path: path.name)
def test_a_link_in_a_document_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text())
    assert [link for link in links if "://" not in link and not (document.parent / link).exists()] == []


def too_long(document: Path) -> list[str]:
    """Return the lines of prose of over 100 characters. Tables, pictures and code are as long as they are."""
    found, is_prose = [], True
    for number, line in enumerate(document.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_prose = not is_prose
        elif is_prose and len(line) > 100 and not line.lstrip().startswith(("|", "![", "`{", "`settings=")):
            found.append(f"{number}: {line}")
    return found


@pytest.mark.parametrize("document", TEXTS, ids=lambda path: path.name)
def test_a_line_of_a_document_fits_on_a_screen(document: Path) -> None:
    assert too_long(document) == []


def test_the_map_of_the_code_can_be_read_at_one_sitting() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 150  # of at most 100 characters
