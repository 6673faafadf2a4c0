"""The command `standfast`, as typed by a user with a test server."""

import asyncio
import json
from typing import Any, Protocol

from click.testing import CliRunner, Result
from temporalio.client import Client

from standfast.cli import main
from standfast.testing import ScriptedModel
from support.transcripts import asks_for, call

ASKS = asks_for(call("ask_user", "c1", question="Which \x1b[31maccount\u202e?"))


class AtServer(Protocol):
    """A test that has a client of a server."""

    @property
    def client(self) -> Client: ...


def asking(*turns: Any) -> ScriptedModel:
    return ScriptedModel([*turns, "done"])


async def standfast(temporal: AtServer | None, *words: str, stdin: str | None = None, **environment: str) -> Result:
    """Run a command beside the test's own loop; with `temporal`, at its server."""
    at = () if temporal is None else ("--address", temporal.client.service_client.config.target_host)
    known = {"STANDFAST_USER": "ada", "STANDFAST_STORE": "", **environment}
    return await asyncio.to_thread(CliRunner().invoke, main, [*words, *at], input=stdin, env=known)


async def done(temporal: AtServer | None, *words: str, **options: Any) -> str:
    """Return what a command that goes well writes."""
    result = await standfast(temporal, *words, **options)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


async def refused(temporal: AtServer | None, *words: str, code: int = 1, **options: Any) -> str:
    """Return the error of a command that does not: one line, and no traceback."""
    result = await standfast(temporal, *words, **options)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stderr


async def data(temporal: AtServer | None, *words: str, **options: Any) -> Any:
    """Return the JSON that a command writes."""
    return json.loads(await done(temporal, *words, "-o", "json", **options))
