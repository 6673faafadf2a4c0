"""Fixtures of the connection tests: a private configuration."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], str]:
    """Return what writes a configuration file and returns its path; nothing else of this machine is read."""
    for name in [name for name in os.environ if name.startswith("TEMPORAL_")]:
        monkeypatch.delenv(name)
    path = tmp_path / "temporal.toml"
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(path))

    def write(text: str) -> str:
        path.write_text(text)
        return str(path)

    return write
