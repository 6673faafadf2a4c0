"""Hostile requests to every door: odd ids, bodies and headers are refused in one sentence, and break nothing."""

import asyncio
import logging
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from support.pages import BOB, PEOPLE, TOKENS, browser, served
from support.temporal_runs import Temporal, clerk, pending, result, until
from support.transcripts import asks_for, call

from standfast import Agent
from standfast.testing import ScriptedModel
from standfast.web import Access, Person, create_app
from standfast.web.api.conversations import interrupt_id
from standfast.web.identity.visitors import AT_ONCE

OLGA = {"Authorization": f"Bearer {TOKENS['olga']}"}
BOUNDED = Person(name="amy", role="operator", token="amy-token-that-is-long-enough", tenants=["acme"], only_own=True)
AMY = {"Authorization": f"Bearer {BOUNDED.token}"}
ACCESS = Access(people=[*PEOPLE, BOUNDED])
talker = Agent("talker")
IDS = [
    "clerk/%2E%2E/%2E%2E/etc", "%2E%2E", "%2F", "%252F", "clerk%00x", "clerk/%0d%0aX-Evil:1", "%ff", "a" * 10_000,
    "%F0%9F%92%A9",
    "'; --", "clerk/@acme/' OR 'a'='a", "clerk/@acme/" + "x" * 10_000, "clerk/@acme/%00", "%ED%A0%80",
]  # fmt: skip
BODIES = {
    "deep": "[" * 100_000,
    "deep object": '{"text":' * 50_000,
    "deep and whole": '{"text":' + "[" * 900 + "]" * 900 + "}",
    "NUL": '{"text": "a\\u0000b"}',
    "surrogate": '{"text": "\\ud800"}',
    "twice": '{"text": "a", "text": "b"}',
    "number": '{"text": 1' + "0" * 5_000 + "}",
    "huge exponent": '{"text": 1e999999}',
    "NaN": '{"text": NaN}',
    "BOM": "\ufeff{}",
    "null": "null",
    "text": '"x"',
    "half an approval": '{"id": "s", "messages": [{"role": "assistant", "parts": [{"state": "approval-responded"}]}]}',
}
DOORS = ["/api/v1/runs", "/api/v1/runs/clerk%2Fx/message", "/agents/talker/ag-ui", "/agents/talker/ai-sdk",
         "/v1/chat/completions", "/v1/responses"]  # fmt: skip


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("who", [OLGA, AMY], ids=["olga", "amy"])
async def test_an_id_of_any_kind_is_answered_in_a_sentence(
    temporal: Temporal, who: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(temporal.client, access=ACCESS, store=temporal.store, agents=[talker])
    async with served(app) as address, httpx.AsyncClient(headers=who) as client:
        for run in IDS:
            for path in (f"/runs/{run}", f"/arguments/{run}", f"/api/v1/runs/{run}", f"/api/v1/runs/{run}/events"):
                found = await client.get(address + path)
                assert 400 <= found.status_code < 500, (path[:60], found.status_code, found.text[:300])
                assert "x-evil" not in found.headers
            for path in (f"/runs/{run}/cancel", f"/again/{run}", f"/api/v1/runs/{run}/cancel"):
                found = await client.post(address + path, data={"key": "k", "step": "s"} if "api" not in path else None)
                assert 400 <= found.status_code < 500, (path[:60], found.status_code, found.text[:300])
            changes = await client.post(f"{address}/batch", data={"act": "cancel", f"run:{run}": "on"})
            assert changes.status_code == 200
    assert [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_of_any_kind_is_refused_at_every_door(
    temporal: Temporal, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with browser(temporal, ACCESS, agents=[talker], task_queue=temporal.name) as client:
        for path in DOORS:
            for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded", ""):
                headers = {**OLGA, "Content-Type": kind}
                answer = await client.post(path, content=BODIES[name].encode(errors="surrogatepass"), headers=headers)
                assert answer.status_code in (400, 404, 415, 422), (path, kind, answer.status_code, answer.text[:300])
                assert answer.json()["error"].keys() == {"code", "message", "do"}
    assert [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR] == []


async def test_a_form_that_says_it_is_json_or_text_changes_nothing(temporal: Temporal) -> None:
    async with browser(temporal, Access(people=PEOPLE)) as client:
        await client.post("/login", data={"csrf": await _csrf(client), "token": TOKENS["olga"]})
        for kind in ("text/plain", "application/json", "application/x-www-form-urlencoded", "multipart/form-data"):
            for path in ("/runs/clerk/x/cancel", "/batch", "/logout", "/api/v1/runs", "/v1/responses"):
                sent = await client.post(path, content=b'{"act": "cancel"}', headers={"Content-Type": kind})
                assert sent.status_code in (400, 403), (path, kind, sent.status_code)
        assert "olga" in (await client.get("/runs")).text


async def _csrf(client: httpx.AsyncClient) -> str:
    return (await client.get("/login")).text.split('name="csrf" value="')[1].split('"')[0]


async def test_another_host_or_origin_is_answered_by_nothing(temporal: Temporal) -> None:
    async with browser(temporal, Access(people=PEOPLE)) as client:
        for host in ("evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "", "[::1"):
            for path in ("/login", "/api/v1/me"):
                assert (await client.get(path, headers={**OLGA, "Host": host})).status_code == 400, host
        for origin in ("null", "https://evil.example", "http://127.0.0.1.evil.example", "http://127.0.0.1:81"):
            sent = {"Origin": origin}
            assert (await client.post("/login", data={"token": TOKENS["olga"]}, headers=sent)).status_code == 403
            answer = await client.get("/api/v1/me", headers={**OLGA, **sent})
            assert "access-control-allow-origin" not in answer.headers


async def test_a_position_in_the_events_of_another_run_is_refused(temporal: Temporal) -> None:
    options: dict[str, Any] = {"agents": [talker], "task_queue": temporal.name}
    async with temporal.worker(talker, llm=ScriptedModel(["hi"] * 2)), browser(temporal, ACCESS, **options) as client:
        one, two = [await temporal.start(talker, session=name) for name in ("one", "two")]
        ids = []
        for run in (one, two):
            await result(run)
            found = await client.get(f"/api/v1/runs/{quote(run.id, safe='')}/events", headers=OLGA)
            ids.append(found.json()["events"][0]["id"])
        path = f"/api/v1/runs/{quote(one.id, safe='')}/events"
        for last in (ids[1], "x/1/2", "/" * 500, "-1", ids[0].partition("/")[0] + "/99999999999999999999"):
            told = await client.get(path, headers={**OLGA, "Last-Event-ID": last})
            assert 400 <= told.status_code < 500 or told.json()["events"] == [], (last, told.text[:200])
            assert two.id not in told.text


@pytest.mark.parametrize("door", ["ag-ui", "ai-sdk"])
async def test_an_answer_to_a_run_tells_nothing_of_an_earlier_one_of_somebody_else(
    temporal: Temporal, door: str
) -> None:
    amy, ben = (Person(name=name, role="operator", token=f"{name}-token-that-is-long-enough", tenants=["acme"],
                       only_own=True) for name in ("amy", "ben"))  # fmt: skip
    session, given = temporal.session(), {"agents": [clerk], "task_queue": temporal.name}

    def answer(messages: Any, tools: Any) -> Any:
        return asks_for(call("ask", "c1", question="Who?")) if messages[-1].content == "ask" else "a secret"

    async def start(client: httpx.AsyncClient, person: Person, said: str) -> Any:
        client.headers["Authorization"] = f"Bearer {person.token}"
        await client.post("/api/v1/runs", json={"name": "clerk", "message": said, "session_id": session})
        return temporal.client.get_workflow_handle(f"clerk/@acme/{session}", result_type=dict)

    async with (
        temporal.worker(clerk, llm=ScriptedModel(answer)),
        browser(temporal, Access(people=[amy, ben]), **given) as client,
    ):
        run = await start(client, amy, "hi")
        await result(run)
        (first, *_) = await temporal.people.events(run.id)
        last = (await run.describe()).run_id
        await start(client, ben, "ask")
        assert (await run.describe()).run_id == last  # the session is still hers
        await temporal.store.delete_session(f"@acme/{session}")
        (item,) = await pending(await start(client, ben, "ask"))
        for after, status in ((str(first.id), 404), ("junk", 422)):
            interrupt = interrupt_id(run.id, item, after)
            answered = {"interruptId": interrupt, "status": "resolved", "payload": "Ada"}
            approval = {"state": "approval-responded", "approval": {"id": interrupt, "approved": True}}
            body = {
                "ag-ui": {"threadId": session, "runId": "r", "messages": [], "resume": [answered]},
                "ai-sdk": {"id": session, "messages": [{"role": "assistant", "parts": [approval]}]},
            }[door]
            told = await client.post(f"/agents/clerk/{door}", json=body)
            assert told.status_code == status
            assert "secret" not in told.text
        assert await pending(run) == [item]


async def test_a_key_of_somebody_else_or_for_something_else_takes_nothing_from_anybody(temporal: Temporal) -> None:
    options: dict[str, Any] = {"agents": [talker], "task_queue": temporal.name}
    access = Access(people=[*PEOPLE, BOB])
    bob, key = {"Authorization": f"Bearer {BOB.token}"}, {"Idempotency-Key": temporal.session("k")}
    async with browser(temporal, access, **options) as client:
        starts = [
            (await client.post("/api/v1/runs", json={"name": "talker", "message": said}, headers={**who, **key})).json()
            for who, said in ((OLGA, "a"), (OLGA, "a"), (OLGA, "b"), (bob, "a"))
        ]
        runs = [one["workflow_id"] for one in starts]
        assert runs[0] == runs[1]
        assert len(set(runs)) == 3
        form = {"key": "f" * 32, "message": "a"}
        mine = await client.post("/start/talker", data=form, headers=OLGA)
        theirs = await client.post("/start/talker", data=form, headers=bob)
        assert (mine.status_code, theirs.status_code) == (303, 409)
    await temporal.end_all()


# --- streams that are left open ---


async def test_a_person_who_leaves_streams_open_by_the_hundred_keeps_nobody_out(temporal: Temporal) -> None:
    app = create_app(temporal.client, access=ACCESS, store=temporal.store, agents=[talker], task_queue=temporal.name)
    run = await temporal.start(talker)  # without a worker
    path = f"/api/v1/runs/{quote(run.id, safe='')}/events"
    limits = httpx.Limits(max_connections=None)
    async with served(app) as address, httpx.AsyncClient(base_url=address, limits=limits, timeout=60) as client:
        statuses: list[int] = []
        done = asyncio.Event()

        async def listens(path: str) -> None:
            headers = {**OLGA, "Accept": "text/event-stream"}
            async with client.stream("GET", path, headers=headers) as answer:
                statuses.append(answer.status_code)
                await done.wait()

        many: list[asyncio.Task[None]] = []
        for kind, are_open, asked in ((path, 50, 60), ("/changes?of=/", AT_ONCE, 120)):  # for each kind, and in total
            many += [asyncio.create_task(listens(kind)) for _ in range(60)]
            while len(statuses) < asked:
                await asyncio.sleep(0.01)
            assert statuses.count(200) == are_open
            assert statuses.count(429) == asked - are_open
        ada = {"Authorization": f"Bearer {TOKENS['ada']}"}
        assert (await client.get("/api/v1/me", headers=ada)).status_code == 200
        done.set()
        await asyncio.gather(*many)
        for one in (path, "/changes?of=/"):
            await until(lambda one=one: is_open(client, one))  # those that have gone do not count any more
        app.state.close()
    await temporal.end_all()


async def is_open(client: httpx.AsyncClient, path: str) -> bool:
    async with client.stream("GET", path, headers={**OLGA, "Accept": "text/event-stream"}) as answer:
        return answer.status_code == 200
