"""Runs the examples on the OpenAI Agents SDK page, unchanged."""

from pathlib import Path

import pytest
from support.documents import run_examples


async def test_the_examples_of_the_page_do_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    await run_examples("integrations/openai-agents.md")
