"""People who decide in a chat: their identities, the messages to them, and the page that gets their clicks."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx

from standfast import Agent, Approval, pipeline, tool
from standfast.temporal import StandfastClient, start_pipeline
from standfast.web import Access, Person, create_app
from support.pages import PEOPLE, charge, served
from support.temporal_runs import Temporal
from support.transcripts import asks_for, call

TEAM = "T0CAG"
TENANT = "72f988bf-86f1-41af-91ab-2d7cd011db47"
HOSTILE = (
    "<!channel> <@U0ADA> *bold* <https://evil.example|harmless> :tada: `code` &lt; [harmless](https://evil.example)"
)
BOUNDED = (
    Person(name="tom", role="operator", tenants=["other"]),
    Person(name="tia", role="operator", only_own=True),
    Person(name="max", role="operator", scopes=["read"]),
    Person(name="old", role="operator", expires=datetime(2026, 1, 1, tzinfo=UTC)),
)


def slack_id(name: str) -> str:
    return f"U0{name.upper()}"


def teams_id(name: str) -> str:
    """Return the id of someone's object in the directory."""
    return f"00000000-0000-4000-8000-{name.encode().hex():0>12}"


def known(person: Person) -> Person:
    return replace(person, slack=f"{TEAM}/{slack_id(person.name)}", teams=f"{TENANT}/{teams_id(person.name)}")


ACCESS = Access(people=[known(person) for person in (*PEOPLE, *BOUNDED)])


@asynccontextmanager
async def page_for(temporal: Temporal, access: Access = ACCESS, **chats: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the page on a separate port; yields a client as a chat is one."""
    page = create_app(temporal.client, access=access, store=temporal.store, **chats)
    async with served(page) as address, httpx.AsyncClient(base_url=address, timeout=60) as client:
        yield client


def clerk(*tools: Any) -> Agent:
    return Agent("clerk", tools=list(tools) or [charge])


def line(**gate: Any) -> Any:
    return pipeline("line").step("ok", approval=Approval(**{"message": "Go on?"} | gate)).build()


async def start_line(temporal: Temporal, of: Any, key: str = "session") -> Any:
    return await start_pipeline(temporal.client, of, task_queue=temporal.name, run_key=temporal.session(key))


async def decisions(temporal: Temporal, run: Any) -> list[tuple[str, str | None, str | None]]:
    rows = await temporal.store.load_decisions(run.first_execution_run_id or "")
    return [(row.decision, row.by, row.comment) for row in rows if row.refused is None]


@tool(approval=Approval(message="Post it?"))
async def post(text: str, times: int, loud: bool, tags: list[str]) -> str:
    return json.dumps([text, times, loud, tags])


POSTS = asks_for(call("post", "p1", text="a < b & c", times=2, loud=False, tags=["x"]))


async def on_board(people: StandfastClient, run: Any) -> bool:
    return any(item["workflow_id"] == run.id for item in await people.waiting())
