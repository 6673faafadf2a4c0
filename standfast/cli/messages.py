"""Commands that show people their waiting items, and send their decisions. Each reports whether it counts."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

from standfast.cli.audits import AUDITED, BY, on_record
from standfast.cli.commands import FAILED, on_temporal
from standfast.cli.inputs import image_of, read_json_option, read_text, who
from standfast.cli.outputs import Output, stoppable
from standfast.cli.runs import RUN
from standfast.cli.stores import Named
from standfast.cli.waiting import people_of
from standfast.errors import InputError

if TYPE_CHECKING:
    from temporalio.client import Client

    from standfast.temporal import StandfastClient
    from standfast.temporal.client.runs.resumes import Resumed

_TOLD_EVERY = 5.0  # seconds between two lines about a command's progress


# --- questions, messages ---


@click.command()
@RUN
@click.argument("text", required=False)
@click.option("--call", help="Id of the call that asks.  [default: the first open question]")
@BY
@AUDITED
@on_temporal
async def answer(
    client: "Client", output: Output, run: str, text: str | None, call: str | None, by: str | None, store: Named | None
) -> None:
    """Answer a question of a run.

    Without TEXT the terminal asks for it; - reads standard input.
    """
    if text is None:
        asked = [item for item in await people_of(client).pending(run) if item["kind"] in ("question", "unknown")]
        if not asked:
            raise InputError(f"Run {run} has no open question")
        output.note(next((item["message"] for item in asked if item["name"] == call), asked[0]["message"]))
        with stoppable():
            text = click.prompt("Answer", err=True)
    said = read_text(str(text))
    async with on_record(client, output, store) as people:
        await people.answer(run, said, tool_call_id=call, by=who(by))
    output.item({"workflow_id": run, "answered": True}, lambda: output.line(f"Answered {run}"))


@click.command()
@RUN
@click.argument("text")
@click.option("--image", "images", multiple=True, metavar="URL|FILE", help="An image for the answer; may be repeated.")
@click.option("--message-id", help="Id of the message, which counts once in its session.")
@BY
@AUDITED
@on_temporal
async def message(
    client: "Client",
    output: Output,
    run: str,
    text: str,
    images: tuple[str, ...],
    message_id: str | None,
    by: str | None,
    store: Named | None,
) -> None:
    """Send a message to a run.

    Its agent reads the message before the next model call. TEXT - reads standard input.
    """
    said = read_text(text)
    shown = [image_of(one) for one in images]
    async with on_record(client, output, store) as people:
        await people.message(run, said, images=shown, message_id=message_id, by=who(by))
    output.item({"workflow_id": run, "said": True}, lambda: output.line(f"Message sent to {run}"))


# --- pauses, unknown outcomes ---


def _check_resume(
    *, run: str | None, every: bool, abort: bool, skip: bool, reason: str | None, query: str | None, **of_all: Any
) -> None:
    if (run is None) != every:
        raise click.UsageError("Give RUN, or --all.")
    if not every and (query is not None or of_all["dry_run"] or of_all["yes"]):
        raise click.UsageError("--query, --dry-run and --yes go with --all.")
    if skip and every:
        raise click.UsageError("--skip is for one run.")
    if abort and skip:
        raise click.UsageError("Give one of --abort and --skip.")
    if skip and not reason:
        raise click.UsageError("--skip needs --reason TEXT: the model reads it.")


def _check_resolve(*, happened: str | None, not_happened: bool, leave: bool, **_: Any) -> None:
    if [happened is not None, not_happened, leave].count(True) != 1:
        raise click.UsageError("Give one of --happened JSON, --not-happened and --leave.")


@click.command()
@click.argument("run", required=False)
@click.option("--all", "every", is_flag=True, help="Resume all paused runs of the namespace instead of one.")
@click.option("--query", help="With --all: only those that match, in Temporal's list filter language.")
@click.option("--dry-run", is_flag=True, help="With --all: only list the runs.")
@click.option("-y", "--yes", is_flag=True, help="With --all: do not ask in the terminal.")
@click.option("--abort", is_flag=True, help="Let the run give up instead of trying again.")
@click.option("--skip", is_flag=True, help="Continue without a call or step that no worker has; needs --reason.")
@click.option("--name", "--cause", "name", help="Name of the pause, as `pending` shows it.  [default: all]")
@click.option("--model", help="Continue with this model.")
@click.option("--reason", help="The reason; the model reads it if a call is skipped.")
@BY
@AUDITED
@partial(on_temporal, check=_check_resume)
async def resume(
    client: "Client",
    output: Output,
    run: str | None,
    every: bool,
    query: str | None,
    dry_run: bool,
    yes: bool,
    abort: bool,
    skip: bool,
    name: str | None,
    by: str | None,
    store: Named | None,
    **given: Any,
) -> None:
    """Let a paused run try again, give up, or continue without a call or step that no worker has.

    With --all, do so for all paused runs, those of one cause (--cause model), or those that match --query. The command
    asks first, or needs --yes, and lists the runs that could not be resumed. It can be stopped and run again safely:
    runs that have continued are left alone.
    """
    action: Literal["retry", "abort", "skip"] = "skip" if skip else "abort" if abort else "retry"
    given["by"] = who(by)
    async with on_record(client, output, store) as people:
        if run is None:
            which: dict[str, Any] = {"query": query, "name": name, "dry_run": dry_run, "yes": yes}
            await _resume_all(people, output, "abort" if abort else "retry", **which, **given)
            return
        await people.resume(run, action, name=name, **given)
    output.item({"workflow_id": run, "action": action}, lambda: output.line(f"{run}: {action}"))


@contextmanager
def _counted(output: Output, outcomes: "list[Resumed]", of: int) -> Iterator[Callable[["Resumed"], None]]:
    """Collect the outcomes of runs, and show their number: on one line in a terminal, otherwise every few seconds."""
    live = output.errors.status("") if output.errors.is_terminal else None
    told = time.monotonic()

    def tell(resumed: "Resumed") -> None:
        nonlocal told
        outcomes.append(resumed)
        words = f"{len(outcomes):,} of {of:,} runs"
        if live is not None:
            live.update(words)
        elif time.monotonic() - told > _TOLD_EVERY:
            output.note(words)
            told = time.monotonic()

    with nullcontext() if live is None else live:
        yield tell


async def _resume_all(
    people: "StandfastClient",
    output: Output,
    action: Literal["retry", "abort"],
    *,
    query: str | None,
    name: str | None,
    dry_run: bool,
    yes: bool,
    **given: Any,
) -> None:
    """Resume the paused runs after a confirmation; report how many were resumed, and which were not."""
    from temporalio.service import RPCError

    from standfast.temporal.client.runs.resumes import paused_runs, resume_each

    runs = await paused_runs(people, query=query, name=name)
    if dry_run:
        rows = [{"workflow_id": run} for run in runs]
        output.rows(rows, {"RUN": lambda row: row["workflow_id"]}, nothing="No run is paused.")
        return
    if runs and not yes:
        if not (output.is_text and sys.stdin.isatty()):
            raise InputError(f"{len(runs):,} runs are paused: --yes resumes them, --dry-run shows them")
        with stoppable():
            click.confirm(f"{'Resume' if action == 'retry' else 'Abort'} {len(runs):,} runs?", abort=True)
    outcomes: list[Resumed] = []
    try:
        with _counted(output, outcomes, len(runs)) as tell:
            await resume_each(people, runs, action, name=name, tell=tell, **given)
    except (asyncio.CancelledError, RPCError):
        done = sum(one.outcome == "done" for one in outcomes)
        output.note(f"Stopped: {done:,} of {len(runs):,} resumed. Run the command again for the others.")
        raise
    failed = {one.workflow_id: one.why for one in outcomes if one.outcome == "failed"}
    counts = {of: sum(one.outcome == of for one in outcomes) for of in ("done", "gone")}

    def write() -> None:
        for run, why in failed.items():
            output.line(f"{run}: {why}")
        output.line(
            f"{counts['done']:,} resumed, {counts['gone']:,} no longer paused, {len(failed):,} failed"
            if runs
            else "No run is paused."
        )

    output.item({"resumed": counts["done"], "not_paused": counts["gone"], "failed": failed}, write)
    if failed:
        sys.exit(FAILED)


@click.command()
@RUN
@click.argument("call")
@click.option("--happened", metavar="JSON", help="It happened, with this result (null if it has none).")
@click.option("--not-happened", is_flag=True, help="It did not happen: run it.")
@click.option("--leave", is_flag=True, help="The outcome stays unknown, and the model reads that.")
@click.option("--reason", help="How this is known.")
@BY
@AUDITED
@partial(on_temporal, check=_check_resolve)
async def resolve(
    client: "Client",
    output: Output,
    run: str,
    call: str,
    happened: str | None,
    not_happened: bool,
    leave: bool,
    reason: str | None,
    by: str | None,
    store: Named | None,
) -> None:
    """Settle a call whose outcome is unknown.

    CALL is its id, as `pending` shows it.
    """
    decision: Literal["happened", "not-happened", "leave"] = (
        "happened" if happened is not None else "not-happened" if not_happened else "leave"
    )
    result = None if happened is None else read_json_option("--happened", happened)
    async with on_record(client, output, store) as people:
        await people.resolve(run, call, decision, result=result, by=who(by), reason=reason)
    output.item(
        {"workflow_id": run, "call": call, "decision": decision}, lambda: output.line(f"{call} of {run}: {decision}")
    )
