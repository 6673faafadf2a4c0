"""An MCP server over HTTP behind a gateway: it forgets sessions, and loses answers."""

import asyncio
import json
from typing import Any
from uuid import uuid4

TOOLS = ("post", "read", "pay", "garbled", "silent", "cut", "1st", "a.b", "a_b", "a/b")
_LOST = {"pay": (504, b"<html>timeout"), "garbled": (200, b"{not json"), "silent": (200, b"")}


class GatewayedServer:
    """What happened is in `effects`; `restart()` forgets the sessions, as a new process would."""

    def __init__(self, tools: Any = None) -> None:
        self.effects: list[str] = []
        self.given: list[Any] = []  # the parameters of the calls
        self.structured: Any = None  # in place of words
        self.refuses: int | None = None  # the status of all answers
        self.seen: list[tuple[str, dict[str, str]]] = []  # the methods that were asked for, and the headers
        self.release = asyncio.Event()
        self._sessions: set[str] = set()
        self._tools = tools

    async def __aenter__(self) -> "GatewayedServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/mcp"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.release.set()
        self._server.close()

    def restart(self) -> None:
        self._sessions.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            status, answer, more = await self._answer(first.split()[0], headers, body)
            kind = more.pop("Content-Type", "application/json")
            head = [f"HTTP/1.1 {status} It", f"Content-Type: {kind}", f"Content-Length: {len(answer)}",
                    "Connection: close", *(f"{name}: {value}" for name, value in more.items())]  # fmt: skip
            writer.write("\r\n".join([*head, "", ""]).encode() + answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, method: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        if method != "POST":
            return 405, b"", {}
        asked = json.loads(body)
        self.seen.append((asked.get("method", ""), headers))
        if self.refuses is not None:
            return self.refuses, b"no", {"Content-Type": "text/plain"}
        if asked.get("method") == "initialize":
            session = uuid4().hex
            self._sessions.add(session)
            info = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                    "serverInfo": {"name": "test", "version": "1"}}  # fmt: skip
            return 200, _result(asked, info), {"mcp-session-id": session}
        if asked.get("method") == "server/discover":
            return 200, _error(asked, -32601, "Method not found"), {}
        if headers.get("mcp-session-id") not in self._sessions:
            return 404, b"", {}
        match asked:
            case {"method": "tools/list"}:
                return 200, _result(asked, {"tools": _described() if self._tools is None else self._tools}), {}
            case {"method": "tools/call"}:
                return await self._call(asked, asked["params"]["name"])
        return (200, _result(asked, {}), {}) if "id" in asked else (202, b"", {})

    async def _call(self, asked: Any, name: str) -> tuple[int, bytes, dict[str, str]]:
        self.effects.append(name)
        self.given.append(asked["params"])
        if name == "cut":
            return 200, b": and no more\n\n", {"Content-Type": "text/event-stream"}
        if name in _LOST:
            return (*_LOST[name], {})
        if name == "post" and asked["params"].get("arguments", {}).get("slowly"):
            await self.release.wait()
        data = {} if self.structured is None else {"structuredContent": self.structured}
        return 200, _result(asked, {"content": [{"type": "text", "text": f"{name} is done"}], **data}), {}


def _described() -> list[dict[str, Any]]:
    return [
        {"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": name == "read"}}
        for name in TOOLS
    ]


def _result(asked: Any, result: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": asked.get("id"), "result": result}).encode()


def _error(asked: Any, code: int, message: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": asked.get("id"), "error": {"code": code, "message": message}}).encode()
