"""Endpoints for programs: the JSON API below /api/v1."""

import logging
from collections.abc import Awaitable, Callable
from functools import cached_property
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route, request_response
from starlette.types import Receive, Scope, Send
from temporalio.service import RPCError

from standfast.errors import StandfastError
from standfast.messages import JSONObject
from standfast.web.api import ag_ui, ai_sdk, openai
from standfast.web.api.calls import Doors, key_of
from standfast.web.api.errors import refusal
from standfast.web.api.openapi import document
from standfast.web.api.operations import OPERATIONS, Call, Operation, checked
from standfast.web.api.senders import read_body
from standfast.web.identity.people import Person
from standfast.web.serving.mounts import path_of, root_of

_LOG = logging.getLogger("standfast.web")
_ROOT = b"/api/v1/"


def api_routes(doors: Doors) -> list[BaseRoute]:
    """Return the route of the API: it reads undecoded paths, since workflow ids may have any characters."""
    return [
        _Below(_Api(doors).handle),
        Route("/agents/{name}/ag-ui", _door(doors, ag_ui.run_agent), methods=["POST"]),
        Route("/agents/{name}/ai-sdk", _door(doors, ai_sdk.chat), methods=["POST"]),
        Route("/v1/models", _door(doors, openai.models), methods=["GET"]),
        Route("/v1/chat/completions", _door(doors, openai.chat_completions), methods=["POST"]),
        Route("/v1/responses", _door(doors, openai.responses), methods=["POST"]),
    ]


_Answers = Callable[[Doors, Request, Person, str], Awaitable[Response]]


def _door(doors: Doors, answers: _Answers) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of a protocol's endpoint, which reports every error in the same shape."""

    async def handle(request: Request) -> Response:
        try:
            person = doors.senders.admit(request, scope="")
            return await answers(doors, request, person, request.path_params.get("name", ""))
        except Exception as error:
            return _refused(request, error)

    return handle


def _refused(request: Request, error: Exception) -> Response:
    match error:
        case HTTPException() | StandfastError() | RPCError() | ValidationError():
            return refusal(error)
        case ClientDisconnect():
            return refusal(HTTPException(400, "The connection ended before the whole request had arrived."))
    _LOG.error("%s could not be answered", request.url.path, exc_info=error)
    return refusal(error)


class _Below(BaseRoute):
    """Handles all requests below an address, with any method and characters; a pattern would end at a line break."""

    def __init__(self, handle: Callable[[Request], Awaitable[Response]]) -> None:
        self._app = request_response(handle)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_below = scope["type"] == "http" and path_of(scope).startswith(_ROOT.decode())
        return (Match.FULL if is_below else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class _Api:
    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    @cached_property
    def _document(self) -> JSONObject:
        """The OpenAPI document, which takes 30 ms to make and is rarely requested."""
        return document(version("standfast"))

    async def handle(self, request: Request) -> Response:
        try:
            return await self._handle(request)
        except Exception as error:
            return _refused(request, error)

    async def _handle(self, request: Request) -> Response:
        segments = _segments(request)
        fitting = [one for one in OPERATIONS if _fits(one, segments)]
        if segments == ["openapi.json"] and request.method == "GET":
            self._doors.senders.admit(request, scope="")
            return JSONResponse(self._document)
        operation = next((one for one in fitting if one.method == request.method), None)
        if operation is None:
            self._doors.senders.admit(request, scope="")
            if not fitting and segments != ["openapi.json"]:
                raise HTTPException(404, "This address does not exist; /api/v1/openapi.json lists the addresses.")
            allowed = {one.method for one in fitting} or {"GET"}
            raise HTTPException(
                405, f"{request.method} is not allowed for this address.", {"Allow": ", ".join(sorted(allowed))}
            )
        person = self._doors.senders.admit(request, operation.role, operation.scope or "")
        body: Any = None
        if operation.body is not None:
            body = operation.body.model_validate(await read_body(request))
        run = segments[1] if "{run}" in operation.path else ""
        found = await checked(Call(self._doors, request, person, run, body, key_of(request)), operation)
        if isinstance(found, BaseModel):
            shown = found.model_dump(mode="json", exclude_none=True)
            return JSONResponse(shown, operation.status)
        return found


def _segments(request: Request) -> list[str]:
    """Return the segments of the path below /api/v1, each decoded separately: a workflow id may have a slash.

    Raises:
        HTTPException: 404; one is not UTF-8.
    """
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    below = raw.partition(b"?")[0].removeprefix(root_of(request.scope).encode()).partition(_ROOT)[2]
    try:
        return [unquote(one.decode("ascii"), errors="strict") for one in below.split(b"/")]
    except UnicodeDecodeError as error:
        raise HTTPException(404, "The address is not UTF-8 in percent-encoding.") from error


def _fits(operation: Operation, segments: list[str]) -> bool:
    wanted = operation.segments
    return len(wanted) == len(segments) and all(
        one == given or (one == "{run}" and given != "") for one, given in zip(wanted, segments, strict=True)
    )
