"""Commands about runs: start, show, wait, end, and move them as files out of Temporal and into it."""

import json
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from standfast.cli.audits import AUDITED, BY, acts_of, on_record, write_acts
from standfast.cli.commands import INCOMPLETE, IncompleteError, on_temporal
from standfast.cli.inputs import agent_name, image_of, read_json_option, read_text, who
from standfast.cli.outputs import Output, ago, shown
from standfast.cli.sessions import transcript, write_message
from standfast.cli.stores import BOARD, Named, Store, not_in_process, store_of_workers
from standfast.cli.waiting import write_waiting
from standfast.errors import InputError
from standfast.messages import JSONObject, Usage
from standfast.stores.file_holds import private

if TYPE_CHECKING:
    from temporalio.client import Client

RUN = click.argument("run")  # a workflow id
CONTEXT = click.option(
    "--context",
    metavar="JSON",
    help="Context of the agent's run, in the agent's type; @FILE reads a file.  [default: the session's]",
)


# --- starting ---


_INSTEAD = {
    "session": " A pipeline has a run key: use --run-key.",
    "run_key": " An agent has a session: use --session.",
}


def _check_start(*, message: str | None, given: str | None, **options: Any) -> None:
    has_input = given is not None or options["restart_of"] is not None  # the earlier run's, unless one is given
    if (message is None) != has_input:
        raise click.UsageError("Give --message for an agent, or --input for a pipeline (null if it takes none).")
    foreign, whose = (
        (("run_key", "restart_of", "restart_from"), "of a pipeline")
        if message is not None
        else (("session", "message_id", "images", "max_iterations", "say", "context"), "of an agent")
    )
    for name in foreign:
        if options[name]:
            raise click.UsageError(f"--{name.rstrip('s').replace('_', '-')} is {whose}.{_INSTEAD.get(name, '')}")
    if (options["restart_of"] is None) != (options["restart_from"] is None):
        raise click.UsageError("--restart-of and --restart-from go together.")
    from standfast.stores.protocol import check_session_id

    for name in ("session", "run_key"):
        if options[name] is not None:
            try:
                check_session_id(options[name], f"--{name.replace('_', '-')}")
            except InputError as error:
                raise click.UsageError(f"{error}.") from error


@click.command()
@click.argument("name", callback=agent_name)
@click.option("-m", "--message", help="The user's message to an agent; - reads standard input.")
@click.option(
    "-i", "--input", "given", metavar="JSON", help="Input of a pipeline; @FILE reads a file, - standard input."
)
@click.option("--image", "images", multiple=True, metavar="URL|FILE", help="An image for the message; may be repeated.")
@CONTEXT
@click.option("-s", "--session", help="Session to begin or to continue.  [default: a new one]")
@click.option("--message-id", help="Id of the message, which counts once in its session.")
@click.option("--run-key", help="Key of a pipeline's run, like the session of an agent's run.")
@click.option(
    "--restart-of",
    metavar="RUN_KEY",
    help="An earlier run of the pipeline, whose results are used again, and its input if none is given.",
)
@click.option("--restart-from", metavar="STEP", help="Step at which the new run begins.")
@click.option("--user", help="User to whom the run belongs.  [env: STANDFAST_USER; else the login name]")
@click.option("--tenant", help="Tenant of that user.")
@click.option("--max-iterations", type=click.IntRange(min=1), help="Limit of model calls, instead of the agent's own.")
@click.option("--task-queue", default="standfast", show_default=True, help="Queue of the workers.")
@click.option("--say", is_flag=True, help="Send the message to the session's run, if one is in flight.")
@click.option("-w", "--wait", is_flag=True, help="Wait for the end, and show the result.")
@AUDITED
@partial(on_temporal, check=_check_start)
async def start(
    client: "Client",
    output: Output,
    name: str,
    message: str | None,
    given: str | None,
    wait: bool,
    store: Named | None,
    **options: Any,
) -> None:
    """Start an agent (--message) or a pipeline (--input).

    \b
    standfast start triage -m "ISSUE-42 came in" --session issue-42
    standfast start review --input '{"title": "Draft"}' --wait
    """
    async with store_of_workers(client, output, store, task_queue=options["task_queue"], is_record=True) as trail:
        if message is not None:
            handle = await _start_agent(client, name, message, options, trail)
        else:
            handle = await _start_pipeline(client, name, given, options, trail)
    is_new = handle.first_execution_run_id is not None
    began = "Started" if is_new else "Message sent to" if options["say"] else "Started before:"
    if not wait:
        await tell_if_failed(client, output, handle.id)
        data = {"workflow_id": handle.id, "run_id": handle.first_execution_run_id or handle.run_id, "is_new": is_new}
        output.item(data, lambda: output.line(f"{began} {handle.id}"))
        return
    if output.is_text:
        output.note(f"{began} {handle.id}")
    await _until_ended(client, output, handle.id)


async def _start_agent(client: "Client", name: str, message: str, options: dict[str, Any], trail: Store | None) -> Any:
    from standfast.temporal import OnRecord, start_agent

    return await start_agent(
        client,
        name,
        message=read_text(message),
        message_id=options["message_id"],
        images=[image_of(one) for one in options["images"]],
        session_id=options["session"],
        user_id=who(options["user"]),
        tenant_id=options["tenant"],
        max_iterations=options["max_iterations"],
        context=None if options["context"] is None else read_json_option("--context", options["context"]),
        task_queue=options["task_queue"],
        if_running="message" if options["say"] else "refuse",
        on_record=OnRecord(store=trail, by=who(None)),
    )


async def _start_pipeline(
    client: "Client", name: str, given: str | None, options: dict[str, Any], trail: Store | None
) -> Any:
    from standfast.temporal import OnRecord, start_pipeline

    return await start_pipeline(
        client,
        name,
        input=None if given is None else read_json_option("--input", given),
        run_key=options["run_key"],
        restart_of=options["restart_of"],
        restart_from=options["restart_from"],
        user_id=who(options["user"]),
        tenant_id=options["tenant"],
        task_queue=options["task_queue"],
        on_record=OnRecord(store=trail, by=who(None)),
    )


async def tell_if_failed(client: "Client", output: Output, run: str) -> None:
    """Check how a new run begins: it may fail at once, for example if it refuses its input, or find no worker.

    Raises:
        IncompleteError: it failed; the known facts were written first, for programs.
    """
    from temporalio.service import RPCError

    from standfast.temporal.client.runs.descriptions import described, failed_at_once, listed

    try:
        with suppress(RPCError):  # it was started, even if it cannot be inspected
            if (seen := await failed_at_once(client, run)) is not None:
                output.item(seen, lambda: None)
                raise IncompleteError(shown(f"Run {run} failed at once: {seen.get('error')}"))
            if "worker" in (begun := listed(await described(client, run)))["waiting"]:
                output.note(
                    f"No worker has {begun['type']!r}, so the run waits for a worker: see `standfast pending {run}`."
                )
    except TimeoutError:
        output.note("No worker has begun it yet. Does its queue have one? See `standfast doctor`.")


# --- looking ---


@click.command("ls")
@click.option("--status", help="running, waiting, paused, or how runs ended, such as complete.")
@click.option("--waiting", is_flag=True, help="Runs that wait for a person or a worker.")
@click.option("-t", "--type", "kind", help="Name of an agent or a pipeline.")
@click.option("-s", "--session", help="Runs of a session.")
@click.option("--tenant", help="Runs for a tenant.")
@click.option("--query", help="Further conditions in Temporal's list filter language.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Show at most this many.")
@on_temporal
async def list_runs(client: "Client", output: Output, limit: int, **wanted: Any) -> None:
    """List runs, the latest first."""
    from standfast.temporal.client.runs.descriptions import listed, runs_query

    try:
        query = runs_query(**wanted)
    except InputError as error:
        raise click.UsageError(str(error)) from error
    runs = [listed(run) async for run in client.list_workflows(query, limit=limit)]
    output.rows(
        runs,
        {
            "RUN": lambda run: run["workflow_id"],
            "TYPE": lambda run: run["type"],
            "STATUS": lambda run: run["status"],
            "WAITS FOR": lambda run: ", ".join(run["waiting"]),
            "STARTED": lambda run: ago(run["started"]),
            "ENDED": lambda run: ago(run.get("closed")),
        },
        nothing="No runs match." if any(wanted.values()) else "No runs. Start one with `standfast start`.",
    )


@click.command()
@RUN
@click.option(
    "--messages",
    type=click.IntRange(min=0),
    is_flag=False,
    flag_value=0,
    metavar="[N]",
    help="Also show the messages of its session, from the store: the last N, or all.",
)
@click.option(
    "--audit",
    is_flag=True,
    help="Also show the audit trail from the store: who started, decided, answered, cancelled.",
)
@BOARD
@partial(on_temporal, check=not_in_process)
async def show(client: "Client", output: Output, run: str, messages: int | None, audit: bool, store: Named) -> None:
    """Show the progress of a run, or its result."""
    from standfast.temporal.client.runs.descriptions import looked_at

    if audit or messages is not None:
        async with store_of_workers(client, output, store, run=run):
            pass  # it is opened again below
    try:
        seen = await looked_at(client, run)
    except InputError as error:
        if not audit or not (acts := await acts_of(store, run, {})):
            raise
        output.note(str(error))  # it was never started, or is gone
        output.item({"workflow_id": run, "audit": acts}, lambda: write_acts(output, acts))
        return
    if audit:
        seen |= {"audit": await acts_of(store, run, seen)}
    if messages is None:
        output.item(seen, lambda: _write(output, seen))
        return
    if "session_id" not in seen:
        raise InputError(f"Run {run} does not have a session; the agents that it runs do")
    said = (await transcript(store, seen["session_id"], seen.get("tenant_id")))[1][-messages:]  # -0 leaves all

    def write() -> None:
        _write(output, seen)
        output.line("")
        for message in said:
            write_message(output, message)

    output.item(seen | {"messages": [message.model_dump(mode="json") for message in said]}, write)


@click.command()
@RUN
@partial(on_temporal, check=not_in_process)
async def watch(client: "Client", output: Output, run: str) -> None:
    """Follow a run until it ends.

    Exit code 3 if it does not complete.
    """
    await _until_ended(client, output, run)


async def _until_ended(client: "Client", output: Output, run: str) -> None:
    from standfast.temporal.client.runs.descriptions import DONE, outcome, watched

    seen: JSONObject = {}
    with progress(output) as tell:
        async for seen in watched(client, run):
            if output.form == "jsonl":
                output.item(seen, lambda: None)
            tell(seen)
    if output.form != "jsonl":
        output.item(seen, lambda: _write(output, seen))
    if outcome(seen) not in DONE:
        sys.exit(INCOMPLETE)


class progress:  # noqa: N801  # reads as a verb where it is used
    """Shows a run's activity: on one changing line in a terminal, else as lines."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._before = ""

    def __enter__(self) -> Any:
        console = self._output.errors
        self._live = console.status("") if self._output.is_text and console.is_terminal else None
        if self._live is not None:
            self._live.start()
        return self._tell

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _tell(self, seen: JSONObject) -> None:
        text = " · ".join([seen["workflow_id"], *_doing(seen)])
        if self._live is not None:
            self._live.update(shown(text))
        elif self._output.is_text and text != self._before:
            self._output.note(text)
        self._before = text


def _doing(seen: JSONObject) -> list[str]:
    state = seen.get("state")
    if state is None:
        return [seen["status"], *([seen["unreachable"]] if "unreachable" in seen else [])]
    words = [str(state["status"])]
    if state.get("turn"):
        words.append(f"turn {state['turn']}")
    words += [f"tries again: {_retried(item)}" for item in seen.get("retries", ())]
    if state.get("running"):
        words.append(f"runs {_running(state)}")
    words += [f"waits for {item['kind']} {item['name']}: {item['message']}" for item in state.get("waiting", ())]
    return words


def _retried(item: JSONObject) -> str:
    soon = ago(item.get("next"))
    when = f" (next {soon})" if soon.startswith("in ") else ""
    return f"{item['activity']}, attempt {item['attempt']}: {item['error']}{when}"


def _running(state: JSONObject) -> str:
    """Return the running parts: the tools of an agent, or the steps of a pipeline."""
    return ", ".join(one if isinstance(one, str) else str(one["tool"]) for one in state.get("running", ()))


def _write(output: Output, seen: JSONObject) -> None:
    from standfast.temporal.client.board.waiting_items import read_result
    from standfast.temporal.client.runs.descriptions import outcome

    state, result = seen.get("state") or {}, read_result(seen.get("result"))
    ended = outcome(seen) if "closed" in seen else str(state.get("status", seen["status"]))
    usage = state.get("usage") or result.get("usage")
    output.fields(
        {
            "Run": seen["workflow_id"],
            "Type": seen["type"],
            "Status": ended,
            "Session": seen.get("session_id"),
            "Run key": state.get("run_key") or result.get("run_key"),
            "Tenant": seen.get("tenant_id"),
            "Started": f"{seen['started']} ({ago(seen['started'])} ago)",
            "Ended": seen.get("closed"),
            "Turn": f"{state.get('turn')} of at most {state['max_iterations']}" if "max_iterations" in state else None,
            "Agent": state.get("agent"),
            "Usage": Usage(**usage).in_words if usage else None,
            "Runs": _running(state),
            "Tries again": ", ".join(map(_retried, seen.get("retries", ()))),
            "Error": seen.get("error") or result.get("error") or state.get("error"),
            "No worker": seen.get("unreachable"),
        }
    )
    write_acts(output, seen.get("audit", ()))
    for item in state.get("waiting", ()):
        output.line("")
        write_waiting(output, {**item, "workflow_id": seen["workflow_id"]})
    if text := result.get("response") or result.get("outputs"):
        output.line("")
        output.line(text if isinstance(text, str) else json.dumps(text, ensure_ascii=False, indent=2))


# --- ending ---


@click.command()
@RUN
@click.option("-w", "--wait", is_flag=True, help="Wait until the run has ended.")
@BY
@AUDITED
@on_temporal
async def cancel(client: "Client", output: Output, run: str, wait: bool, by: str | None, store: Named | None) -> None:
    """Cancel a run.

    Finished work is kept, running calls are asked to stop, and nothing new begins.
    """
    from standfast.temporal.client.runs.descriptions import CANCELLED, outcome, watched

    async with on_record(client, output, store) as people:
        await people.cancel(run, by=who(by))
    if not wait:  # a worker cancels it
        told = f"Asked {run} to cancel; `standfast watch {run}` shows when it has ended"
        asked = {"workflow_id": run, "cancelled": True, "status": "asked"}
        output.item(asked, lambda: output.line(told))
        return
    ended = [outcome(seen) async for seen in watched(client, run)][-1]
    is_cancelled = ended in CANCELLED
    told = f"Cancelled {run}" if is_cancelled else f"Run {run} has ended, but was not cancelled: {ended}"
    output.item({"workflow_id": run, "cancelled": is_cancelled, "status": ended}, lambda: output.line(told))


@click.command("export")
@RUN
@click.option(
    "-f", "--file", type=click.Path(dir_okay=False, path_type=Path), help="File to write.  [default: standard output]"
)
@on_temporal
async def export_run(client: "Client", output: Output, run: str, file: Path | None) -> None:
    """Write a run as a checkpoint, plain JSON.

    `import` or `run(checkpoint=…)` continues from it. If the store has the session, the run continues in that session,
    once this run has ended. With another store, cancel this run first, or both will run the next steps. If a run is
    calling a tool, the export waits for the call.
    """
    from standfast.temporal import StandfastClient
    from standfast.temporal.client.runs.descriptions import looked_at

    if away := (await looked_at(client, run)).get("unreachable"):
        output.note(f"{away}. The export waits until one does; Ctrl-C ends it")
    text = (await StandfastClient(client).export(run)).model_dump_json(indent=2)
    if file is None:
        click.echo(text)
        return
    with open(file, "w", opener=private) as written:  # noqa: ASYNC230  # a command does one thing
        written.write(text + "\n")
    output.note(f"Wrote {file}")


@click.command("import")
@click.argument("agent")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("-s", "--session", help="Session to continue.  [default: the exported run's, or a new one]")
@click.option("--user", help="User who owns the session.  [env: STANDFAST_USER; else the login name]")
@click.option("--tenant", help="Tenant of that user.")
@click.option("--task-queue", default="standfast", show_default=True, help="Queue of the workers.")
@AUDITED
@on_temporal
async def import_run(
    client: "Client",
    output: Output,
    agent: str,
    file: str,
    session: str | None,
    user: str | None,
    tenant: str | None,
    task_queue: str,
    store: Named | None,
) -> None:
    """Start a run that continues from a checkpoint.

    FILE is the output of `export`; - reads standard input.
    """
    from standfast.temporal import OnRecord, start_agent

    data = read_json_option("FILE", "-" if file == "-" else f"@{file}")
    if isinstance(data, dict) and "signature" not in data:
        data.pop("session_id", None)  # the run begins a new one
    async with store_of_workers(client, output, store, task_queue=task_queue, is_record=True) as trail:
        handle = await start_agent(
            client,
            agent,
            checkpoint=data,
            session_id=session,
            user_id=who(user),
            tenant_id=tenant,
            task_queue=task_queue,
            on_record=OnRecord(store=trail, by=who(None)),
        )
    await tell_if_failed(client, output, handle.id)
    output.item({"workflow_id": handle.id}, lambda: output.line(f"Started {handle.id}"))
