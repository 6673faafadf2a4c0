"""Stored data about MCP servers: known tools, logins, questions and their answers, in each database."""

import time
from pathlib import Path
from typing import Any

import pytest
from support.mcp_http import GatewayedServer
from support.mcp_processes import ServerProcess
from support.transcripts import asks_for, call, error_of, result_of, tool_results

from standfast import Agent, InputError, is_interrupted, resume, run
from standfast.mcp import OAuth, mcp_server
from standfast.mcp.known_tools import known_servers
from standfast.mcp.stored_logins import Login, Logins
from standfast.testing import ScriptedModel

ASKING = Path(__file__).parents[2] / "support" / "mcp_asking_server.py"


@pytest.fixture(params=["postgres_store", "d1_store"])
def kept(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def asks(name: str, **arguments: Any) -> ScriptedModel:
    return ScriptedModel([asks_for(call(name, "c1", **arguments)), "done"])


async def test_a_tool_that_changed_is_held_back_and_accepted(kept: Any) -> None:
    listed = [{"name": "post", "description": "Post \x00 \x1b[31m.", "inputSchema": {"type": "object"}}]
    async with GatewayedServer(listed) as server:
        agent = Agent("a", tools=[mcp_server(server.url)])
        await run(agent, message="go", llm=asks("post"), store=kept, session_id="s1")
        listed[0] = {**listed[0], "description": "Mail."}
        ended = await run(agent, message="go", llm=asks("post"), store=kept, session_id="s2")
        assert "since it was accepted" in error_of(tool_results(ended.messages)[0])
        known = (await known_servers(kept))[server.url]
        with pytest.raises(InputError, match="has changed since you looked"):
            await known.accept("post", "ada", "0" * 16)
        await known.accept("post", "ada")
        ended = await run(agent, message="go", llm=asks("post"), store=kept, session_id="s3")
        assert result_of(ended.messages, "c1") == "post is done"
    assert server.effects == ["post", "post"]


@pytest.mark.slow(but=1)
async def test_tokens_are_those_of_their_user_and_tenant(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDFAST_MCP_KEY", "a secret of the tests")
    everybody = [(None, None), (None, "ada"), ("acme", "ada"), ("acme", None), ("acme/ada", None), (None, "acme/ada")]
    async with GatewayedServer() as server:
        logins = Logins(kept, server.url, None)
        for number, who in enumerate(everybody):
            await logins.save(who, Login(f"token-{number}", None, time.time() + 3600, "http://127.0.0.1:9", {}))
        agent = Agent("a", tools=[mcp_server(server.url, auth=OAuth(), only=["post"])])
        for number, (tenant, user) in enumerate(everybody):
            if tenant is None or "/" not in tenant:
                await run(agent, message="go", llm=asks("post"), store=kept, user_id=user, tenant_id=tenant)
                used = [seen["authorization"] for method, seen in server.seen if method == "tools/call"]
                assert used[-1] == f"Bearer token-{number}"
        ended = await run(agent, message="go", llm=asks("post"), store=kept, user_id="bob", tenant_id="acme")
        assert "user 'bob' has not logged in" in error_of(tool_results(ended.messages)[0])


@pytest.mark.slow(but=1)
async def test_a_question_waits_in_the_store_and_its_answer_counts_once(kept: Any, tmp_path: Path) -> None:
    (tmp_path / "effects.key").write_text("a key that all processes of the server have")
    async with ServerProcess(tmp_path / "effects", ASKING) as server:
        agent = Agent("a", tools=[mcp_server(server.url, elicitation=True)])
        model = ScriptedModel([asks_for(call("book", f"c{number}", city="Oslo")) for number in range(2)])
        asked = await run(agent, message="go", llm=model, store=kept, session_id="s1")
        assert is_interrupted(asked)
        again = await resume(agent, asked.checkpoint, "7a", llm=model, store=kept)
    assert is_interrupted(again)  # the second call asks for itself
    assert "Which seat?" in again.question
    assert (tmp_path / "effects").read_text() == "reserve Oslo\nreserved Oslo, booked 7a\nreserve Oslo\n"
