"""The JSON API: what programs read and do, who may use it, and that its document is correct."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from support.pages import BOB, CHARGES, HOST, LOCAL, PEOPLE, TOKENS, browser, charge, served
from support.temporal_runs import Temporal, pending, result

from standfast import Agent, DefinitionError, pipeline, read_event, tool
from standfast.temporal import start_agent
from standfast.testing import ScriptedModel
from standfast.web import Access, Person, create_app

clerk = Agent("clerk", tools=[charge])
talker = Agent("talker")
ACCESS = Access(people=PEOPLE)


def api(run: str = "", act: str = "") -> str:
    return "/api/v1/runs" + (f"/{quote(run, safe='')}" if run else "") + (f"/{act}" if act else "")


@asynccontextmanager
async def program(
    temporal: Temporal, who: str = "olga", access: Access = ACCESS, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    options = {"agents": [clerk, talker], "task_queue": temporal.name} | options
    async with browser(temporal, access, **options) as client:
        client.headers["Accept"] = "application/json"
        client.headers["Authorization"] = f"Bearer {TOKENS.get(who, who)}"
        yield client


async def test_a_program_starts_a_run_decides_at_its_gate_and_reads_its_result(temporal: Temporal) -> None:
    model = ScriptedModel([CHARGES, "done"])
    async with temporal.worker(clerk, llm=model), program(temporal) as olga, program(temporal, "ada") as ada:
        started = await olga.post(api(), json={"name": "clerk", "message": "go", "session_id": temporal.session()})
        assert (started.status_code, started.json()["is_new"]) == (201, True)
        run = started.json()["workflow_id"]
        await pending(temporal.client.get_workflow_handle(run))
        (item,) = (await ada.get(api(run, "pending"))).json()["items"]
        assert item["workflow_id" if "workflow_id" in item else "name"] in (run, "c1")
        asked = {"gate": "c1", "decision": "approve", "digest": item["digest"]}
        assert (await ada.post(api(run, "decide"), json=asked)).json() == {"done": True}
        await result(temporal.client.get_workflow_handle(run, result_type=dict))
        shown = (await olga.get(api(run))).json()
        assert (shown["status"], shown["result"]["response"]) == ("complete", "done")
        messages = (await olga.get(api(run, "transcript"))).json()["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
        part = (await olga.get(api(run, "transcript"), params={"limit": 3})).json()
        rest = (await olga.get(api(run, "transcript"), params={"after": part["next"]})).json()
        assert part["messages"] + rest["messages"] == messages


async def test_a_start_and_an_act_that_are_sent_again_with_their_key_are_done_once(temporal: Temporal) -> None:
    model = ScriptedModel([CHARGES] * 2 + ["done"])
    async with temporal.worker(clerk, llm=model), program(temporal) as olga, program(temporal, "ada") as ada:
        again = {"Idempotency-Key": temporal.session("once")}
        body = {"name": "clerk", "message": "go"}
        first, second = [(await olga.post(api(), json=body, headers=again)).json() for _ in range(2)]
        assert (first["workflow_id"], first["is_new"]) == (second["workflow_id"], True)
        other = (await olga.post(api(), json=body)).json()["workflow_id"]
        assert other != first["workflow_id"]
        run = first["workflow_id"]
        (item,) = await pending(temporal.client.get_workflow_handle(run))
        asked = {"name": "c1", "decision": "approve", "digest": item["digest"]}
        for _ in range(2):
            # A busy worker may not say in time that it counts: it is sent again, as the answer says.
            while (told := await ada.post(api(run, "decide"), json=asked, headers=again)).status_code == 504:
                assert "same Idempotency-Key" in told.json()["error"]["do"]
            assert told.json() == {"done": True}
        await olga.post(api(other, "cancel"), json={})


async def test_events_are_a_list_and_a_stream_that_continues_after_the_last_event_heard(temporal: Temporal) -> None:
    async with temporal.worker(talker, llm=ScriptedModel(["Hello"])), program(temporal) as olga:
        run = await temporal.start(talker)
        streamed = (await olga.get(api(run.id, "events"), headers={"Accept": "text/event-stream"})).text
        parts = [dict(line.split(": ", 1) for line in part.split("\n")) for part in streamed.strip().split("\n\n")]
        listed = (await olga.get(api(run.id, "events"))).json()["events"]
        assert [json.loads(part["data"]) for part in parts] == listed
        assert [part["id"] for part in parts] == [event["id"] for event in listed]
        assert [read_event(event).type for event in listed][-1] == "run-ended"
        after = {"Accept": "text/event-stream", "Last-Event-ID": parts[1]["id"]}
        rest = (await olga.get(api(run.id, "events"), headers=after)).text
        assert rest.startswith(f"id: {parts[2]['id']}\n")
        assert (await olga.get(api(run.id, "events"), params={"after": "x"})).status_code == 409


@pytest.mark.parametrize("name", ["a/b/events", "ü x?y#z", "a%2Fb", "a/../b", "x/decide", "'; --", "a+b&c=d"])
async def test_a_run_of_any_id_is_found(temporal: Temporal, name: str) -> None:
    async with temporal.worker(talker, llm=ScriptedModel(["Hello"] * 2)), program(temporal) as olga:
        run = await temporal.start(talker, id=f"{temporal.name}/{name}")
        await result(run)
        assert (await olga.get(api(run.id))).json()["workflow_id"] == run.id
        assert (await olga.get(api(run.id, "events"))).json()["events"][-1]["status"] == "complete"


async def test_lists_come_in_pages(temporal: Temporal) -> None:
    async with temporal.worker(talker, llm=ScriptedModel(["Hello"] * 3)), program(temporal) as olga:
        runs = [await temporal.start(talker, session=f"s{number}") for number in range(3)]
        for run in runs:
            await result(run)
        seen: list[str] = []
        query: dict[str, Any] = {"name": "talker", "limit": 2}
        while True:
            page = (await olga.get(api(), params=query)).json()
            assert len(page["runs"]) <= 2
            seen += [run["workflow_id"] for run in page["runs"]]
            if "next" not in page or {run.id for run in runs} <= set(seen):
                break
            query["page"] = page["next"]
        assert {run.id for run in runs} <= set(seen)


@pytest.mark.parametrize("page", ["%%", "e30=", "Z2FyYmFnZQ=="])
async def test_a_page_that_is_not_the_next_of_another_is_refused_at_once(temporal: Temporal, page: str) -> None:
    async with program(temporal) as olga:
        refused = await olga.get(api(), params={"page": page})
    assert refused.status_code == 422
    assert "begin at the first page" in refused.json()["error"]["message"]


# --- who may ---


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [({}, 401, "UNAUTHENTICATED"), ({"Authorization": "Bearer wrong"}, 401, "UNAUTHENTICATED")],
)
async def test_a_stranger_learns_nothing(temporal: Temporal, headers: dict[str, str], status: int, code: str) -> None:
    async with program(temporal) as client:
        del client.headers["Authorization"]
        for path in (api(), api("clerk/x"), "/api/v1/openapi.json", "/api/v1/nope", "/api/v1/pending"):
            answer = await client.get(path, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
            headers = {}
        assert (await client.post(api(), json={"name": "clerk"})).status_code == 401


async def test_every_error_at_a_door_has_the_one_shape(temporal: Temporal) -> None:
    async with program(temporal, "wrong") as guesser:
        answers = [await guesser.get("/api/v1/me") for _ in range(6)]
        assert [answer.status_code for answer in answers] == [401] * 5 + [429]
        assert answers[-1].json()["error"]["code"] == "TOO_MANY_REQUESTS"
        assert int(answers[-1].headers["Retry-After"]) > 0
    async with program(temporal) as olga:
        for method, path, status in (("GET", "/v1/responses", 405), ("GET", "/v1/nope", 404), ("PUT", api(), 405)):
            answer = await olga.request(method, path)
            assert (answer.status_code, answer.json()["error"].keys()) == (status, {"code", "message", "do"})


async def test_roles_and_scopes_bound_what_a_token_is_for(temporal: Temporal) -> None:
    reader = Person(name="reader", role="operator", token="r" * 30, scopes=["read"])
    late = Person(name="late", role="operator", token="l" * 30, expires=datetime.now(UTC) - timedelta(seconds=1))
    access = Access(people=[*PEOPLE, reader, late])
    body = {"name": "talker", "message": "hi"}
    async with program(temporal, "vera", access) as vera:
        refused = await vera.post(api(), json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "FORBIDDEN")
    async with program(temporal, "r" * 30, access) as one:
        assert "lacks the scope start" in (await one.post(api(), json=body)).json()["error"]["message"]
        assert (await one.get(api())).status_code == 200
        assert (await one.post("/runs/x/cancel")).status_code == 403
    async with program(temporal, "l" * 30, access) as one:
        assert (await one.get(api())).status_code == 401


async def test_a_person_with_a_rate_is_told_when_to_ask_again(temporal: Temporal) -> None:
    slow = Person(name="slow", token="s" * 30, per_minute=2)
    async with program(temporal, "s" * 30, Access(people=[*PEOPLE, slow])) as one, program(temporal) as olga:
        assert [(await one.get("/api/v1/me")).status_code for _ in range(3)] == [200, 200, 429]
        refused = await one.get("/api/v1/me")
        assert int(refused.headers["Retry-After"]) > 0
        assert (await olga.get("/api/v1/me")).status_code == 200


async def test_a_browser_acts_only_with_the_token_of_its_session_and_never_for_another_site(temporal: Temporal) -> None:
    async with program(temporal, access=LOCAL) as ada:
        del ada.headers["Authorization"]
        csrf = (await ada.get("/api/v1/me")).json()["csrf"]
        body = {"name": "nope", "message": "hi"}
        refused = await ada.post(api(), json=body)
        told = "Send the csrf from GET /api/v1/me as X-CSRF-Token."
        assert (refused.status_code, refused.json()["error"]["do"]) == (403, told)
        assert (await ada.post(api(), json=body, headers={"X-CSRF-Token": csrf})).status_code == 404
        for foreign in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert (await ada.get("/api/v1/me", headers=foreign)).status_code == 403
            assert (await ada.post(api(), json=body, headers={"X-CSRF-Token": csrf, **foreign})).status_code == 403


async def test_pages_of_other_sites_may_ask_only_if_they_are_named(temporal: Temporal) -> None:
    asks = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    async with program(temporal) as olga:
        assert "access-control-allow-origin" not in (await olga.options(api(), headers=asks)).headers
    async with program(temporal, cors=["https://app.example"]) as olga:
        allowed = await olga.options(api(), headers={**asks, "Access-Control-Request-Headers": "authorization"})
        assert allowed.headers["access-control-allow-origin"] == "https://app.example"
        assert "access-control-allow-credentials" not in allowed.headers
        assert (await olga.get("/api/v1/me", headers={"Origin": "https://app.example"})).status_code == 200
        other = await olga.options(api(), headers={**asks, "Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers
    with pytest.raises(DefinitionError, match="cors"):
        create_app(temporal.client, access=LOCAL, cors=["*"])


# --- tenants ---


def bound(name: str, **options: Any) -> Person:
    return Person(name=name, role="operator", token=f"{name}-token-that-is-long-enough", **options)


async def test_nothing_of_another_tenant_is_seen_or_acted_on_at_any_door(temporal: Temporal) -> None:
    mine, others = f"{temporal.name}-a", f"{temporal.name}-b"
    access = Access(people=[*PEOPLE, bound("amy", tenants=[mine])])
    async with (
        temporal.worker(clerk, llm=ScriptedModel([CHARGES] * 2)),
        program(temporal, "amy-token-that-is-long-enough", access) as amy,
    ):
        own = await temporal.start(clerk, tenant_id=mine, session="own")
        secret = await temporal.start(clerk, tenant_id=others, session="secret")
        nobodys = await temporal.start(talker, session="nobodys")
        (item,) = await pending(secret)
        await pending(own)
        missing = secret.id.replace("secret", "nothere")
        assert (await amy.get(api(own.id))).status_code == 200
        decision = {"gate": "c1", "decision": "approve", "digest": item["digest"]}
        acts = {
            "decide": decision, "answer": {"text": "x"}, "message": {"text": "x"}, "resume": {}, "cancel": {},
            "resolve": {"tool_call_id": "c1", "decision": "leave"},
        }  # fmt: skip
        for run in (secret.id, nobodys.id):
            for act in ("", "transcript", "pending", "events", "export"):
                found, none = await amy.get(api(run, act)), await amy.get(api(missing, act))
                assert found.status_code == none.status_code == 404
                assert found.text.replace(run, "X") == none.text.replace(missing, "X")
            for act, body in acts.items():
                assert (await amy.post(api(run, act), json=body)).status_code == 404
            assert (await amy.get(f"/runs/{run}")).status_code == 404
            assert (await amy.post(f"/runs/{run}/cancel", data={})).status_code == 404
            assert (await amy.get(f"/changes?of=/runs/{run}")).status_code == 404
            assert (await amy.get(f"/arguments/{run}?gate=c1")).status_code == 404
        for path in ("/", "/runs", "/api/v1/pending", "/api/v1/runs", f"/api/v1/runs?tenant={others}"):
            page = (await amy.get(path)).text
            assert secret.id not in page
            assert nobodys.id not in page
        assert own.id in (await amy.get("/runs", headers={"Accept": "text/html"})).text
        assert [one["workflow_id"] for one in (await amy.get("/api/v1/pending")).json()["items"]] == [own.id]
        refused = await amy.post(api(), json={"name": "clerk", "message": "hi", "tenant_id": others})
        assert refused.status_code == 422
        begun = await amy.post(api(), json={"name": "clerk", "message": "hi"})
        assert begun.json()["workflow_id"].startswith(f"clerk/@{mine}/")
        assert (await temporal.people.pending(secret.id))[0]["name"] == "c1"


async def test_a_person_who_has_only_their_own_runs_sees_no_other_of_the_tenant(temporal: Temporal) -> None:
    tenant = f"{temporal.name}-t"
    access = Access(people=[*PEOPLE, *(bound(name, tenants=[tenant], only_own=True) for name in ("amy", "ben"))])
    async with (
        temporal.worker(talker, llm=ScriptedModel(["Hello"] * 2)),
        program(temporal, "amy-token-that-is-long-enough", access) as amy,
        program(temporal, "ben-token-that-is-long-enough", access) as ben,
    ):
        run = (await amy.post(api(), json={"name": "talker", "message": "hi"})).json()["workflow_id"]
        await result(temporal.client.get_workflow_handle(run, result_type=dict))
        event = (await amy.get(api(run, "events"))).json()["events"][0]["id"]
        assert (await ben.get(api(run))).status_code == 404
        assert run in (await amy.get(api())).text
        assert run not in (await ben.get(api())).text
        session = run.rpartition("/")[2]
        in_hers = {"name": "talker", "message": "hi", "session_id": session}
        assert (await ben.post(api(), json=in_hers)).status_code == 404
        form = {"key": "f" * 32, "message": "hi", "session": session}
        assert (await ben.post("/start/talker", data=form)).status_code == 409
        assert (await amy.get(api(run))).json()["status"] == "complete"
        assert len((await amy.get(api(run, "transcript"))).json()["messages"]) == 2
    # Ben begins a run in her session by other means, and no worker is there to refuse it.
    async with program(temporal, "ben-token-that-is-long-enough", access) as ben:
        await start_agent(
            temporal.client, talker, message="hi", session_id=session, user_id="ben", tenant_id=tenant,
            task_queue=temporal.name,
        )  # fmt: skip
        assert (await ben.get(api(run, "events"), params={"after": event})).status_code == 404
        assert (await ben.get(api(run, "transcript"))).json().get("messages", []) == []
        assert event.partition("/")[0] not in (await ben.get(api())).text


# --- what is sent ---


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        ("{", "application/json", 400),
        ("[]", "application/json", 400),
        ('{"name": "talker", "message": NaN}', "application/json", 400),
        ('{"name": "talker", "massage": "hi"}', "application/json", 422),
        ('{"name": "talker"}', "application/json", 422),
        ('{"name": "nobody", "message": "hi"}', "application/json", 404),
        ("name=talker", "application/x-www-form-urlencoded", 415),
        ('{"name": "talker", "message": "' + "x" * 1_100_000 + '"}', "application/json", 413),
    ],
)
async def test_a_body_that_cannot_be_used_is_refused_with_what_to_do(
    temporal: Temporal, content: str, kind: str, status: int
) -> None:
    async with program(temporal) as olga:
        refused = await olga.post(api(), content=content, headers={"Content-Type": kind})
    assert refused.status_code == status
    assert refused.json()["error"].keys() == {"code", "message", "do"}


async def test_a_pipeline_is_started_with_its_input(temporal: Temporal) -> None:
    @tool
    async def double(number: int) -> int:
        """Double."""
        return 2 * number

    twice = pipeline("twice").step("double", run=double, input=lambda ctx: ctx.input).build()
    async with temporal.worker(pipelines=[twice]), program(temporal, pipelines=[twice]) as olga:
        started = await olga.post(api(), json={"name": "twice", "input": {"number": 4}})
        run = started.json()["workflow_id"]
        assert (await result(temporal.client.get_workflow_handle(run, result_type=dict)))["status"] == "complete"


# --- the document ---


@pytest.mark.slow
async def test_the_document_says_what_the_api_does(temporal: Temporal, tmp_path: Any) -> None:
    app = create_app(
        temporal.client, access=Access(people=[*PEOPLE, BOB]), store=temporal.store, agents=[talker], host=HOST,
        task_queue=temporal.name,
    )  # fmt: skip
    async with temporal.worker(talker, llm=ScriptedModel(["Hello"] * 5_000)), served(app) as address:
        await result(await temporal.start(talker))
        command = [
            sys.executable, "-m", "schemathesis.cli", "run", f"{address}/api/v1/openapi.json",
            "--url", f"{address}/api/v1", "--header", f"Authorization: Bearer {TOKENS['olga']}",
            "--checks", "all", "--exclude-checks", "positive_data_acceptance,ignored_auth",
            "--max-examples", "15", "--seed", "7",
            "--request-timeout", "40", "--suppress-health-check", "all",
        ]  # fmt: skip
        done = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path
        )
        told, _ = await done.communicate()
    assert done.returncode == 0, told.decode()[:9_000]
