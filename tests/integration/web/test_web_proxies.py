"""The page behind a proxy, on a separate server: below a path, over https, for pages of other origins."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from support.pages import CHARGES, PEOPLE, TOKENS, charge, served
from support.temporal_runs import Temporal, pending, result

from standfast import Agent, DefinitionError
from standfast.testing import ScriptedModel
from standfast.web import Access, create_app

NAME = "runs.example.com"
AGENT = Agent("clerk", tools=[charge])
BROWSER = {"Accept": "text/html", "Host": NAME, "Origin": f"https://{NAME}"}


def proxy(to: str, *, removes: str, **headers: str) -> Starlette:
    """Return a proxy that ends https: it speaks to the page by the page's own address, and may remove a path."""

    async def passed(request: Request) -> Response:
        path = request.scope["raw_path"].decode().removeprefix(removes) or "/"
        kept = {name: value for name, value in request.headers.items() if name not in ("host", "connection")}
        async with httpx.AsyncClient(base_url=to) as client:
            query = f"?{request.url.query}" if request.url.query else ""
            sent = {**kept, **headers}
            answer = await client.request(request.method, f"{path}{query}", headers=sent, content=await request.body())
        told = {name: value for name, value in answer.headers.items() if name != "content-length"}
        return Response(answer.content, answer.status_code, told)

    return Starlette(routes=[Route("/{path:path}", passed, methods=["GET", "POST", "OPTIONS"])])


@asynccontextmanager
async def behind(
    temporal: Temporal, *, removes: str, trusted: bool = True, https: bool = True, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the page and a proxy before it; yields a browser at the proxy."""
    access = Access(people=PEOPLE, https=https, proxies=["127.0.0.1"] if trusted else [])
    page = create_app(temporal.client, access=access, store=temporal.store, names=[NAME], **options)
    forwarded = {"X-Forwarded-Host": f"evil.example, {NAME}", "X-Forwarded-Proto": "https"}
    async with (
        served(page) as address,
        served(proxy(address, removes=removes, **forwarded)) as outside,
        httpx.AsyncClient(base_url=outside, headers=BROWSER) as client,
    ):
        yield client


def addresses(page: str) -> list[str]:
    return re.findall(r'(?:href|action|src|data-changes)="(/[^"]*)"', page)


def field(page: str, name: str) -> str:
    return re.findall(rf'name="{name}" value="([^"]*)"', page)[0]


@pytest.mark.parametrize("removes", ["", "/ops"])
async def test_people_sign_in_look_and_decide_below_the_path_that_a_proxy_has_for_the_page(
    temporal: Temporal, removes: str
) -> None:
    async with (
        temporal.worker(AGENT, llm=ScriptedModel([CHARGES, "done"])),
        behind(temporal, removes=removes, root_path="/ops/", agents=[AGENT]) as client,
    ):
        run = await temporal.start(AGENT)
        await pending(run)
        asked = await client.get(f"/ops/runs/{run.id}")
        assert asked.headers["location"] == f"/ops/login?to=%2Fops%2Fruns%2F{run.id.replace('/', '%2F')}"
        form = (await client.get("/ops/login")).text
        sent = {"csrf": field(form, "csrf"), "token": TOKENS["ada"], "to": f"/ops/runs/{run.id}"}
        signed = await client.post("/ops/login", data=sent)
        assert signed.headers["location"] == f"/ops/runs/{run.id}"
        cookie = signed.headers["set-cookie"]
        assert "Path=/ops;" in cookie
        assert {"Secure", "HttpOnly", "SameSite=lax"} <= {one.strip() for one in cookie.split(";")}
        session = {"Cookie": cookie.partition(";")[0]}
        page = (await client.get(f"/ops/runs/{run.id}", headers=session)).text
        assert [one for one in addresses(page) if not one.startswith("/ops/")] == []
        for path in addresses(page):
            if "/static/" in path:
                assert (await client.get(path.replace("&amp;", "&"))).status_code == 200
        shown = page.split("/decide")[1]
        decision = {name: field(shown, name) for name in ("csrf", "key", "gate", "digest")} | {"decision": "approve"}
        done = await client.post(f"/ops/runs/{run.id}/decide", data=decision, headers=session)
        assert (done.status_code, done.headers["location"]) == (303, f"/ops/runs/{run.id}?said=approve")
        await result(run)
        bearer = {"Authorization": f"Bearer {TOKENS['ada']}"}
        assert (await client.get("/ops/api/v1/me", headers=bearer)).status_code == 200
        assert (await client.get("/ops/api/v1/none", headers=bearer)).headers["Content-Type"] == "application/json"
        whole = (await client.get(f"/ops/api/v1/runs/{run.id.replace('/', '%2F')}", headers=bearer)).json()
        assert whole["workflow_id"] == run.id
        assert (await client.get("/ops/healthz")).text == "ok"
        out = await client.post("/ops/logout", data={"csrf": decision["csrf"]}, headers=session)
        assert out.headers["location"] == "/ops/login"
        assert "Path=/ops" in out.headers["set-cookie"]


async def test_a_proxys_words_about_the_browser_count_only_from_addresses_that_are_trusted(temporal: Temporal) -> None:
    for trusted, status in ((True, 303), (False, 403)):
        async with behind(temporal, removes="", trusted=trusted, https=False) as client:
            form = (await client.get("/login")).text
            sent = {"csrf": field(form, "csrf"), "token": TOKENS["ada"]}
            signed = await client.post("/login", data=sent)
            assert signed.status_code == status  # the form seems to come from another host than the page's
            if trusted:
                assert "Secure" in signed.headers["set-cookie"]  # the browser speaks https, says the proxy
    async with behind(temporal, removes="") as client:
        away = await client.get("/runs/", headers={"X-Forwarded-Proto": "http"})
        assert "evil.example" not in away.headers.get("location", "")


async def test_the_api_is_used_by_pages_of_origins_that_are_named_alone(temporal: Temporal) -> None:
    origin = "https://app.example.com"
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "Authorization"}
    bearer = {"Authorization": f"Bearer {TOKENS['ada']}"}
    async with behind(temporal, removes="/ops", root_path="/ops", cors=[origin]) as client:
        for given, told in ((origin, origin), ("https://evil.example", None), (f"{origin}.evil.example", None)):
            before = await client.options("/ops/api/v1/runs", headers={"Origin": given, **asked})
            assert before.headers.get("Access-Control-Allow-Origin") == told
            answer = await client.get("/ops/api/v1/me", headers={"Origin": given, **bearer})
            assert answer.headers.get("Access-Control-Allow-Origin") == told
            assert "Access-Control-Allow-Credentials" not in answer.headers
    async with behind(temporal, removes="") as client:
        answer = await client.get("/api/v1/me", headers={"Origin": origin, **bearer})
        assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("root", ["ops", "//evil.example", "/ops/../x", "/a b", "/ops?x", "/runs", "/api/x", "/login"])
async def test_a_path_that_could_be_misread_is_refused(temporal: Temporal, root: str) -> None:
    with pytest.raises(DefinitionError, match="root_path"):
        create_app(temporal.client, access=Access(people=PEOPLE), root_path=root)
