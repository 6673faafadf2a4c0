"""Runs the examples in the documents, unchanged."""

import re
import signal
import subprocess
import sys
import textwrap
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


def test_the_first_example_of_the_readme_charges_once_if_it_is_killed_and_started_again(tmp_path: Path) -> None:
    example = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    dies = '    with open("charges", "a") as file:\n        file.write("1")\n    os.kill(os.getpid(), signal.SIGKILL)\n'
    charging = example.replace('    return f"charged', dies + '    return f"charged')
    assert charging != example
    imports, body = charging.split("\n\n\n", 1)
    lines = textwrap.indent(body, "    ")
    program = tmp_path / "invoice.py"
    program.write_text(f"import asyncio, os, signal\n{imports}\nasync def main():\n{lines}\nasyncio.run(main())\n")

    runs = [subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True) for _ in range(3)]

    assert [run.returncode for run in runs] == [-signal.SIGKILL, 0, 0], runs
    assert (tmp_path / "charges").read_text() == "1"
    assert "may or may not have taken effect" in runs[1].stdout
    assert runs[1].stdout == runs[2].stdout


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    prose = re.sub(r"^ *```.*?^ *```$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", TEXTS, ids=lambda path: path.name)
def test_a_link_in_a_document_leads_to_a_file_and_a_heading(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", document.read_text())
    for link, anchor in links:
        if "://" not in link:
            target = (document.parent / link).resolve() if link else document
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), (link, anchor)


def test_the_index_lists_every_document() -> None:
    index = ROOT / "docs" / "README.md"
    listed = set(re.findall(r"\]\(([a-z/-]+(?:README)?\.md)\)", index.read_text()))
    assert {path.name for path in DOCUMENTS if path.parent == index.parent} - {"README.md"} == {
        name for name in listed if "/" not in name
    }
    assert "integrations/README.md" in listed


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


def test_the_map_of_the_code_names_folders_and_modules_that_exist() -> None:
    block = re.split(r"^```$", (ROOT / "ARCHITECTURE.md").read_text(), flags=re.MULTILINE)[1]
    folders: list[tuple[int, Path]] = [(-1, ROOT)]
    for line in block.splitlines()[1:]:
        indent = len(line) - len(line.lstrip())
        while folders[-1][0] >= indent:
            folders.pop()
        names = re.split(r",? +", re.split(r" {3,}", line.strip())[0])
        for name in names:
            path = folders[-1][1] / name
            assert (
                path.is_dir() if name.endswith("/") else any(one.exists() for one in (path, path.with_suffix(".py")))
            ), f"{name}: {line}"
        folders.append((indent, folders[-1][1] / names[0]))
