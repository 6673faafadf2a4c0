"""The page below a path of another application: its links, forms, cookies and streams stay there."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from support.pages import CHARGES, HOST, PEOPLE, TOKENS, browser, charge
from support.temporal_runs import Temporal, pending, result

from standfast import Agent
from standfast.testing import ScriptedModel
from standfast.web import Access, create_app
from standfast.web.identity.people import COOKIE

TEMPLATES = Path(__file__).parents[3] / "standfast" / "web" / "templates"
AGENT = Agent("clerk", tools=[charge])


@asynccontextmanager
async def shop(temporal: Temporal, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """An application of someone's own, with the page at /ops."""
    page = create_app(temporal.client, access=Access(people=PEOPLE), store=temporal.store, **options)

    async def home(request: Any) -> PlainTextResponse:
        return PlainTextResponse("the shop")

    app = Starlette(routes=[Route("/", home), Mount("/ops", page)])
    transport = httpx.ASGITransport(app=app, client=(HOST, 4711))
    async with httpx.AsyncClient(
        transport=transport, base_url=f"http://{HOST}", headers={"Accept": "text/html"}
    ) as client:
        yield client


def addresses(page: str) -> list[str]:
    """Return the addresses on a page that are on its own site."""
    return re.findall(r'(?:href|action|src|data-changes)="(/[^"]*)"', page)


async def sign_in(client: httpx.AsyncClient, name: str, to: str) -> httpx.Response:
    shown = (await client.get("/ops/login")).text
    token = re.findall(r'name="csrf" value="(\w+)"', shown)[0]
    return await client.post("/ops/login", data={"csrf": token, "token": TOKENS[name], "to": to})


async def test_people_sign_in_look_and_decide_below_the_path_of_an_application(temporal: Temporal) -> None:
    async with (
        temporal.worker(AGENT, llm=ScriptedModel([CHARGES, "done"])),
        shop(temporal, agents=[AGENT]) as client,
    ):
        run = await temporal.start(AGENT)
        await pending(run)
        asked = await client.get(f"/ops/runs/{run.id}?x=1")
        assert (asked.status_code, asked.headers["location"]) == (
            303,
            f"/ops/login?to=%2Fops%2Fruns%2F{run.id.replace('/', '%2F')}%3Fx%3D1",
        )
        signed = await sign_in(client, "ada", f"/ops/runs/{run.id}")
        assert signed.headers["location"] == f"/ops/runs/{run.id}"
        assert f"{COOKIE}=" in signed.headers["set-cookie"]
        assert "Path=/ops;" in signed.headers["set-cookie"]
        for path in (
            "/ops/",
            "/ops/runs",
            "/ops/overview",
            f"/ops/runs/{run.id}",
            "/ops/runs/no/body",
            "/ops/static/none",
        ):
            found = addresses((await client.get(path)).text)
            assert found
            assert [one for one in found if not one.startswith("/ops/")] == [], path
        for path in addresses((await client.get("/ops/")).text):
            if "/static/" in path:
                assert (await client.get(path)).status_code == 200
        done = await client.post(
            f"/ops/runs/{run.id}/decide", data=await decision(client, f"/ops/runs/{run.id}"), follow_redirects=False
        )
        assert (done.status_code, done.headers["location"]) == (303, f"/ops/runs/{run.id}?said=approve")
        await result(run)
        bearer = {"Authorization": f"Bearer {TOKENS['ada']}"}
        found = await client.get(f"/ops/api/v1/runs/{run.id.replace('/', '%2F')}", headers=bearer)
        assert found.json()["workflow_id"] == run.id
        missing = await client.get("/ops/api/v1/none", headers=bearer)
        assert (missing.status_code, missing.headers["Content-Type"]) == (404, "application/json")
        out = await client.post("/ops/logout", data={"csrf": await csrf_below(client)})
        assert out.headers["location"] == "/ops/login"
        assert (await client.get("/ops/")).status_code == 303
        assert (await client.get("/")).text == "the shop"


async def decision(client: httpx.AsyncClient, page: str) -> dict[str, str]:
    shown = (await client.get(page)).text.split("/decide")[1]
    hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', shown.split("</form>")[0]))
    return {name: hidden[name] for name in ("csrf", "key", "gate", "digest")} | {"decision": "approve"}


async def csrf_below(client: httpx.AsyncClient) -> str:
    return re.findall(r'name="csrf" value="(\w+)"', (await client.get("/ops/runs")).text)[0]


async def test_nobody_is_sent_from_the_page_to_another_part_of_the_application(temporal: Temporal) -> None:
    async with shop(temporal) as client:
        for to in ("/", "/admin", "//evil.example", "/opsicle", "https://evil.example/ops/"):
            assert (await sign_in(client, "vera", to)).headers["location"] == "/ops/", to


async def test_the_page_says_that_it_is_there_to_anybody_and_by_any_name(temporal: Temporal) -> None:
    async with shop(temporal) as client:
        answer = await client.get("/ops/healthz", headers={"Host": "10.0.0.7:8234"})
        assert (answer.status_code, answer.text) == (200, "ok")
    async with browser(temporal) as client:
        assert (await client.get("/healthz")).text == "ok"


async def test_style_and_script_are_asked_for_once(temporal: Temporal) -> None:
    """A page needs two files; their addresses change with their contents, so a browser caches them."""
    async with browser(temporal) as client:
        page = (await client.get("/")).text
        files = [one.replace("&amp;", "&") for one in addresses(page) if "/static/" in one]
        assert [one.partition("?")[0] for one in files] == ["/static/page.css", "/static/page.js"]
        for one in files:
            assert (await client.get(one)).headers["Cache-Control"] == "public, max-age=31536000, immutable"
            other = await client.get(f"{one}0")
            assert (other.status_code, other.headers["Cache-Control"]) == (200, "no-store")


def test_no_template_has_an_address_that_would_leave_the_page() -> None:
    wrong = [
        (path.name, found)
        for path in TEMPLATES.glob("*.html")
        for found in re.findall(r'(?:href|action|src)="/[^"]*"', path.read_text())
    ]
    assert wrong == []
