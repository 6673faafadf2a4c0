"""Keeps what MCP servers have declared about their tools, so that a tool that changes is held back.

The notes are in the store's journal, and none is ever changed: what was first seen of a tool is accepted, and what a
server says later only once a person has accepted it.
"""

import asyncio
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from standfast.errors import InputError
from standfast.mcp.declarations import declared, digest_of
from standfast.stores.kept_lists import append, length
from standfast.stores.kept_values import read_kept_object
from standfast.stores.protocol import Ledger

SERVERS = "standfast/mcp/servers"
_MOST_CHANGES = 100  # of one tool, that are noted before somebody accepts one: a server may change it at every listing
_AT_ONCE = 16  # notes that are read side by side


@dataclass(frozen=True, slots=True)
class KnownTool:
    """A tool as it was accepted.

    Args:
        held: what the server says of it now, if that is something else and nobody has accepted it.
        by: who has accepted it; None if it is as it was first seen.
        changes: how often it has changed since. After too many it stays held as it was then.
    """

    name: str
    accepted: dict[str, Any]
    held: dict[str, Any] | None = None
    by: str | None = None
    changes: int = 0

    @property
    def changes_too_often(self) -> bool:
        return self.held is not None and self.changes >= _MOST_CHANGES

    def then(self, said: dict[str, Any]) -> "KnownTool":
        """Return the tool after its server has said something else; as it was accepted, it is not held."""
        if self.changes_too_often:
            return self
        is_back = digest_of(said) == digest_of(self.accepted)
        return replace(self, held=None if is_back else said, changes=self.changes + 1)


class KnownTools:
    """The tools that a store knows of one server."""

    def __init__(self, store: Ledger, key: str, name: str) -> None:
        self._store, self._place, self._name = store, f"standfast/mcp/tools/{key}", name
        self._left_out = f"standfast/mcp/left-out/{key}"
        self._server = json.dumps({"name": name, "key": key})

    async def load(self) -> dict[str, KnownTool]:
        """Return them by name."""
        return (await self._load())[0]

    async def _load(self) -> tuple[dict[str, KnownTool], int]:
        """Return them, and the number of notes."""
        found: dict[str, KnownTool] = {}
        count = await length(self._store, self._place)
        for first in range(0, count, _AT_ONCE):
            numbers = range(first, min(first + _AT_ONCE, count))
            for text in await asyncio.gather(*(self._store.load_reply(self._place, number) for number in numbers)):
                note = read_kept_object("a note on a tool", text or "{}")
                name, by = str(note["tool"]), note.get("by")
                known = found.get(name)
                if known is None or by is not None:
                    found[name] = KnownTool(name, note["declared"], by=by)
                else:
                    found[name] = known.then(note["declared"])
        return found, count

    async def accepted(self) -> list[Any]:
        """Return the tools as the SDK has them, as they were accepted."""
        return [_item(known.accepted) for known in (await self.load()).values()]

    async def compared(self, items: Sequence[Any]) -> list[Any]:
        """Note what is new in a listing, and return its tools as they were accepted."""
        known, count = await self._load()
        if not count and items:
            await append(self._store, SERVERS, self._server, await length(self._store, SERVERS))
        is_new = False
        for item in items:
            said = declared(item)
            before = known.get(item.name)
            last = None if before is None else before.held or before.accepted
            if before is not None and before.changes_too_often:
                continue
            if last is None or digest_of(last) != digest_of(said):
                count = await self._note(count, item.name, said)
                is_new = True
        known = await self.load() if is_new else known  # another worker may have seen something else first
        return [_item(known[item.name].accepted) for item in items]

    async def left_out(self) -> dict[str, str]:
        """Return the tools of the last listing that cannot be used, and why."""
        count = await length(self._store, self._left_out)
        text = await self._store.load_reply(self._left_out, count - 1) if count else None
        found: dict[str, str] = read_kept_object("a note on tools", text or "{}").get("left_out", {})
        return found

    async def note_left_out(self, tools: Mapping[str, str]) -> None:
        """Note which tools of a listing cannot be used, if these are others than before."""
        if await self.left_out() == tools:
            return
        if not await length(self._store, self._place) and not await length(self._store, self._left_out):
            await append(self._store, SERVERS, self._server, await length(self._store, SERVERS))
        count = await length(self._store, self._left_out)
        if count >= _MOST_CHANGES:
            return
        note = {"number": count, "left_out": dict(tools)}  # the number makes two equal notes two
        await append(self._store, self._left_out, json.dumps(note), count)

    async def accept(self, name: str, by: str, digest: str | None = None) -> KnownTool:
        """Accept what the server says of a tool now, and return that.

        Args:
            digest: of what the person has seen.

        Raises:
            InputError: there is nothing to accept, or the server says something else by now.
        """
        known, count = await self._load()
        if name not in known:
            raise InputError(f"{self._name} has no tool {name!r}; it has {', '.join(known) or 'none'}")
        if (held := known[name].held) is None:
            raise InputError(f"{self._name}: its tool {name!r} has not changed since it was accepted")
        if digest is not None and digest_of(held) != digest:
            raise InputError(
                f"{self._name}: its tool {name!r} has changed since you looked: it is {digest_of(held)} now"
            )
        await self._note(count, name, held, by)
        return KnownTool(name, held, by=by)

    async def _note(self, count: int, tool: str, said: dict[str, Any], by: str | None = None) -> int:
        # The number makes two equal notes two: what is held, accepted, changed and held again.
        note = {"number": count, "tool": tool, "declared": said} | ({} if by is None else {"by": by})
        return await append(self._store, self._place, json.dumps(note), count)


async def known_servers(store: Ledger) -> dict[str, KnownTools]:
    """Return the servers that a store knows, by name; where two have one name, the later also by its key."""
    found: dict[str, KnownTools] = {}
    seen = set()
    for number in range(await length(store, SERVERS)):
        server = read_kept_object("a note on a server", await store.load_reply(SERVERS, number) or "{}")
        name, key = str(server["name"]), str(server["key"])
        if key not in seen:
            found[f"{name}#{key[:8]}" if name in found else name] = KnownTools(store, key, name)
        seen.add(key)
    return found


def _item(said: dict[str, Any]) -> Any:
    return importlib.import_module("mcp.types").Tool.model_validate(said)
