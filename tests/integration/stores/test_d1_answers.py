"""D1: a fault is reported in one sentence with its remedy, and a lost answer is made up for once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import httpx2
import pytest
from support.d1 import ACCOUNT, TOKEN, D1Server
from support.d1_proxies import D1Proxy
from support.stores import SESSION, append, contents

from standfast import InputError, Message, StoreError
from standfast.stores import Append, D1Store, DecisionRecord, PartialAnswer, RunningCall, d1_store
from standfast.stores.d1 import database
from standfast.testing.expectations import say

SECRET = "t0p-secret-token"
RUNNING = RunningCall(owner="me", worker="w", task_token="dG9rZW4=", workflow_id="a/s", run_id="r")


@pytest.fixture
async def proxy(d1: D1Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[D1Proxy]:
    monkeypatch.setattr(database, "REPEATS", (0.0, 0.0, 0.0))
    async with D1Proxy(d1).running() as running:
        yield running


@pytest.fixture
async def store(proxy: D1Proxy) -> AsyncIterator[D1Store]:
    """A store behind the proxy, with a session that has a message."""
    async with proxy.store(lease=1_000) as opened:
        await append(opened, "first")
        proxy.requests.clear()
        yield opened


# --- what is given ---


@pytest.mark.parametrize("name", ["account_id", "database_id"])
@pytest.mark.parametrize("value", ["", "a/b", "a b", "../x", "a?b", "x" * 65, None, 7])
def test_an_id_that_does_not_fit_into_an_address_is_refused_at_once(name: str, value: Any) -> None:
    ids: dict[str, Any] = {"account_id": "a", "database_id": "d", name: value}
    with pytest.raises(InputError, match=f"{name} must be letters, digits and -"):
        d1_store(**ids, api_token=TOKEN)


@pytest.mark.parametrize("token", ["", f"{SECRET}\n", f"Bearer {SECRET}", f"{SECRET}ä", None])
def test_a_token_that_is_none_is_refused_at_once_and_not_shown(token: Any) -> None:
    with pytest.raises(InputError, match="api_token must be an API token of Cloudflare") as refused:
        d1_store("a", "d", token)
    assert SECRET not in str(refused.value)


def test_an_address_of_the_api_is_one_of_http() -> None:
    with pytest.raises(InputError, match="base_url must begin with https://"):
        d1_store("a", "d", TOKEN, base_url="api.cloudflare.com")


async def refusal(store: D1Store) -> str:
    async with store:
        with pytest.raises(StoreError) as refused:
            await append(store, "a")
        with pytest.raises(StoreError):
            await store.hold("s")
        await store.let_go("s")
    text = str(refused.value)
    assert "\n" not in text
    assert SECRET not in text
    return text


async def test_a_wrong_token_is_said_to_be_refused(d1: D1Server) -> None:
    text = await refusal(d1_store(ACCOUNT, "db", SECRET, base_url=d1.url))
    assert text.startswith(f"The store d1://{ACCOUNT}/db refuses the API token: it is wrong, expired or revoked")


async def test_an_account_that_the_token_may_not_use_is_said_to_be_so(d1: D1Server) -> None:
    assert "may not use this account's databases" in await refusal(d1_store("other", "db", TOKEN, base_url=d1.url))


async def test_a_database_that_is_not_there_is_said_to_be_missing(d1: D1Server) -> None:
    text = await refusal(d1_store(ACCOUNT, "nothing", TOKEN, base_url=d1.url))
    assert "the account has no such database; check the account's id and the database's id" in text


async def test_a_server_that_is_not_there_is_said_to_be_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "REPEATS", (0.0,))
    text = await refusal(d1_store(ACCOUNT, "db", TOKEN, base_url="http://127.0.0.1:9/client/v4"))
    assert "does not answer; the operation can be repeated once it is back" in text


# --- answers ---


def error(status: int, code: int, message: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    body = f'{{"success": false, "errors": [{{"code": {code}, "message": "{message}"}}], "result": null}}'
    return status, headers, body.encode()


HTML = (200, {"content-type": "text/html"}, b"<html>Sign in to the hotel's network</html>")
ANSWERS = {
    "expired token": (error(401, 10000, "Authentication error"), "refuses the API token"),
    "no permission": (error(403, 7403, "The given account is not valid"), "refuses the API token"),
    "a statement": (error(400, 7500, "near oops: syntax error: SQLITE_ERROR"), r"refused \(400: near oops"),
    "full": (error(400, 7500, "Exceeded maximum DB size"), "is full: D1 keeps 10 GB"),
    "too large": (error(400, 7500, "string or blob too big: SQLITE_TOOBIG"), "refuses a value that is too large"),
    "used up": (error(400, 7500, "You have exceeded D1's daily row write limit"), "wait until 00:00 UTC"),
    "a table": (error(400, 7500, "no such table: workers"), "lacks a table .* time-travel"),
    "damaged": (error(400, 7500, "database disk image is malformed: SQLITE_CORRUPT"), "is damaged; restore it"),
    "too often": (error(429, 971, "Please wait"), "is asked too often: Cloudflare limits"),
    "overloaded": (error(400, 7500, "D1 DB is overloaded. Requests queued for too long."), "does not answer"),
    "gateway": ((502, {}, b"Bad gateway"), "does not answer.*502: .*'Bad gateway', not JSON"),
    "a hotel": (HTML, "is there another server or a proxy at the API's address"),
    "other JSON": ((200, {}, b"[1]"), "not JSON|neither"),
    "no result": ((200, {}, b'{"success": true}'), "JSON that says neither a result nor an error"),
    "too few results": ((200, {}, b'{"success": true, "result": []}'), "have 0 results"),
    "odd results": ((200, {}, b'{"success": true, "result": [7]}'), "no `results`"),
    "moved": ((302, {"location": "http://127.0.0.1:9/"}, b""), r"302: "),
}


@pytest.mark.parametrize("answer", ANSWERS)
async def test_an_answer_that_does_not_pass_is_explained(proxy: D1Proxy, store: D1Store, answer: str) -> None:
    fault, text = ANSWERS[answer]
    proxy.faults = [fault] * 4
    with pytest.raises(StoreError, match=text) as refused:
        await append(store, "a")
    assert f"The store {store._name}" in str(refused.value)
    proxy.faults = []
    assert await contents(store) == ["first"]
    assert await append(store, "b") == 2


@pytest.mark.parametrize("answer", ["expired token", "a statement", "too large", "used up", "damaged"])
async def test_what_is_refused_for_good_is_asked_once(proxy: D1Proxy, store: D1Store, answer: str) -> None:
    proxy.faults = [ANSWERS[answer][0]]
    with pytest.raises(StoreError):
        await append(store, "a")
    assert len(proxy.requests) == 1


@pytest.mark.parametrize("answer", ["too often", "overloaded", "gateway", "a hotel", "too few results"])
async def test_what_passes_with_time_is_asked_again(proxy: D1Proxy, store: D1Store, answer: str) -> None:
    proxy.faults = [ANSWERS[answer][0]] * 2
    assert await append(store, "a") == 2
    assert len(proxy.requests) == 3


async def test_the_time_that_cloudflare_asks_for_is_waited_for(
    proxy: D1Proxy, store: D1Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited, usual = list[float](), asyncio.sleep

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        await usual(0)

    monkeypatch.setattr(database.asyncio, "sleep", sleep)
    proxy.faults = [error(429, 971, "Please wait", **{"retry-after": wait}) for wait in ("7", "86400", "soon")]
    assert await append(store, "a") == 2
    asked = [seconds for seconds in waited if seconds]
    assert [7 <= asked[0] < 9, 30 <= asked[1] < 40, len(asked)] == [True, True, 2]


# --- requests and answers that are lost ---


async def decide(store: D1Store) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    await store.record_decision(DecisionRecord(journal_key="run", gate="g", at=at, decision="approve"))


async def claim(store: D1Store) -> str | None:
    return (await store.claim("run", "1", owner="me", arguments_hash="h", running=RUNNING)).owner


async def finish(store: D1Store) -> bool:
    await store.claim("run", "1", owner="me", arguments_hash="h")
    return await store.finish("run", "1", owner="me", state="done", result="r")


def appends() -> list[Append]:
    return [Append(SESSION, say("a"), "k1", 1), Append(SESSION, say("b"), "k2", 2)]


WRITES: dict[str, Callable[[D1Store], Any]] = {
    "append": lambda store: append(store, "a"),
    "append with a key": lambda store: store.append_messages_atomic(
        "s", say("a"), SESSION, write_key="k", expected_seq=1, expected_version=1
    ),
    "append without messages": lambda store: store.append_messages_atomic(
        "s", [], SESSION, expected_seq=1, expected_version=1
    ),
    "save": lambda store: store.save_session(SESSION.model_copy(update={"state": "{}"})),
    "append more": lambda store: store.append_messages("s", say("a"), SESSION),
    "new session": lambda store: store.append_messages_atomic(
        "new", say("a"), SESSION.model_copy(update={"id": "new"}), expected_seq=0, expected_version=0
    ),
    "reply": lambda store: store.append_reply(appends(), journal_key="r", turn=1, reply="said"),
    "save reply": lambda store: store.save_reply("r", 1, "said"),
    "prune": lambda store: store.prune_messages("s", 1),
    "claim": claim,
    "finish": finish,
    "settle": lambda store: store.settle("run", "1"),
    "begin call": lambda store: store.begin_call(RUNNING),
    "decision": decide,
    "worker": lambda store: store.add_worker("w"),
    "words": lambda store: store.add_partial("r", PartialAnswer(turn=1, attempt="a", offset=0, text="so")),
}
_TABLES = (
    "agent_sessions", "agent_messages", "tool_ledger", "running_calls", "model_replies", "gate_decisions", "workers",
    "partial_answers",
)  # fmt: skip
_AT_RANDOM = {"created_at", "updated_at", "last_write", "write_key", "claimed_at", "begun_at", "kept_at"}


def rows(server: D1Server, store: D1Store) -> dict[str, Any]:
    """Return all rows of a store, without what differs each time."""
    name = store._name.rpartition("/")[2]
    found = {table: server.sql(name, f"SELECT * FROM {table}") for table in _TABLES}
    return {
        table: [{key: value for key, value in row.items() if key not in _AT_RANDOM} for row in its]
        for table, its in found.items()
    }


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("write", WRITES)
async def test_a_write_whose_request_or_answer_is_lost_is_made_once(
    d1: D1Server, proxy: D1Proxy, store: D1Store, write: str
) -> None:
    async with d1.store() as undisturbed:
        await append(undisturbed, "first")
        expected = await WRITES[write](undisturbed)
        proxy.faults = ["lose", "drop"]
        assert await WRITES[write](store) == expected
        assert proxy.faults == []
        assert rows(d1, store) == rows(d1, undisturbed)


async def test_a_session_that_is_made_again_while_the_old_one_is_pruned_keeps_its_messages(
    d1: D1Server, proxy: D1Proxy, store: D1Store
) -> None:
    await store.append_messages("s", say("b", "c", "d", "e", "f"), SESSION)
    proxy.faults = ["", "stop"]
    before = len(proxy.requests)
    pruning = asyncio.create_task(store.prune_messages("s", 1))
    while len(proxy.requests) < before + 2:
        await asyncio.sleep(0.001)
    async with d1.store(store._name.rpartition("/")[2]) as other:
        await other.delete_session("s")
        await other.append_messages_atomic("s", say("new", "session"), SESSION)
        proxy.go.set()
        await pruning
        assert await contents(other) == ["new", "session"]


async def test_a_deletion_whose_answer_is_lost_is_not_made_again(d1: D1Server, proxy: D1Proxy, store: D1Store) -> None:
    proxy.faults = ["", "", "lose", "stop"]  # what it reads, then what it deletes, and that once more
    before = len(proxy.requests)
    deleting = asyncio.create_task(store.delete_session("s"))
    while len(proxy.requests) < before + 4:
        await asyncio.sleep(0.001)
    async with d1.store(store._name.rpartition("/")[2]) as other:
        assert await other.load_session("s") is None
        await other.append_messages_atomic("s", say("new", "session"), SESSION)
        proxy.go.set()
        await deleting
        assert await contents(other) == ["new", "session"]
    assert proxy.faults == []


async def test_an_answer_that_does_not_come_in_time_is_lost(
    d1: D1Server, store: D1Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stay_away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(65_536):
                pass
        writer.close()

    monkeypatch.setattr(database, "ANSWER", 0.05)
    async with await asyncio.start_server(stay_away, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        text = await refusal(d1_store(ACCOUNT, "db", TOKEN, base_url=f"http://127.0.0.1:{port}"))
        assert "does not answer" in text
        assert "ReadTimeout" in text


# --- values ---


async def test_a_row_that_is_too_large_for_d1_is_refused_before_it_is_sent(proxy: D1Proxy, store: D1Store) -> None:
    for text in ("x" * 2_000_001, "ä" * 1_000_001):
        with pytest.raises(InputError, match=r"cannot keep 2,00\d,\d{3} bytes in one row.* at most 2,000,000"):
            await append(store, text)
    assert proxy.requests == []
    assert await append(store, "x" * 1_990_000) == 2
    for text in ('"' * 1_200_000, "\n" * 1_500_000):  # which are twice as long in JSON
        await store.append_messages_atomic("s", [*say("a", "b"), *say(text, text)], SESSION)
    assert [len(text) for text in await contents(store)][4:6] == [1_200_000, 1_200_000]


async def test_odd_texts_are_kept(d1_store: D1Store) -> None:
    texts = ["\x10", "\x100", "'; DROP TABLE agent_sessions; --", ":id ?1 @x $y", "[1]", "null", "🙂"]
    await d1_store.append_messages_atomic("s", say(*texts), SESSION)
    assert await contents(d1_store) == texts
    for turn, text in enumerate((*texts, "a\0b", "\0\x10\0", "\x10\x10\x100", "")):
        await d1_store.save_session(SESSION.model_copy(update={"state": text}))
        session = await d1_store.load_session("s")
        assert session is not None
        assert session.state == text
        assert await d1_store.save_reply("r", turn, text) == text
        assert await d1_store.load_reply("r", turn) == text


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
async def test_a_text_that_utf8_cannot_write_is_refused(d1_store: D1Store, text: str) -> None:
    with pytest.raises(StoreError, match="refused a text that UTF-8 cannot write"):
        await d1_store.save_session(SESSION.model_copy(update={"state": text}))
    assert await d1_store.load_session("s") is None


async def test_a_value_that_cannot_be_stored_is_an_error_of_standfast(d1_store: D1Store) -> None:
    broken = Message.model_construct(role="user", content=object())
    with pytest.raises(InputError, match="cannot keep a value"):
        await d1_store.append_messages_atomic("s", [broken], SESSION)


# --- other clients ---


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_a_client_of_either_library_may_be_given(d1: D1Server, library: Any) -> None:
    async with library.AsyncClient() as client:
        store = d1.store(client=client)
        assert await append(store, "a") == 1
        await store.close()
        async with D1Proxy(d1).running() as proxy, proxy.store(client=client) as lossy:
            proxy.faults = ["lose", "drop"]
            assert await append(lossy, "b") == 1
        assert not client.is_closed


class Binding:
    """A database as the binding of a Worker has it: results with attributes, and errors of its own."""

    def __init__(self, server: D1Server, name: str) -> None:
        self._server, self._name, self.loops = server, name, 0

    def prepare(self, statement: str) -> "Binding.Statement":
        return self.Statement(statement)

    async def batch(self, statements: list[Any]) -> list[Any]:
        url = f"{self._server.url}/accounts/{ACCOUNT}/d1/database/{self._name}/query"
        asked = {"batch": [{"sql": one.sql, "params": one.values} for one in statements]}
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            answer = (await client.post(url, json=asked)).json()
        if not answer["success"]:
            raise RuntimeError(f"D1_ERROR: {answer['errors'][0]['message']}")
        return [type("D1Result", (), one) for one in answer["result"]]

    class Statement:
        def __init__(self, sql: str) -> None:
            self.sql, self.values = sql, list[Any]()

        def bind(self, *values: Any) -> "Binding.Statement":
            self.values = list(values)
            return self


async def test_a_binding_serves_as_a_database(d1: D1Server) -> None:
    async with D1Store(lambda: Binding(d1, d1.new_database()), name="env.DB") as store:
        assert await store.hold("s")
        assert await append(store, "a") == 1
        assert await store.append_messages_atomic("s", say("b"), SESSION, write_key="k", expected_seq=1) == 2
        assert await store.append_messages_atomic("s", say("b"), SESSION, write_key="k", expected_seq=1) == 2
        assert await contents(store) == ["a", "b"]
        assert repr(store) == "d1_store('env.DB')"
