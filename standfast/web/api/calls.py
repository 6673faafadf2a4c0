"""Holds the shared parts of the endpoints for programs: the client, the sender, and starting and following runs."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import StreamingResponse
from temporalio.client import Client
from temporalio.common import WorkflowIDReusePolicy

from standfast.agents import Agent
from standfast.errors import InputError, SessionConflictError
from standfast.events import Event
from standfast.messages import Message
from standfast.pipelines import Pipeline
from standfast.runtime.message_ids import check_not_another
from standfast.stores.protocol import AgentStore, session_key_of
from standfast.temporal import OnRecord, StandfastClient, start_agent, start_pipeline
from standfast.temporal.wire.names import workflow_id
from standfast.web.api.models import StartRun
from standfast.web.api.senders import Senders
from standfast.web.identity.contexts import Contexts
from standfast.web.identity.people import Person
from standfast.web.identity.visible_runs import RunPages, admit_start, tenant_for
from standfast.web.page.live_updates import Streams

IDEMPOTENCY_KEY = "Idempotency-Key"
_LONGEST_KEY = 200
_ALIVE = 10.0  # seconds between two keep-alive events
SSE = {"X-Accel-Buffering": "no"}  # a proxy must not hold back events


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that a request has started now or earlier."""

    workflow_id: str
    is_new: bool


class Doors:
    """The common parts of all endpoints: they access runs through `people`, and start them from `items`."""

    def __init__(
        self,
        client: Client,
        store: AgentStore | None,
        senders: Senders,
        items: Mapping[str, Agent | Pipeline],
        task_queue: str,
        contexts: Contexts,
    ) -> None:
        self.client, self.store, self.senders, self.items = client, store, senders, items
        self._contexts = contexts
        self.people = StandfastClient(client, store=store)
        self.run_pages = RunPages(self.people, senders.access.secret)
        self.closing = asyncio.Event()
        self._task_queue = task_queue
        self._streams = Streams("streams that are open")

    def agent(self, name: str) -> Agent:
        """Return an agent that can be started here.

        Raises:
            HTTPException: 404; there is none.
        """
        item = self.items.get(name)
        if not isinstance(item, Agent):
            raise HTTPException(
                404, f"There is no agent {name[:200]!r} here: `standfast web --app` defines the agents."
            )
        return item

    async def start(self, person: Person, asked: StartRun, key: str | None, **options: Any) -> Begun:
        """Start a run for a person; it starts once for the same key and content.

        Raises:
            HTTPException: 404 or 422; the agent is unknown, or a part of the request is invalid.
            StandfastError: it cannot be started now.
        """
        try:
            return await self._start(person, asked, key, options)
        except InputError as error:  # only the request can be wrong
            raise HTTPException(422, str(error)) from error

    async def _start(self, person: Person, asked: StartRun, key: str | None, options: dict[str, Any]) -> Begun:
        item = self.items.get(asked.name)
        if item is None:
            raise HTTPException(
                404, f"There is no agent or pipeline {asked.name!r} here: `standfast web --app` defines them."
            )
        if isinstance(item, Agent) and asked.message is None and asked.session_id is None:
            raise InputError("message: send the agent a message, or name the session to continue")
        tenant = tenant_for(person, asked.tenant_id)
        # Without a context it is the same act as in earlier versions, which may have done it already.
        said = asked.model_dump(mode="json", exclude={"context"} if asked.context is None else None)
        act = act_id(key, person, "start", said) or uuid4().hex
        session = asked.session_id or f"api-{act}"
        options |= {"user_id": person.name, "tenant_id": tenant, "task_queue": self._task_queue}
        options["on_record"] = OnRecord(store=self.store, by=person.name, id=act)
        if isinstance(item, Agent) and asked.session_id is None:
            options["id_reuse_policy"] = WorkflowIDReusePolicy.REJECT_DUPLICATE
        await admit_start(self.people, self.store, person, item.name, session, tenant)
        try:
            if isinstance(item, Pipeline):
                if asked.context is not None:
                    raise InputError("context: a pipeline makes the contexts of its agents from its input")
                run = await start_pipeline(self.client, item, input=asked.input, run_key=session, **options)
            else:
                of = {"session_id": asked.session_id, "tenant_id": tenant}
                context = await self._contexts.of(person, item, asked.context, **of)
                options |= {"images": asked.images, "if_running": asked.if_running, "context": context}
                if key is not None and asked.session_id is not None and asked.message is not None:
                    options["message_id"] = said_id(key, person)
                    await self._check_message(person, asked, options["message_id"], tenant)
                given = {"message": asked.message} | options
                run = await start_agent(self.client, item, session_id=session, **given)
        except SessionConflictError:
            if asked.session_id is not None:
                raise
            return Begun(workflow_id(item.name, session_key_of(tenant, session)), False)
        return Begun(run.id, run.first_execution_run_id is not None)

    async def _check_message(self, person: Person, asked: StartRun, message_id: str, tenant: str | None) -> None:
        """Refuse a message with the key of another one now: its run would only fail."""
        if self.store is not None:
            images = asked.images or None
            said = Message(
                role="user", content=asked.message or "", images=images, by=person.name, message_id=message_id
            )
            await check_not_another(said, session_key_of(tenant, str(asked.session_id)), self.store)

    async def follow(self, run: str, after: str | None = None) -> AsyncIterator[Event | None]:
        """Yield a run's events until its end, and None from time to time when there are none."""
        async with aclosing(self.people.stream(run, after=after)) as events:
            coming = asyncio.ensure_future(anext(events, None))
            closing = asyncio.ensure_future(self.closing.wait())
            try:
                while True:
                    await asyncio.wait({coming, closing}, timeout=_ALIVE, return_when=asyncio.FIRST_COMPLETED)
                    if closing.done():
                        return
                    if not coming.done():
                        yield None
                        continue
                    if (event := coming.result()) is None:
                        return
                    yield event
                    coming = asyncio.ensure_future(anext(events, None))
            finally:
                coming.cancel()
                closing.cancel()
                await asyncio.gather(coming, closing, return_exceptions=True)

    def streamed(self, person: Person, texts: AsyncIterator[str], **headers: str) -> StreamingResponse:
        """Return server-sent events, up to the person's limit of concurrent streams.

        Raises:
            HTTPException: 429; they have reached it.
        """

        async def until_gone() -> AsyncIterator[str]:
            async for text in texts:
                if person.has_expired():
                    return
                yield text

        return self._streams.open(person.name, until_gone(), {**SSE, **headers})


def key_of(request: Request) -> str | None:
    """Return the key by which a repeated request is recognised.

    Raises:
        HTTPException: 400; it is invalid.
    """
    key = request.headers.get(IDEMPOTENCY_KEY)
    if key is not None and not (0 < len(key) <= _LONGEST_KEY and key.isprintable()):
        raise HTTPException(400, f"{IDEMPOTENCY_KEY} must have 1 to {_LONGEST_KEY} characters on one line.")
    return key


def said_id(key: str, person: Person) -> str:
    """Return the id of a message that a person sends with a key: the same in every request and run of a session."""
    return hashlib.blake2b(json.dumps([key, person.name]).encode(), digest_size=16).hexdigest()


def id_in(message: Mapping[str, Any]) -> str | None:
    """Return the id that a client has given a message; None if it has none, so that repeats are not recognised."""
    given = message.get("id")
    return given if isinstance(given, str) and given else None


def act_id(key: str | None, person: Person, *of: Any) -> str | None:
    """Return the id of an act: the same content with the same key is one act; without a key each is separate."""
    if key is None:
        return None
    return hashlib.blake2b(json.dumps([key, person.name, of]).encode(), digest_size=16).hexdigest()
