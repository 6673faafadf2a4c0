"""The page on which people see their waiting items, decide, answer, and manage runs."""

from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlencode

from standfast.extras import MissingExtraError, install

try:
    import itsdangerous  # noqa: F401
    import jinja2  # noqa: F401
    import markdown_it  # noqa: F401
    import python_multipart  # noqa: F401
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:
    raise MissingExtraError(f"The page needs {error.name}: {install('web')}") from error

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from temporalio.client import Client
from temporalio.service import RPCError

from standfast.agents import Agent
from standfast.errors import StandfastError
from standfast.pipelines import Pipeline
from standfast.stores.protocol import AgentStore
from standfast.temporal.wire.names import TASK_QUEUE
from standfast.web.api import api_routes
from standfast.web.api.calls import Doors
from standfast.web.api.errors import refusal as to_program
from standfast.web.api.senders import Senders
from standfast.web.chats.slack import SlackRoutes
from standfast.web.chats.slack_api import SlackActions
from standfast.web.chats.teams import TeamsRoutes
from standfast.web.chats.teams_signatures import TeamsActions
from standfast.web.identity.contexts import Contexts, FillContext
from standfast.web.identity.people import Access, Person
from standfast.web.identity.proxies import check_root
from standfast.web.identity.visitors import TooManyAttempts, Visitors, is_door, refusal, who
from standfast.web.mcp.server import create_mcp_app, serve_mcp_stdio
from standfast.web.page.desk import Desk
from standfast.web.page.pages import Pages
from standfast.web.page.start_forms import starts_of
from standfast.web.serving.middleware import HEADERS, check_listening, front
from standfast.web.serving.mounts import SLACK_PATH, STATIC, TEAMS_PATH, Assets, path_of, root_of
from standfast.web.serving.statuses import status_of

_MOST_BYTES = 1_048_576  # of a form
_OF_STRANGERS = 65_536  # bytes of an unauthenticated form, such as a link's form
_OF_CHATS = 262_144  # bytes; with each press, Slack sends the message back

__all__ = [
    "Access",
    "Person",
    "SlackActions",
    "TeamsActions",
    "check_listening",
    "create_app",
    "create_mcp_app",
    "serve_mcp_stdio",
]


def create_app(
    client: Client,
    *,
    access: Access,
    store: AgentStore | None = None,
    host: str = "127.0.0.1",
    names: Sequence[str] = (),
    temporal_ui: str | None = None,
    agents: Iterable[Agent] = (),
    pipelines: Iterable[Pipeline] = (),
    task_queue: str = TASK_QUEUE,
    cors: Sequence[str] = (),
    root_path: str = "",
    fill_context: FillContext | None = None,
    slack: SlackActions | None = None,
    teams: TeamsActions | None = None,
) -> Starlette:
    """Make the page as an ASGI application, which can be mounted in another: `app.mount("/ops", create_app(…))`.

    Call its `state.close()` to end the event streams before a server stops. `/healthz` tells the service manager that
    this server answers.

    Args:
        access: the rules that grant access to the page.
        store: the workers' store, for transcripts and the audit trail.
        host: the address on which the page, or the application that mounts it, will listen.
        names: host names of the page, such as "runs.example.com"; requests for others are refused.
        temporal_ui: the address of Temporal Web, for links.
        agents, pipelines: the agents and pipelines that people may start from the page, with forms made from the input
        types.
        task_queue: the task queue of their workers.
        cors: origins, such as "https://app.example.com", whose pages may use the program endpoints with a token.
        root_path: the path under which a proxy serves the page, such as "/ops", whether the proxy passes it on or
            removes it.
        fill_context: an application function that decides on the contexts of runs that people start. Its arguments are
            the `Person`, the `Agent`, and the given context, or None. Plain or async, it returns the final context, or
            refuses by raising `InputError`. By default the given context is used unchanged.
        slack: lets people decide with the buttons of Slack messages, whose requests `/slack/actions` receives.
        teams: the same for Microsoft Teams, whose requests `/teams/messages` receives.

    Raises:
        DefinitionError: strangers could reach the page without signing in; or a path or an origin is invalid.
    """
    check_listening(host, access, names)
    visitors, starts = Visitors(access, store), starts_of(agents, pipelines)
    assets = Assets()
    contexts = Contexts(client, store, fill_context)
    desk = Desk(client, visitors, store, assets, has_starts=bool(starts))
    pages = Pages(desk, starts, task_queue, contexts, temporal_ui)
    items = {name: start.item for name, start in starts.items()}
    doors = Doors(client, store, Senders(access, visitors.rates), items, task_queue, contexts)
    chats = [] if slack is None else SlackRoutes(slack, desk.people, access, store).routes()
    chats += [] if teams is None else TeamsRoutes(teams, desk.people, access, store).routes()

    async def failed(request: Request, error: Exception) -> Response:
        if is_door(request.scope):
            return to_program(error)
        if isinstance(error, HTTPException) and error.status_code == 401:
            if (name := access.stranger(request)) is not None:
                why = f"The proxy identifies you as {name}, who may not use this page."
                return desk.refused(request, 403, why)
            if "Authorization" in request.headers or "text/html" not in request.headers.get("Accept", ""):
                return PlainTextResponse("Sign in, or send a bearer token.", 401, {"WWW-Authenticate": "Bearer"})
            root, query = root_of(request.scope), request.url.query
            to = request.scope["path"] + (f"?{query}" if query else "") if request.method == "GET" else f"{root}/"
            return RedirectResponse(f"{root}/login?{urlencode({'to': to})}", 303)
        if isinstance(error, HTTPException):
            refused = desk.refused(request, error.status_code, error.detail)
            refused.headers.update(error.headers or {})
            return refused
        assert isinstance(error, StandfastError | RPCError)
        return desk.refused(request, status_of(error), str(error))

    def broken(request: Request) -> Response:
        if is_door(request.scope):
            return to_program(HTTPException(500, "The page itself has failed; see its log."))
        return desk.refused(request, 500, "The page itself has failed; see its log.")

    routes = [Mount("/static", StaticFiles(directory=STATIC)), *api_routes(doors), *chats, *pages.routes()]
    root = check_root(
        root_path, ["/healthz", SLACK_PATH, TEAMS_PATH, *(getattr(one, "path", "/api") for one in routes)]
    )
    app = Starlette(
        routes=routes,
        middleware=[
            *front(
                visitors,
                host=host,
                names=names,
                cors=cors,
                root=root,
                every_answer=[Middleware(_Headers, assets=assets), Middleware(_Broken, answer=broken)],
            ),
            Middleware(_Limit),
        ],
        exception_handlers={
            HTTPException: failed,
            StandfastError: failed,
            RPCError: failed,
            TooManyAttempts: _guessed,
            ClientDisconnect: _gone,
        },
    )

    def close() -> None:
        pages.looks.close()
        doors.closing.set()

    app.state.close = close
    return app


async def _gone(request: Request, error: Exception) -> Response:
    return PlainTextResponse("The connection ended before the whole request had arrived.", 400)


async def _guessed(request: Request, error: Exception) -> Response:
    assert isinstance(error, TooManyAttempts)
    return refusal(error)


class _Broken:
    """Answers a request on which the page itself fails; its server logs the error."""

    def __init__(self, app: ASGIApp, answer: Callable[[Request], Response]) -> None:
        self._app, self._answer = app, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception:
            if scope["type"] == "http" and not has_begun:
                await self._answer(Request(scope))(scope, receive, send)
            raise


class _Limit:
    """Refuses requests that are longer than people type."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0
        most = _MOST_BYTES
        if scope["type"] == "http" and who(Request(scope)) is None:
            most = _OF_CHATS if path_of(scope) in (SLACK_PATH, TEAMS_PATH) else _OF_STRANGERS

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > most:
                raise HTTPException(413, f"That is more than {most:,} bytes.")
            return message

        await self._app(scope, counted, send)


class _Headers:
    """Adds the security headers for browsers to every answer."""

    def __init__(self, app: ASGIApp, assets: Assets) -> None:
        self._app, self._assets = app, assets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caching = self._assets.caching(scope) if scope["type"] == "http" else ""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers["Cache-Control"] = caching
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)
