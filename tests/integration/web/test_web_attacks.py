"""The page under attack: slow clients, many clients, broken requests, guessed tokens."""

import asyncio
import base64
import contextlib
import logging
import os
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import Response
from support.chats import clerk
from support.commands import done, refused
from support.pages import CHARGES, HOST, PEOPLE, TOKENS, browser, csrf_of, served
from support.temporal_runs import Temporal, pending, until

from standfast import DefinitionError, StandfastError, sqlite_store
from standfast.temporal import StandfastClient
from standfast.testing import ScriptedModel
from standfast.web import Access, Person, create_app
from standfast.web.api.errors import refusal
from standfast.web.identity import visitors
from standfast.web.identity.people import COOKIE, token_digest
from standfast.web.identity.visitors import Attempts
from standfast.web.serving import servers
from standfast.web.serving.middleware import HEADERS

HEAD = b"GET /login HTTP/1.1\r\nHost: 127.0.0.1\r\n"
FORM = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
SECRET = "of the page, over its restarts"


@contextlib.asynccontextmanager
async def page(temporal: Temporal) -> AsyncIterator[int]:
    async with served(create_app(temporal.client, access=Access(people=PEOPLE))) as address:
        yield int(address.rpartition(":")[2])


async def answer_to(port: int, sent: bytes) -> bytes:
    """Send something, and return all that comes until the other side closes."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(sent)
    try:
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"X: a", FORM + b"Content-Length: 900\r\n\r\ncsrf="], ids=repr)
async def test_a_client_that_never_ends_a_request_is_not_waited_for(
    temporal: Temporal, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "READ_WITHIN", 0.3)
    async with page(temporal) as port:
        assert b"200 OK" not in await answer_to(port, sent)


async def test_a_slow_client_that_has_been_answered_has_the_same_time_for_its_next_request(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "READ_WITHIN", 0.3)
    async with page(temporal) as port:
        assert (await answer_to(port, HEAD + b"\r\n" + HEAD)).count(b"200 OK") == 1


async def test_many_who_send_nothing_keep_nobody_out(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MOST", 5)
    async with page(temporal) as port:
        bodies = FORM + b"Content-Length: 900\r\n\r\ncsrf="
        for sent in (HEAD, bodies):
            many = [asyncio.create_task(answer_to(port, sent)) for _ in range(20)]
            async with httpx.AsyncClient() as client:
                for _ in range(3):
                    assert (await client.get(f"http://{HOST}:{port}/login")).status_code == 200
            for one in many:
                one.cancel()
            await asyncio.wait(many)


async def test_a_client_that_never_reads_an_answer_is_not_waited_for(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "TAKEN_WITHIN", 0.3)
    server = servers.server_of(create_app(temporal.client, access=Access(people=PEOPLE)))

    async def connections(count: int) -> bool:
        return len(server.server_state.connections) == count

    with socket.create_server((HOST, 0)) as listener, socket.create_connection(listener.getsockname()) as mute:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: connections(1))
        mute.sendall(b"GET /static/page.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 1_200)  # 15 MB of answers
        await until(lambda: connections(0))
        server.should_exit = True
        await serving


BROKEN = {
    "body cut": (FORM + b"Content-Length: 900\r\n\r\ncsrf=", b""),
    "chunks cut": (FORM + b"Transfer-Encoding: chunked\r\n\r\n10\r\nabc", b""),
    "chunks broken": (FORM + b"Transfer-Encoding: chunked\r\n\r\nZZZ\r\nabc", b"400"),
    "origin": (FORM + b"Origin: http://[::1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", b"403"),
    "to": (HEAD.replace(b"/login", b"/login?to=http://[::1") + b"Connection: close\r\n\r\n", b"200"),
    "host": (b"GET / HTTP/1.1\r\nHost: [::\xff\r\nConnection: close\r\n\r\n", b"400"),
    "not HTTP": (b"\x16\x03\x01\x02\r\n\r\n", b"400"),
    "utf-8": (FORM + b"Connection: close\r\nContent-Length: 12\r\n\r\ncsrf=\xff&to=%f", b"403"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_request_leaves_no_traceback_in_the_log(
    temporal: Temporal, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent, status = BROKEN[name]
    async with page(temporal) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(sent)
        await writer.drain()
        if not status:  # it goes before all is there
            writer.close()
            await writer.wait_closed()
        else:
            assert status in (await asyncio.wait_for(reader.read(), 30)).split(b"\r\n")[0]
            writer.close()
        assert b"200 OK" in await answer_to(port, HEAD + b"Connection: close\r\n\r\n")
    assert [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR] == []


@pytest.mark.slow
async def test_a_page_that_says_it_has_heard_of_impossible_words_is_told_all(
    temporal: Temporal, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(temporal.client, access=Access(people=PEOPLE), store=temporal.store)
    olga = {"Authorization": f"Bearer {TOKENS['olga']}"}
    async with served(app) as address, httpx.AsyncClient(base_url=address, headers=olga) as client:
        for has in ("99999999999999999999/x/9999999", "1/x/99999999999999999999", "-1//-1", "1/\udcff/1"):
            asked = {"of": "/", "words": "nobody's", "has": has.encode(errors="replace").decode()}
            async with client.stream("GET", "/changes", params=asked) as told:
                assert await anext(told.aiter_bytes())  # it is notified of a change, and its words were read before
    assert [record for record in caplog.records if record.exc_info] == []


def test_a_fault_that_comes_again_and_again_is_logged_once_with_how_often_it_came() -> None:
    sparing, logged = servers.Sparing(), []
    for second in range(120):
        record = logging.makeLogRecord({"name": "x", "msg": "Invalid %s", "args": ("it",), "created": 1e9 + second})
        if sparing.filter(record):
            logged.append(record.getMessage())
    assert logged == ["Invalid it", "Invalid it (59 more of these since the last)"]


async def test_a_person_who_has_not_signed_in_sends_no_large_forms(temporal: Temporal) -> None:
    async with browser(temporal, Access(people=PEOPLE)) as client:
        large = {"text": "x" * 100_000}
        assert (await client.post("/login", data=large)).status_code == 413
        olga = {"Authorization": f"Bearer {TOKENS['olga']}"}
        assert (await client.post("/runs/clerk/nobody/message", data=large, headers=olga)).status_code != 413


# --- guessed tokens ---


async def test_a_person_who_guesses_tokens_has_to_wait_and_is_in_the_log(
    temporal: Temporal, caplog: pytest.LogCaptureFixture
) -> None:
    async with browser(temporal, Access(people=PEOPLE)) as client:
        wrong = {"csrf": await csrf_of(client), "token": "an unknown token"}
        statuses = [(await client.post("/login", data=wrong)).status_code for _ in range(8)]
        assert statuses == [401] * 5 + [429] * 3
        right = {"Authorization": f"Bearer {TOKENS['olga']}"}
        assert (await client.get("/runs", headers=right)).status_code == 200  # someone else is at that address
        assert (await client.get("/login")).status_code == 200
    logged = [record.getMessage() for record in caplog.records if record.name == "standfast.web"]
    assert logged[4:] == [f"A wrong token from {HOST}, the 5 in a row; wrong tokens from there are ignored for 1 s"]
    assert "nobody has" not in caplog.text


async def test_programs_that_guess_wait_like_people(temporal: Temporal) -> None:
    async with browser(temporal, Access(people=PEOPLE)) as client:
        wrong = {"Authorization": "Bearer an unknown token", "Accept": "*/*"}
        assert [(await client.get("/runs", headers=wrong)).status_code for _ in range(7)] == [401] * 5 + [429] * 2


def test_each_address_waits_for_itself_and_ever_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("standfast.web.identity.visitors.time.monotonic", lambda: now)
    attempts, waits = Attempts(), []
    for number in range(13):
        attempts.failed("2001:db8::1", f"guess {number}")
        waits.append(attempts.wait("2001:db8::2", "another guess"))  # of the same network
    assert waits == [0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert (attempts.wait("2001:db8:1::1", "guess 1"), attempts.wait("10.0.0.1", "guess 1")) == (0, 0)
    now += 1_000
    assert (attempts.wait("2001:db8::1", "guess 1"), attempts.failed("2001:db8::1", "guess 1")) == (0, 1)


def test_a_wrong_token_that_is_sent_again_and_again_slows_down_itself_alone() -> None:
    attempts = Attempts()
    assert [attempts.failed("10.0.0.1", "outdated") for _ in range(20)] == list(range(1, 21))
    assert attempts.wait("10.0.0.1", "outdated") > 0
    assert attempts.wait("10.0.0.1", "mistyped") == 0


# --- what the page itself cannot do ---


async def test_a_fault_of_the_page_is_a_page_with_all_headers(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: Any) -> Any:
        raise RuntimeError("a fault of the page, with a secret in it")

    monkeypatch.setattr("standfast.web.page.run_lists._saved", fails)
    headers = {"Authorization": f"Bearer {TOKENS['olga']}"}
    async with (
        served(create_app(temporal.client, access=Access(people=PEOPLE))) as address,
        httpx.AsyncClient(base_url=address, headers=headers) as client,
    ):
        told = await client.get("/runs")
        assert (told.status_code, "see its log" in told.text) == (500, True)
        assert "secret" not in told.text
        for name in HEADERS:
            assert told.headers[name] == HEADERS[name]


async def test_a_cookie_of_nested_json_is_ignored(temporal: Temporal) -> None:
    nested = base64.urlsafe_b64encode(b"[" * 3_000).decode()
    async with browser(temporal, Access(people=PEOPLE)) as client:
        headers = {"Authorization": f"Bearer {TOKENS['olga']}", "Cookie": f"standfast_filters={nested}"}
        assert (await client.get("/runs", headers=headers)).status_code == 200


async def test_by_https_a_cookie_is_of_this_host_alone_and_other_schemes_are_other_sites(temporal: Temporal) -> None:
    access = Access(people=PEOPLE, https=True, secret=SECRET)
    for root in ("", "/ops"):
        app = create_app(temporal.client, access=access, root_path=root)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=f"https://{HOST}") as client:
            form = {"csrf": await csrf_of(client), "token": TOKENS["olga"]}
            foreign = await client.post("/login", data=form, headers={"Origin": f"http://{HOST}"})
            assert foreign.status_code == 403
            signed = await client.post("/login", data=form, headers={"Origin": f"https://{HOST}"})
            cookie = signed.headers["set-cookie"]
            assert cookie.startswith(f"__Secure-{COOKIE}=" if root else f"__Host-{COOKIE}=")
            assert all(one in cookie for one in ("Secure", "HttpOnly", f"Path={root or '/'}"))
            assert token_digest(TOKENS["olga"]).removeprefix("sha256:")[:8] not in cookie
            assert "Permissions-Policy" in signed.headers
            assert (await client.get(f"{root}/runs")).status_code == 200


# --- many requests ---


async def test_a_person_has_as_many_requests_at_a_time_as_leave_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(visitors, "AT_ONCE", 3)
    done, begun = asyncio.Event(), list[str]()

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["state"]["person"].name)
        await done.wait()
        await Response("done")(scope, receive, send)

    app = visitors.InFlight(waits, refusal)

    async def ask(person: Person, path: str) -> int:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "path": path, "headers": [], "method": "POST", "state": {"person": person}}
        await app(scope, None, send)  # type: ignore[arg-type]
        return int(sent[0]["status"])

    vera, ada, _ = PEOPLE
    held = [asyncio.create_task(ask(vera, "/runs")) for _ in range(3)]
    await until(lambda: len(begun) == 3)
    assert [await ask(vera, path) for path in ("/runs", "/api/v1/runs")] == [429, 429]
    other = asyncio.create_task(ask(ada, "/runs"))
    await until(lambda: len(begun) == 4)
    done.set()
    assert await asyncio.gather(*held, other, ask(vera, "/runs")) == [200] * 5


async def test_the_page_says_that_it_is_well_when_all_connections_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MOST", 2)
    done, begun = asyncio.Event(), list[str]()

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])
        if scope["path"] != "/healthz":
            await done.wait()
        await Response("ok")(scope, receive, send)

    async with served(waits) as address, httpx.AsyncClient(base_url=address, timeout=60) as client:  # type: ignore[arg-type]
        held = [asyncio.create_task(client.get("/runs")) for _ in range(2)]
        await until(lambda: len(begun) == 2)
        for path, status in (("/healthz", 200), ("/runs", 503), ("/healthz", 200)):
            async with httpx.AsyncClient(base_url=address) as other:
                assert (await other.get(path)).status_code == status
        done.set()
        assert [(await one).status_code for one in held] == [200, 200]


async def test_nobody_waits_for_a_worker_that_is_known_to_be_gone(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with temporal.worker(agent := clerk(), llm=ScriptedModel([CHARGES])):
        run = await temporal.start(agent)
        await pending(run)
    monkeypatch.setattr("standfast.temporal.client.runs.descriptions._has_died_here", lambda identity: True)
    people = StandfastClient(temporal.client, timeout="1h")
    with pytest.raises(StandfastError, match="no worker polls its task queue"):
        await people.status(run.id)


async def test_behind_a_proxy_each_waits_for_themselves(temporal: Temporal) -> None:
    access = Access(people=PEOPLE, proxies=[HOST])
    async with browser(temporal, access) as client:
        wrong = {"Authorization": "Bearer an unknown token", "X-Forwarded-For": "10.0.0.1, 10.0.0.2"}
        for _ in range(6):
            last = await client.get("/runs", headers=wrong)
        assert last.status_code == 429
        other = {"Authorization": f"Bearer {TOKENS['olga']}", "X-Forwarded-For": "10.0.0.2, 10.0.0.3"}
        assert (await client.get("/runs", headers=other)).status_code == 200


# --- sessions and tokens that are kept ---


async def test_a_person_who_has_signed_out_is_out_after_a_restart_and_in_another_process(
    temporal: Temporal, tmp_path: Path
) -> None:
    access = Access(people=PEOPLE, secret=SECRET)
    async with browser(temporal, access) as one, browser(temporal, Access(people=PEOPLE, secret=SECRET)) as two:
        await one.post("/login", data={"csrf": await csrf_of(one), "token": TOKENS["olga"]})
        two.cookies.set(COOKIE, cookie := one.cookies[COOKIE])
        assert "olga · operator" in (await two.get("/runs")).text
        csrf = re.findall(r'name="csrf" value="(\w+)"', (await one.get("/runs")).text)[0]
        assert (await one.post("/logout", data={"csrf": csrf})).status_code == 303
        assert (await two.get("/runs")).status_code == 303
    async with browser(temporal, Access(people=PEOPLE, secret=SECRET)) as later:
        later.cookies.set(COOKIE, cookie)
        assert (await later.get("/runs")).status_code == 303


async def test_a_store_that_cannot_say_who_has_signed_out_lets_nobody_in(temporal: Temporal, tmp_path: Path) -> None:
    (tmp_path / "no.db").write_text("this is not a database, and longer than the head of one would have to be" * 20)
    async with sqlite_store(tmp_path / "no.db") as store:
        app = create_app(temporal.client, access=Access(people=PEOPLE, secret=SECRET), store=store)
        transport = httpx.ASGITransport(app=app, client=(HOST, 4711))
        async with browser(temporal, Access(people=PEOPLE, secret=SECRET)) as client:
            await client.post("/login", data={"csrf": await csrf_of(client), "token": TOKENS["olga"]})
            cookie = client.cookies[COOKIE]
        async with httpx.AsyncClient(
            transport=transport, base_url=f"http://{HOST}", cookies={COOKIE: cookie}
        ) as client:
            told = await client.get("/runs")
            assert (told.status_code, "is not a SQLite database" in told.text) == (503, True)


async def test_a_file_of_people_has_what_stands_for_their_tokens(temporal: Temporal) -> None:
    kept = Person(name="olga", role="operator", token=token_digest(TOKENS["olga"]))
    async with browser(temporal, Access(people=[kept])) as client:
        right = await client.get("/runs", headers={"Authorization": f"Bearer {TOKENS['olga']}"})
        assert right.status_code == 200
        stolen = await client.get("/runs", headers={"Authorization": f"Bearer {kept.token}"})
        assert stolen.status_code == 401
        await client.post("/login", data={"csrf": await csrf_of(client), "token": TOKENS["olga"]})
        assert "olga · operator" in (await client.get("/runs")).text
    with pytest.raises(DefinitionError, match="64 hexadecimal digits"):
        Person(name="a", token="sha256:no digest of anything")


async def test_a_token_is_made_with_what_stands_for_it() -> None:
    made = (await done(None, "web", "--new-token")).splitlines()
    assert made[-1] == f'token = "{token_digest(made[0])}"'
    assert len(made[0]) >= 32


# --- where it listens ---


async def test_tokens_do_not_cross_a_network_in_the_clear(temporal: Temporal, tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"plain HTTP.*at 0.0.0.0.*Put a proxy that terminates TLS"):
        create_app(temporal.client, access=Access(people=PEOPLE), host="0.0.0.0")
    (tmp_path / "people.toml").write_text('[people.ada]\ntoken = "ada-token-that-is-long-enough"\n')
    words = ("web", "--host", "0.0.0.0", "--port", "0", "--people", str(tmp_path / "people.toml"))
    assert "--https" in await refused(temporal, *words)


async def test_the_header_of_a_proxy_needs_a_named_proxy(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="anyone could send its header"):
        Access(people=PEOPLE, proxy_header="X-Forwarded-User")
    with pytest.raises(DefinitionError, match="must be addresses, or unix:PATH"):
        Access(people=PEOPLE, proxies=["proxy.example.com"])
    (tmp_path / "people.toml").write_text('[people.ada]\ntoken = "ada-token-that-is-long-enough"\n')
    words = ("web", "--people", str(tmp_path / "people.toml"), "--proxy-header", "X-User")
    assert "needs --proxy-from" in await refused(None, *words, code=2)


async def test_a_proxy_at_a_socket_is_believed_and_nobody_at_the_port(temporal: Temporal, tmp_path: Path) -> None:
    path = str(tmp_path / "page.sock")
    access = Access(people=PEOPLE, proxy_header="X-User", proxies=[f"unix:{path}"])
    server = servers.server_of(create_app(temporal.client, access=access, store=temporal.store))
    with socket.socket(socket.AF_UNIX) as at_socket, socket.create_server((HOST, 0)) as at_port:
        at_socket.bind(path)
        serving = asyncio.create_task(server.serve(sockets=[at_port, at_socket]))
        url = f"http://{HOST}:{at_port.getsockname()[1]}/runs"
        said = {"X-User": "vera", "Accept": "text/html"}
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=path)) as client:
            while not os.path.exists(path) or not server.started:
                await asyncio.sleep(0.01)
            assert "vera · viewer" in (await client.get(url, headers=said)).text
        async with httpx.AsyncClient() as client:
            assert (await client.get(url, headers=said)).status_code == 303
        server.should_exit = True
        await serving
