"""Fixtures of the MCP tests: servers that serve all tests of a process, since each takes a second to start."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mcp_processes import served_over_http

SUPPORT = Path(__file__).parents[2] / "support"


@pytest.fixture(scope="session")
def asking_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of `mcp_asking_server.py`, and the file of its effects."""
    effects = tmp_path_factory.mktemp("asking") / "effects"
    with served_over_http(SUPPORT / "mcp_asking_server.py", effects) as url:
        yield url, effects


@pytest.fixture
def asking(asking_server: tuple[str, Path]) -> str:
    """The address of a server that asks back, without effects so far."""
    url, effects = asking_server
    effects.unlink(missing_ok=True)
    return url


@pytest.fixture
def asked_effects(asking: str, asking_server: tuple[str, Path]) -> Path:
    return asking_server[1]


@pytest.fixture(scope="session")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of `mcp_server.py`, and the file of its effects."""
    effects = tmp_path_factory.mktemp("plain") / "effects"
    with served_over_http(SUPPORT / "mcp_server.py", effects) as url:
        yield url, effects
