"""The application's pipelines as a user runs them: with `worker.py` and the `temporal` command line only."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from acceptance.temporal_world import until
from standfast.temporal.client.queues.servers import DevServer, dev_server, temporal_binary
from standfast.testing import child_process

ROOT = Path(__file__).parents[2]
SECRET = "# Guide\n\napi_key: hunter2\n"


class World:
    """A server, a worker and two folders."""

    def __init__(self, server: DevServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        (folder / "documents").mkdir()

    async def temporal(self, *arguments: str) -> Any:
        """Run the `temporal` command and return what it prints."""
        command = [temporal_binary(), "workflow", *arguments, "--address", self.server.address, "--output", "json"]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, error = await process.communicate()
        assert process.returncode == 0, error.decode()
        return json.loads(out) if out.strip().startswith(b"{") else out.decode()

    async def start(self, kind: str, given: dict[str, Any]) -> None:
        await self.temporal("start", "--type", kind, "--task-queue", "standfast", "--workflow-id", f"{kind}/1",
                            "--input", json.dumps({"input": given}))  # fmt: skip

    async def pending(self) -> list[dict[str, Any]]:
        found = await self.temporal("query", "--workflow-id", "review/1", "--type", "pending")
        waits: list[dict[str, Any]] = found["queryResult"][0]
        return waits


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    async with dev_server() as server:
        made = World(server, folder)
        environment = server.environment() | {
            "STANDFAST_MODEL": "scripted",
            "STANDFAST_STORE": str(folder / "standfast.db"), "STANDFAST_DOCUMENTS": str(folder / "documents"),
            "STANDFAST_SITE": str(folder / "site"),
        }  # fmt: skip
        worker = (sys.executable, ROOT / "worker.py")
        async with child_process(*worker, environment=environment, output=subprocess.DEVNULL, patience=60):
            yield made


async def test_a_document_is_reviewed_approved_and_published_with_the_command_line_alone(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        (tmp_path / "documents" / "guide.md").write_text(SECRET)
        await there.start("review", {"path": "guide.md"})
        await until(there.pending, "the gate is reached")
        (waits,) = await there.pending()
        assert (waits["kind"], waits["name"]) == ("approval", "human-approval")
        assert waits["message"] == "Publish guide.md? Findings of the review:\n- line 3: looks like a secret"
        assert not (tmp_path / "site").exists()
        decision = {"gate": "human-approval", "decision": "approve", "by": "ada", "digest": waits["digest"]}
        await there.temporal("update", "execute", "--workflow-id", "review/1", "--name", "decide",
                             "--input", json.dumps(decision))  # fmt: skip
        ended = (await there.temporal("result", "--workflow-id", "review/1"))["result"]
        assert ended["status"] == "complete"
        assert ended["outputs"]["publish"] == {"path": "guide.md", "characters": len(SECRET)}
        assert (tmp_path / "site" / "guide.md").read_text() == SECRET


@pytest.mark.slow
async def test_a_rejected_document_is_not_published(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        (tmp_path / "documents" / "guide.md").write_text("# Guide\n")
        await there.start("review", {"path": "guide.md"})
        await until(there.pending, "the gate is reached")
        await there.temporal("signal", "--workflow-id", "review/1", "--name", "reject",
                             "--input", '{"gate": "human-approval", "by": "ada", "comment": "not yet"}')  # fmt: skip
        ended = (await there.temporal("result", "--workflow-id", "review/1"))["result"]
        assert (ended["status"], ended["failed_step"], ended["error_reason"]) == (
            "error", "human-approval", "approval-rejected")  # fmt: skip
        assert ended["error"] == "gate human-approval was rejected by ada: not yet"
        assert not (tmp_path / "site").exists()


@pytest.mark.slow
async def test_an_article_is_researched_written_and_edited(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        await there.start("content", {"topic": "TypeScript generics", "tone": "conversational"})
        ended = (await there.temporal("result", "--workflow-id", "content/1"))["result"]
        assert ended["status"] == "complete"
        assert set(ended["outputs"]) == {"research", "write", "edit"}
        assert "TypeScript generics" in ended["outputs"]["edit"]["final"]
