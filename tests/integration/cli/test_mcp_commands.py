"""`standfast mcp`: logs in, shows changed tools, and accepts them."""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.commands import data, done, refused, standfast
from support.mcp_http import GatewayedServer
from support.mcp_processes import ServerProcess
from support.transcripts import asks_for, call

from standfast import Agent, run, sqlite_store
from standfast.mcp import OAuth, mcp_server
from standfast.testing import ScriptedModel

OAUTH = Path(__file__).parents[2] / "support" / "mcp_oauth_server.py"
KEY = {"STANDFAST_MCP_KEY": "a secret of the tests"}


async def test_what_a_server_has_changed_is_shown_and_accepted_as_it_was_shown(tmp_path: Path) -> None:
    path = str(tmp_path / "standfast.db")
    kept, listed = ("--store", path), [{"name": "post", "description": "Post.", "inputSchema": {"type": "object"}}]
    (tmp_path / "app.py").write_text(
        f"from standfast import Agent, sqlite_store\na, store = Agent('a'), sqlite_store({path!r})\n"
    )
    by_app = ("--app", str(tmp_path / "app.py"))

    async def look(text: str) -> None:
        listed[0] = {**listed[0], "description": text}
        async with sqlite_store(path) as store:
            await run(Agent("a", tools=[mcp_server(server.url)]), message="go", llm=ScriptedModel(["x"]), store=store)

    async with GatewayedServer(listed) as server:
        await look("Post.")
        [row] = await data(None, "mcp", "tools", *kept)
        assert (row["server"], row["tool"], row["held"]) == (server.url, "post", None)
        await look("Post, \x1b[31mand mail it.")
        [row] = await data(None, "mcp", "tools", *by_app)
        assert '-  "description": "Post."' in row["diff"]
        assert '+  "description": "Post, \\u001b[31mand mail it."' in row["diff"]
        shown = row["held"]
        await look("Post, and mail it to everybody.")
        words = ("mcp", "accept", server.url, "post")
        assert "has changed since you looked" in await refused(None, *words, "--digest", shown, *kept)
        [row] = await data(None, "mcp", "tools", server.url, *kept)
        text = await done(None, *words, "--digest", row["held"], *by_app)
        assert f"post of {server.url} is accepted as {row['held']}" in text
        [row] = await data(None, "mcp", "tools", *kept)
        assert (row["held"], row["by"]) == (None, "ada")
        app = tmp_path / "app.py"
        app.write_text(
            f"from standfast import Agent, sqlite_store\nstore = sqlite_store({path!r})\nagent = Agent('a')\n"
        )
        assert await data(None, "mcp", "tools", "--app", str(app)) == [row]
        checked = await standfast(None, "doctor", "--address", "127.0.0.1:9", "--app", str(app), "-o", "json")
        assert {"check": "store", "ok": True, "found": f"{path}, 3 sessions"} in json.loads(checked.stdout)
        assert "knows no MCP server 'x'" in await refused(None, "mcp", "tools", "x", *kept)


async def test_the_doctor_says_which_tools_are_held_back_or_left_out(tmp_path: Path) -> None:
    path = str(tmp_path / "standfast.db")
    (tmp_path / "app.py").write_text(
        f"from standfast import Agent, sqlite_store\na, store = Agent('a'), sqlite_store({path!r})\n"
    )
    stored = ("--app", str(tmp_path / "app.py"))
    listed = [{"name": name, "description": "Post.", "inputSchema": {"type": "object"}} for name in ("post", "mail")]

    async def found() -> dict[str, Any]:
        said = await standfast(None, "doctor", "--address", "127.0.0.1:9", *stored, "-o", "json")
        return next(row for row in json.loads(said.stdout) if row["check"] == "MCP tools")

    async with GatewayedServer(listed) as server, sqlite_store(path) as store:
        agent = Agent("a", tools=[mcp_server(server.url)])
        await run(agent, message="go", llm=ScriptedModel(["x"]), store=store)
        assert await found() == {
            "check": "MCP tools", "ok": True, "found": "2 tools known, none held back"
        }  # fmt: skip
        listed[1] = {**listed[1], "description": "Mail it to everybody."}
        await run(agent, message="go", llm=ScriptedModel(["x"]), store=store)
        row = await found()
        assert not row["ok"]
        assert f"mail of {server.url}. `standfast mcp tools --store {path}` shows the changes" in row["found"]
        listed.append({"name": "bad", "description": "Post.", "inputSchema": {}})
        await run(agent, message="go", llm=ScriptedModel(["x"]), store=store)
        row = await found()
        assert not row["ok"]
        assert f"bad of {server.url}: its declaration is invalid: inputSchema.type: Field required" in row["found"]
        rows = await data(None, "mcp", "tools", "--store", path)
        assert [one["tool"] for one in rows if one["left_out"]] == ["bad"]


async def test_a_user_logs_in_and_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEY.items():
        monkeypatch.setenv(name, value)
    path = str(tmp_path / "standfast.db")
    async with ServerProcess(tmp_path / "effects", OAUTH) as server:
        app = tmp_path / "app.py"
        app.write_text(
            "from standfast import Agent, sqlite_store\n"
            "from standfast.mcp import OAuth, mcp_server\n"
            f"store = sqlite_store({path!r})\n"
            f"agent = Agent('a', tools=[mcp_server({server.url!r}, auth=OAuth(scope='all'))])\n"
        )
        words = ("mcp", "login", server.url, "--app", str(app), "--user", "ada")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "standfast", *words, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stderr is not None
        line = (await process.stderr.readline()).decode()
        page = re.search(r"http\S+", line)
        assert page is not None, line
        async with httpx.AsyncClient(follow_redirects=True) as browser:
            assert "You are logged in" in (await browser.get(page[0])).text
        said, _ = await process.communicate()
        assert (process.returncode, said.decode().strip()) == (0, f"Logged in at {server.url}")

        async with sqlite_store(path) as store:
            mine = Agent("a", tools=[mcp_server(server.url, auth=OAuth(), only=["whoami"])])
            model = ScriptedModel([asks_for(call("whoami", "c1")), "done"])
            with pytest.raises(Exception, match="the shared account has not logged in"):
                await run(mine, message="go", llm=model, store=store, user_id="ada")
    assert "There is no file" in await refused(None, "mcp", "login", "http://x", "--app", str(tmp_path / "no.py"))
    text = await refused(None, "mcp", "login", "http://x/mcp", "--app", str(app))
    assert "has mcp_server('http://x/mcp', auth=OAuth(…))" in text
    out = ("mcp", "logout", server.url, "--app", str(app), "--user", "ada")
    assert f"Logged out at {server.url}" in await done(None, *out)
    assert f"There was no login at {server.url}" in await done(None, *out)
