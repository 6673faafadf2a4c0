"""No text makes one of our regular expressions take more than linear time, since `re` blocks everything else."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, TypeAdapter, ValidationError
from support import regular_expressions

from standfast.messages import unfenced

_ENGINE = re.compile(r'regex_engine="([^"]*)"')

CUBIC = r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*"  # of a fence of Markdown, as it once was read here


async def _run(*given: str) -> tuple[int, str]:
    """Run expressions on hostile texts, all of the code's if none are given; return the exit code and the last line."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [regular_expressions.ROOT, *_tests()]))}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "support.regular_expressions", *given,
        stdout=asyncio.subprocess.PIPE, env=environment,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode().splitlines()[-1]


def _tests() -> list[Path]:
    return [regular_expressions.ROOT / "tests"]


@pytest.mark.slow
async def test_no_long_text_keeps_a_regular_expression_of_ours_busy() -> None:
    code, last = await _run()
    assert (code, last) == (0, "done"), f"ended by signal {-code} at {last}"


@pytest.mark.slow
async def test_no_function_takes_long_to_show_or_compare_what_anybody_wrote() -> None:
    code, last = await _run("--calls")
    assert (code, last) == (0, "done"), f"ended by signal {-code} at {last}"


@pytest.mark.slow
@pytest.mark.parametrize("expression", [CUBIC, r"a*[ab]*x"])
async def test_an_expression_that_backtracks_would_be_noticed(expression: str) -> None:
    code, last = await _run(expression)
    assert (code, last.startswith(ascii(expression))) == (-signal.SIGXCPU, True)


def test_patterns_of_arguments_are_read_by_an_engine_that_does_not_backtrack() -> None:
    patterns = regular_expressions.declared()
    assert patterns
    engines = {engine for path in regular_expressions.sources() for engine in _ENGINE.findall(path.read_text())}
    assert engines == {"rust-regex"}  # where one is named: for MCP servers' schemas, whose patterns are untrusted
    for pattern in patterns:
        read = TypeAdapter(Annotated[str, Field(pattern=pattern)])
        for text in regular_expressions.hostile_texts(pattern.replace("\\u0000", "\\x00")):
            with contextlib.suppress(ValidationError):
                read.validate_python(text)


@pytest.mark.parametrize(
    ("fenced", "inner"),
    [
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        ('\n ```JSON  \n\n  {"a": 1}\n\n```\n\n', '  {"a": 1}'),
        ("```\n```", ""),
        ("```\na\n```\nb\n```", "a\n```\nb"),
        ("```json {}```", "```json {}```"),
        ("```python\n{}\n```", "```python\n{}\n```"),
        ("so: ```\n{}\n```", "so: ```\n{}\n```"),
        ("```\n{}", "```\n{}"),
        ("`````", "`````"),
    ],
)
def test_a_fence_is_read_as_it_always_was(fenced: str, inner: str) -> None:
    once = re.fullmatch(CUBIC, fenced, re.DOTALL | re.IGNORECASE)
    assert [inner, inner] == [unfenced(fenced), fenced if once is None else once[1]]
