"""Keeps what people change in a call, of which a history has a reference."""

from typing import Any

from pydantic_core import to_json

from standfast.messages import read_json
from standfast.stores.kept_values import read_kept
from standfast.temporal.activities.hosts import AgentHost
from standfast.temporal.wire.references import edit_digest


async def keep_edit(host: AgentHost, run: str, edit: object) -> None:
    """Keep the arguments that people have put in place of the model's."""
    if edit is not None:
        await host.store.save_reply(_edit_place(run, edit_digest(edit)), 0, to_json(edit).decode())


async def load_edit(host: AgentHost, run: str, digest: str) -> Any:
    """Return what `keep_edit` has kept."""
    kept = await host.load_kept(_edit_place(run, digest), 0)
    return read_kept(f"edited arguments of run {run}", kept, read_json)


def _edit_place(run: str, digest: str) -> str:
    """Return where edited arguments are kept."""
    return f"{run}/edits/{digest}"
