"""Users log in at MCP servers: each call uses its user's token, which is renewed and never shown."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from support.drivers import Driver
from support.mcp_processes import ServerProcess, served_over_http
from support.pages import served
from support.transcripts import asks_for, call, error_of, result_of, tool_results

from standfast import Agent, DefinitionError, InputError, StandfastError, sqlite_store
from standfast.mcp import OAuth, login, mcp_server
from standfast.mcp.stored_logins import Logins
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel

SERVER = Path(__file__).parents[2] / "support" / "mcp_oauth_server.py"
SECRET = "a secret of the tests"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDFAST_MCP_KEY", SECRET)


@dataclass(frozen=True)
class Private:
    """The server of all tests that do not restart it, and the file of its effects."""

    url: str
    effects: Path


@pytest.fixture(scope="module")
def private_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Private]:
    effects = tmp_path_factory.mktemp("private") / "effects"
    with served_over_http(SERVER, effects) as url:
        yield Private(url, effects)


@pytest.fixture
def server(private_server: Private) -> Private:
    """A server without effects so far."""
    for suffix in ("", ".lifetime", ".revoked"):
        private_server.effects.with_suffix(suffix).unlink(missing_ok=True)
    return private_server


async def as_a_browser(page: str) -> None:
    """Open the login page, which sends the browser back at once."""
    async with httpx.AsyncClient(follow_redirects=True) as browser:
        (await browser.get(page)).raise_for_status()


async def logged_in(server: Private | ServerProcess, store: Any, user: str | None, tenant: str | None = None) -> str:
    """Log a user in, and return the client by which the server knows the user."""
    tasks: list[asyncio.Task[None]] = []

    def show(page: str) -> None:
        tasks.append(asyncio.create_task(as_a_browser(page)))

    await login(server.url, store=store, show=show, user_id=user, tenant_id=tenant)
    await asyncio.gather(*tasks)
    kept = await Logins(store, server.url, None).load((tenant, user))
    assert kept is not None
    return str(kept.client["client_id"])


def asks() -> ScriptedModel:
    return ScriptedModel([asks_for(call("whoami", "c1")), "done"])


@pytest.mark.slow(but=1)
async def test_each_user_is_served_with_their_own_token(driver: Driver, server: Private) -> None:
    store = driver.temporal.store
    known = {user: await logged_in(server, store, user) for user in (None, "ada", "bob")}
    assert len(set(known.values())) == 3
    agent = Agent("a", tools=[mcp_server(server.url, auth=OAuth())])
    for number, user in enumerate(("ada", "bob", "ada", "bob")):
        ended = await driver.run(agent, asks(), session=f"s{number}", user_id=user)
        assert result_of(ended.messages, "c1") == known[user]
    ended = await driver.run(agent, asks(), session="carl", user_id="carl")
    text = error_of(tool_results(ended.messages)[0])
    assert f"user 'carl' has not logged in at {server.url}; log in with `standfast mcp login" in text
    assert text.endswith("--user carl`")
    model = asks()
    await driver.run(agent, model, session="ada", user_id="ada", tenant_id="acme")
    assert "user 'ada' has not logged in" in model.calls[-1].messages[-1].content


async def test_a_token_that_is_old_is_renewed_once_for_all(driver: Driver, server: Private) -> None:
    store = driver.temporal.store
    server.effects.with_suffix(".lifetime").write_text("1")
    client = await logged_in(server, store, None)
    server.effects.with_suffix(".lifetime").unlink()
    agent = Agent("a", tools=[mcp_server(server.url, auth=OAuth())])
    for number in range(2):
        ended = await driver.run(agent, asks(), session=f"s{number}")
        assert result_of(ended.messages, "c1") == client
    assert server.effects.read_text().count(f"refresh {client}") == 1


async def test_a_token_that_the_server_takes_back_is_renewed(driver: Driver, server: Private) -> None:
    client = await logged_in(server, driver.temporal.store, None)
    agent = Agent("a", tools=[mcp_server(server.url, auth=OAuth())])
    await driver.run(agent, asks(), session="s1")
    server.effects.with_suffix(".revoked").touch()
    ended = await driver.run(agent, asks(), session="s2")
    assert result_of(ended.messages, "c1") == client
    assert server.effects.read_text().splitlines() == [
        f"login {client}", f"call {client}", f"refresh {client}", f"call {client}"
    ]  # fmt: skip


@pytest.mark.slow(but=1)
async def test_somebody_whose_login_has_ended_is_told_to_log_in_again(driver: Driver, tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "effects", SERVER)
    agent = Agent("a", tools=[mcp_server(server.url, auth=OAuth())])
    async with server:
        await logged_in(server, driver.temporal.store, None)
        await driver.run(agent, asks(), session="s1")
        await server.kill()
        await server.start()  # it has lost all logins
        ended = await driver.run(agent, asks(), session="s2")
        assert "the shared account must log in again" in error_of(tool_results(ended.messages)[0])
        client = await logged_in(server, driver.temporal.store, None)
        ended = await driver.run(agent, asks(), session="s3")
        assert result_of(ended.messages, "c1") == client


async def test_a_token_is_nowhere_but_encrypted_in_the_store(
    driver: Driver, server: Private, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    store = driver.temporal.store
    await logged_in(server, store, "ada")
    kept = await Logins(store, server.url, None).load((None, "ada"))
    assert kept is not None
    agent = Agent("a", tools=[mcp_server(server.url, auth=OAuth())])
    await logged_in(server, store, None)
    ended = await driver.run(agent, asks(), user_id="ada")
    files = b"".join(file.read_bytes() for file in tmp_path.glob("standfast.db*"))
    assert str(kept.client["client_id"]).encode() in files  # the result of the call
    for secret in (kept.access_token, str(kept.refresh_token)):
        assert secret.encode() not in files
        assert secret not in repr(kept) + repr(agent.tools) + caplog.text
        assert secret not in json.dumps([one.model_dump(mode="json") for one in ended.messages])


async def test_a_login_does_not_count_for_another_user_or_key(server: Private, driver: Driver) -> None:
    store = driver.temporal.store
    await logged_in(server, store, "ada")
    mine, theirs = Logins(store, server.url, None), Logins(store, server.url, "another secret of theirs")
    with pytest.raises(StandfastError, match="encrypted with another key"):
        await theirs.load((None, "ada"))
    # A writer of the store cannot turn one user's login into another's.
    row = await store.load_reply(mine._place((None, "ada")), 0)
    await store.save_reply(mine._place((None, "eve")), 0, str(row))
    with pytest.raises(StandfastError, match="cannot be read"):
        await mine.load((None, "eve"))
    assert await mine.forget((None, "ada"))
    assert await mine.load((None, "ada")) is None
    assert not await mine.forget((None, "ada"))


@pytest.mark.slow(but=1)
async def test_nobody_logs_in_at_a_server_elsewhere_that_they_have_not_agreed_to(
    driver: Driver, tmp_path: Path
) -> None:
    store, pages, asked = driver.temporal.store, list[str](), list[str]()
    (tmp_path / "effects.issuer").write_text("localhost")
    async with ServerProcess(tmp_path / "effects", SERVER) as server:
        issuer = f"http://localhost:{server.port}"

        async def tried(answer: bool | None = None, **oauth: Any) -> str:
            browsers: list[asyncio.Task[None]] = []

            def show(page: str) -> None:
                pages.append(page)
                browsers.append(asyncio.create_task(as_a_browser(page)))

            def consent(words: str) -> bool:
                asked.append(words)
                return bool(answer)

            try:
                given = OAuth(**oauth)
                await login(
                    server.url, store=store, show=show, oauth=given, consent=None if answer is None else consent
                )
            except StandfastError as error:
                return str(error)
            finally:
                await asyncio.gather(*browsers)
            return "done"

        secret = {"client_id": "registered", "client_secret": "a secret of the client"}
        for options in ({}, secret):
            assert f"say OAuth(issuer='{issuer}" in await tried(**options)
            assert "not agreed to" in await tried(False, **options)
            assert "and not https://login.example.com" in await tried(
                True, issuer="https://login.example.com", **options
            )
        assert pages == []
        assert len(asked) == 2
        assert f"at {issuer}" in asked[0]
        assert await tried(True) == "done"
        assert await tried() == "done"  # at the same one
        assert await tried(issuer=issuer) == "done"
        assert len(asked) == 3
        await server.kill()
        (tmp_path / "effects.issuer").write_text("127.0.0.1")
        await server.start()
        assert f"and not {issuer}" in await tried(True)
        assert len(pages) == 3


async def metadata_server(of_resource: dict[str, Any], of_issuer: dict[str, Any], asked: list[str]) -> Starlette:
    """Return a server that has its users log in at itself, and says something wrong of that."""

    async def answer(request: Any) -> Any:
        asked.append(request.url.path)
        base = f"http://{request.url.netloc}"
        if "oauth-protected-resource" in request.url.path:
            return JSONResponse({"resource": f"{base}/mcp", "authorization_servers": [base]} | of_resource)
        if "oauth-authorization-server" in request.url.path:
            known = {"issuer": base, "response_types_supported": ["code"]}
            for name in ("authorization", "token", "registration"):
                known[f"{name}_endpoint"] = f"{base}/{name}"
            return JSONResponse(known | of_issuer)
        if request.url.path == "/registration":
            return JSONResponse({"client_id": "c", **await request.json()}, 201)
        return JSONResponse({}, 401)

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])


@pytest.mark.parametrize(
    ("of_resource", "of_issuer", "iss", "why"),
    [
        ({}, {"token_endpoint": "http://as.example/token"}, None, "does not use https"),
        ({}, {"registration_endpoint": "http://as.example/registration"}, None, "does not use https"),
        ({}, {"authorization_endpoint": "http://as.example/authorization"}, None, "its login page does not use https"),
        ({}, {"issuer": "https://other.example"}, None, "issuer"),
        ({}, {}, "https://other.example", "iss"),
        ({}, {"authorization_response_iss_parameter_supported": True}, None, "iss"),
        ({"resource": "https://other.example/mcp"}, {}, None, "does not match"),
        ({"authorization_servers": ["http://as.example"]}, {}, None, "does not use https"),
    ],
)
async def test_what_a_server_says_of_its_logins_is_checked(
    tmp_path: Path, of_resource: dict[str, Any], of_issuer: dict[str, Any], iss: str | None, why: str
) -> None:
    asked: list[str] = []
    browsers: list[asyncio.Task[None]] = []

    def show(page: str) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(page).query).items()}
        back = {"code": "stolen", "state": query["state"], **({"iss": iss} if iss else {})}
        browsers.append(asyncio.create_task(as_a_browser(f"{query['redirect_uri']}?{urlencode(back)}")))

    store = sqlite_store(tmp_path / "logins.db")
    async with served(await metadata_server(of_resource, of_issuer, asked)) as address:
        with pytest.raises(StandfastError, match=why):
            await login(f"{address}/mcp", store=store, show=show, consent=lambda words: True)
    await asyncio.gather(*browsers)
    assert "/token" not in asked
    await store.close()


async def test_a_code_does_not_go_to_a_server_that_names_an_issuer_without_metadata(tmp_path: Path) -> None:
    """Without metadata the SDK uses the MCP server's own endpoints, whatever issuer that server names."""
    asked: list[tuple[str, str]] = []
    shown: list[str] = []

    async def answer(request: Any) -> Any:
        asked.append((request.url.hostname, request.url.path))
        if "oauth-protected-resource" in request.url.path:
            of_resource = {"resource": f"http://{request.url.netloc}/mcp", "authorization_servers": [issuer]}
            return JSONResponse(of_resource)
        return JSONResponse({}, 404 if "well-known" in request.url.path else 401)

    store = sqlite_store(tmp_path / "logins.db")
    async with served(Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])) as address:
        issuer = address.replace("127.0.0.1", "localhost")
        oauth = OAuth(issuer=issuer, client_id="c", client_secret="secret")
        with pytest.raises(StandfastError, match=f"and not {issuer}"):
            async with asyncio.timeout(5):
                await login(f"{address}/mcp", store=store, show=shown.append, oauth=oauth)
    assert ("localhost", "/.well-known/oauth-authorization-server") in asked
    assert shown == []
    await store.close()


@pytest.mark.parametrize("url", ["http://example.com/mcp", "http://127.0.0.1.example.com/mcp"])
async def test_nobody_logs_in_without_https(tmp_path: Path, url: str) -> None:
    store = sqlite_store(tmp_path / "logins.db")
    with pytest.raises(StandfastError, match="needs https"):
        await login(url, store=store, show=print)
    with pytest.raises(DefinitionError, match="issuer must be an https address"):
        OAuth(issuer=url)
    await store.close()


async def test_a_login_needs_a_key_and_a_server_that_asks_for_it(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, plain_server: tuple[str, Path]
) -> None:
    with pytest.raises(StandfastError, match="does not require a login: leave out auth="):
        await login(plain_server[0], store=store, show=print)
    monkeypatch.delenv("STANDFAST_MCP_KEY")
    with pytest.raises(InputError, match="set STANDFAST_MCP_KEY to a secret"):
        await login("http://127.0.0.1:9/mcp", store=store, show=print)
