"""Stores the declarations of MCP tools, so that a changed tool is held back.

The notes are in the store's journal, and never change. The first declaration of a tool is accepted. A later declaration
counts only once a person has accepted it.
"""

import asyncio
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from standfast.errors import InputError
from standfast.mcp.schemas import declared, digest_of
from standfast.messages import JSONObject
from standfast.stores.kept_values import append, length, read_kept_object
from standfast.stores.protocol import Ledger

SERVERS = "standfast/mcp/servers"
_MOST_CHANGES = 100  # noted for one tool before a person accepts one: a server may change it at every listing
_AT_ONCE = 16  # notes that are read at the same time


@dataclass(frozen=True, slots=True)
class KnownTool:
    """A tool as it was accepted.

    Args:
        held: the server's current declaration, if it differs and has not been accepted.
        by: the person who accepted it; None for the first declaration.
        changes: the number of changes since. After too many, the held declaration stays as it was then.
    """

    name: str
    accepted: JSONObject
    held: JSONObject | None = None
    by: str | None = None
    changes: int = 0

    @property
    def changes_too_often(self) -> bool:
        return self.held is not None and self.changes >= _MOST_CHANGES

    def then(self, said: JSONObject) -> "KnownTool":
        """Return the tool after a new declaration by its server. The accepted declaration is not held."""
        if self.changes_too_often:
            return self
        is_back = digest_of(said) == digest_of(self.accepted)
        return replace(self, held=None if is_back else said, changes=self.changes + 1)


class KnownTools:
    """The tools that a store knows for one server."""

    def __init__(self, store: Ledger, key: str, name: str) -> None:
        self._store, self._place, self._name = store, f"standfast/mcp/tools/{key}", name
        self._left_out = f"standfast/mcp/left-out/{key}"
        self._server = json.dumps({"name": name, "key": key})

    async def load(self) -> dict[str, KnownTool]:
        """Return the tools by name."""
        return (await self._load())[0]

    async def _load(self) -> tuple[dict[str, KnownTool], int]:
        """Return the tools, and the number of notes."""
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
        """Return the accepted tools as SDK objects."""
        return [_item(known.accepted) for known in (await self.load()).values()]

    async def compared(self, items: Sequence[Any]) -> list[Any]:
        """Note the changes in a listing, and return its tools as they were accepted."""
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
        known = await self.load() if is_new else known  # another worker may have noted something else first
        return [_item(known[item.name].accepted) for item in items]

    async def left_out(self) -> dict[str, str]:
        """Return the unusable tools of the last listing, with the reasons."""
        count = await length(self._store, self._left_out)
        text = await self._store.load_reply(self._left_out, count - 1) if count else None
        found: dict[str, str] = read_kept_object("a note on tools", text or "{}").get("left_out", {})
        return found

    async def note_left_out(self, tools: Mapping[str, str]) -> None:
        """Note the unusable tools of a listing, if they have changed."""
        if await self.left_out() == tools:
            return
        if not await length(self._store, self._place) and not await length(self._store, self._left_out):
            await append(self._store, SERVERS, self._server, await length(self._store, SERVERS))
        count = await length(self._store, self._left_out)
        if count >= _MOST_CHANGES:
            return
        note = {"number": count, "left_out": dict(tools)}  # the number makes two equal notes distinct
        await append(self._store, self._left_out, json.dumps(note), count)

    async def accept(self, name: str, by: str, digest: str | None = None) -> KnownTool:
        """Accept the server's current declaration of a tool, and return it.

        Args:
            digest: the digest of the declaration that the person has seen.

        Raises:
            InputError: there is nothing to accept, or the server has changed its declaration since.
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

    async def _note(self, count: int, tool: str, said: JSONObject, by: str | None = None) -> int:
        # The number makes two equal notes distinct: held, accepted, changed and held again.
        note = {"number": count, "tool": tool, "declared": said} | ({} if by is None else {"by": by})
        return await append(self._store, self._place, json.dumps(note), count)


async def known_servers(store: Ledger) -> dict[str, KnownTools]:
    """Return the servers that a store knows, by name. If two share a name, the later one is also listed by its key."""
    found: dict[str, KnownTools] = {}
    seen = set()
    for number in range(await length(store, SERVERS)):
        server = read_kept_object("a note on a server", await store.load_reply(SERVERS, number) or "{}")
        name, key = str(server["name"]), str(server["key"])
        if key not in seen:
            found[f"{name}#{key[:8]}" if name in found else name] = KnownTools(store, key, name)
        seen.add(key)
    return found


def _item(said: JSONObject) -> Any:
    return importlib.import_module("mcp.types").Tool.model_validate(said)
