"""Serves agents and pipelines as tools of the Model Context Protocol: over stdio to one person, and over HTTP.

Over HTTP people send a token, and the page's rules apply to them. The protocol's package is imported when it is needed,
since the page does not use it.
"""

from collections.abc import Iterable, Sequence

from starlette.applications import Starlette
from starlette.routing import Route
from temporalio.client import Client

from standfast.agents import Agent
from standfast.pipelines import Pipeline
from standfast.stores.protocol import AgentStore
from standfast.temporal.wire.names import TASK_QUEUE
from standfast.web.api.calls import Doors
from standfast.web.api.senders import Senders
from standfast.web.identity.contexts import Contexts, FillContext
from standfast.web.identity.people import Access, Person
from standfast.web.identity.proxies import check_root
from standfast.web.identity.visitors import Visitors
from standfast.web.mcp.tools import Offers
from standfast.web.serving.middleware import check_listening, front

PATH = "/mcp"
_HEADERS = ("Mcp-Method", "Mcp-Name", "Mcp-Protocol-Version", "Mcp-Session-Id")  # of clients in browsers


async def serve_mcp_stdio(
    client: Client,
    *,
    person: Person,
    store: AgentStore | None = None,
    agents: Iterable[Agent] = (),
    pipelines: Iterable[Pipeline] = (),
    task_queue: str = TASK_QUEUE,
    allow_decisions: bool = False,
    fill_context: FillContext | None = None,
) -> None:
    """Serve a client that has started this process, as `person`, until it closes standard input.

    The arguments are those of `create_mcp_app`. Nothing else may write to standard output.
    """
    from standfast.web.mcp.protocol import serve_stdio

    access = Access(local=person)
    senders, contexts = Senders(access, Visitors(access, store).rates), Contexts(client, store, fill_context)
    doors = Doors(client, store, senders, _named(agents, pipelines), task_queue, contexts)
    await serve_stdio(Offers(doors, allow_decisions=allow_decisions), person)


def create_mcp_app(
    client: Client,
    *,
    access: Access,
    store: AgentStore | None = None,
    host: str = "127.0.0.1",
    names: Sequence[str] = (),
    agents: Iterable[Agent] = (),
    pipelines: Iterable[Pipeline] = (),
    task_queue: str = TASK_QUEUE,
    allow_decisions: bool = False,
    cors: Sequence[str] = (),
    root_path: str = "",
    fill_context: FillContext | None = None,
) -> Starlette:
    """Make the server over HTTP, as an ASGI application that can be mounted in another: `app.mount("/shop", …)`.

    It answers at `/mcp`, or, mounted like that, at `/shop/mcp`. Arguments that `create_app` also has mean the same.
    Call its `state.close()` before the server stops.

    Args:
        agents, pipelines: the agents and pipelines that models may start.
        allow_decisions: whether there are tools that approve, reject and answer, in the name of the token's owner.

    Raises:
        DefinitionError: strangers could reach it without signing in; a path or an origin is invalid; or an agent or a
            pipeline has a name that is too long for a tool.
    """
    from standfast.web.mcp.protocol import Door

    check_listening(host, access, names)
    root, visitors = check_root(root_path, ["/healthz", PATH]), Visitors(access, store)
    senders, contexts = Senders(access, visitors.rates), Contexts(client, store, fill_context)
    doors = Doors(client, store, senders, _named(agents, pipelines), task_queue, contexts)
    door = Door(Offers(doors, allow_decisions=allow_decisions), senders)
    app = Starlette(
        # There is no stream to listen to: it would be empty, and stay open for as long as a client likes.
        routes=[Route(PATH, door, methods=["POST"])],
        middleware=front(visitors, host=host, names=names, cors=cors, root=root, headers=_HEADERS),
    )
    app.state.close = door.close
    return app


def _named(agents: Iterable[Agent], pipelines: Iterable[Pipeline]) -> dict[str, Agent | Pipeline]:
    return {**{agent.name: agent for agent in agents}, **{pipeline.name: pipeline for pipeline in pipelines}}
