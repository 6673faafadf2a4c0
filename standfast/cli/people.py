"""Commands of people: what waits for them, and what they say to it. Each says whether it counts."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from standfast.cli.audits import AUDITED, BY, put_on_record
from standfast.cli.commands import on_temporal
from standfast.cli.inputs import image_of, read_json_option, read_text, who
from standfast.cli.outputs import Output, ago, stoppable
from standfast.cli.runs import RUN, tell_if_failed, write_waiting
from standfast.cli.sessions import STORED, opened
from standfast.errors import InputError
from standfast.stores.private_files import private

if TYPE_CHECKING:
    from temporalio.client import Client

    from standfast.temporal import StandfastClient

DIGEST = click.option("--digest", help="Of what was looked at, as `pending` shows it: refused if it has changed since.")
COMMENT = click.option("--comment", help="Why; it stands in the audit trail, and the model reads that of a rejection.")


def _people(client: "Client") -> "StandfastClient":
    from standfast.temporal import StandfastClient

    return StandfastClient(client)


@click.command()
@click.argument("run", required=False)
@click.option("--full", is_flag=True, help="Read all of large arguments from the store.")
@STORED
@on_temporal
async def pending(client: "Client", output: Output, run: str | None, full: bool, store: str) -> None:
    """Show what waits for people, of one RUN or of all."""
    people = _people(client)
    if run is None:
        items = await people.waiting()
    else:
        items = [{**item, "workflow_id": run} for item in await people.pending(run)]
    if full:
        items = [await _whole(item, store) for item in items]
    if not output.is_text or (run is None and len(items) > 1):
        output.rows(
            items,
            {
                "RUN": lambda item: item["workflow_id"],
                "KIND": lambda item: item["kind"],
                "NAME": lambda item: item["name"],
                "WHAT": lambda item: item["message"],
                "SINCE": lambda item: ago(item.get("since")),
                "UNTIL": lambda item: ago(item.get("deadline")),
            },
            nothing="Nothing waits.",
        )
        return
    if not items:
        output.note("Nothing waits.")
    for item in items:
        write_waiting(output, item)


# --- approvals ---


@click.command()
@RUN
@click.argument("gate", required=False)
@BY
@COMMENT
@click.option(
    "--edit", metavar="JSON", help="Approve this in place of what is shown: all arguments anew; @FILE reads a file."
)
@DIGEST
@click.option("-y", "--yes", is_flag=True, help="Do not ask in the terminal.")
@STORED
@on_temporal
async def approve(
    client: "Client",
    output: Output,
    run: str,
    gate: str | None,
    edit: str | None,
    yes: bool,
    store: str,
    **given: Any,
) -> None:
    """Approve at a gate of a run.

    What is approved is shown in the terminal, arguments over 16 KB from the store, and asked about. Where nobody can be
    asked, in a script, a pipe or with -o json, --digest says what was looked at, or --yes that nobody needs to look;
    arguments over 16 KB are then approved by their --digest alone.

    GATE is the path of a step, or the id of a tool call, as `pending` shows it; it may be left out if only one waits.
    """
    item = await _gate(client, run, gate)
    changed = None if edit is None else read_json_option("--edit", edit)
    asks = output.is_text and not yes and sys.stdin.isatty()
    if not asks and given["digest"] is None:
        if _is_cut(item):
            raise InputError(
                f"Call {item['name']} has {item['size']:,} bytes of arguments, which nobody has seen here: look at "
                "them with `standfast pending --full -o json`, and give the digest that stands beside them as --digest"
            )
        if not yes:
            raise InputError(
                f"Nobody can be asked here whether to approve {item['name']} of {run}: give the digest that "
                "`standfast pending -o json` shows for it as --digest, or --yes to approve whatever waits there"
            )
    if asks:
        if given["digest"] is None:
            item = await _whole(item, store)
        write_waiting(output, {**item, "workflow_id": run})
        if changed is not None:
            output.line(f"  In its place: {edit}")
        with stoppable():
            click.confirm("Approve?", abort=True)
    given["digest"] = given["digest"] or item.get("digest")  # of what was shown here
    await _decide(client, output, run, item["name"], "approve", edit=changed, **given)


@click.command()
@RUN
@click.argument("gate", required=False)
@BY
@COMMENT
@DIGEST
@on_temporal
async def reject(client: "Client", output: Output, run: str, gate: str | None, **given: Any) -> None:
    """Reject at a gate of a run.

    GATE is the path of a step, or the id of a tool call, as `pending` shows it; it may be left out if only one waits.
    """
    item = await _gate(client, run, gate)
    given["digest"] = given["digest"] or item.get("digest")
    await _decide(client, output, run, item["name"], "reject", **given)


async def _whole(item: dict[str, Any], path: str) -> dict[str, Any]:
    """Return what waits with all arguments, which the store has where they are large."""
    if not _is_cut(item):
        return item
    from standfast.temporal.client.asked import load_arguments

    async with opened(path) as store:
        return {**item, "arguments": await load_arguments(store, item)}


def _is_cut(item: dict[str, Any]) -> bool:
    return "reference" in item


async def _gate(client: "Client", run: str, gate: str | None) -> dict[str, Any]:
    waits = [item for item in await _people(client).pending(run) if item["kind"] == "approval"]
    named = waits if gate is None else [item for item in waits if item["name"] == gate]
    if len(named) == 1:
        return named[0]
    names = ", ".join(item["name"] for item in waits)
    if gate is not None:
        raise InputError(f"Run {run} waits for no approval {gate!r}; open: {names or 'none'}")
    raise InputError(f"Run {run} waits for {len(waits)} approvals; name one of {names}" if waits else
                     f"Run {run} waits for no approval")  # fmt: skip


async def _decide(
    client: "Client", output: Output, run: str, gate: str, decision: Literal["approve", "reject"], **given: Any
) -> None:
    by = who(given.pop("by"))
    await _people(client).decide(run, gate, decision, by=by, **given)
    word = "Approved" if decision == "approve" else "Rejected"
    output.item(
        {"workflow_id": run, "gate": gate, "decision": decision, "by": by},
        lambda: output.line(f"{word} {gate} of {run}, by {by}"),
    )


# --- questions, messages ---


@click.command()
@RUN
@click.argument("text", required=False)
@click.option("--call", help="Id of the call that asks; the first open question if left out.")
@BY
@AUDITED
@on_temporal
async def answer(
    client: "Client", output: Output, run: str, text: str | None, call: str | None, by: str | None, store: str | None
) -> None:
    """Answer a question of a run.

    Without TEXT it is asked for in the terminal; - reads standard input.
    """
    if text is None:
        asked = [item for item in await _people(client).pending(run) if item["kind"] in ("question", "unknown")]
        if not asked:
            raise InputError(f"Run {run} asks nothing")
        output.note(next((item["message"] for item in asked if item["name"] == call), asked[0]["message"]))
        with stoppable():
            text = click.prompt("Answer", err=True)
    said = read_text(str(text))
    await _people(client).answer(run, said, tool_call_id=call, by=who(by))
    output.item({"workflow_id": run, "answered": True}, lambda: output.line(f"Answered {run}"))
    await put_on_record(client, output, store, run, "answer", by=who(by), of=call or "", comment=said)


@click.command()
@RUN
@click.argument("text")
@click.option("--image", "images", multiple=True, metavar="URL|FILE", help="An image beside it; may be repeated.")
@BY
@AUDITED
@on_temporal
async def message(
    client: "Client", output: Output, run: str, text: str, images: tuple[str, ...], by: str | None, store: str | None
) -> None:
    """Say something to a run.

    Its agent hears it before it calls the model again. TEXT - reads standard input.
    """
    said = read_text(text)
    await _people(client).message(run, said, images=[image_of(one) for one in images], by=who(by))
    output.item({"workflow_id": run, "said": True}, lambda: output.line(f"Said to {run}"))
    await put_on_record(client, output, store, run, "message", by=who(by), comment=said)


# --- pauses, unknown outcomes ---


def _check_resume(*, abort: bool, skip: bool, reason: str | None, **_: Any) -> None:
    if abort and skip:
        raise click.UsageError("Give one of --abort and --skip.")
    if skip and not reason:
        raise click.UsageError("--skip needs --reason TEXT: the model reads it.")


def _check_resolve(*, happened: str | None, not_happened: bool, leave: bool, **_: Any) -> None:
    if [happened is not None, not_happened, leave].count(True) != 1:
        raise click.UsageError("Give one of --happened JSON, --not-happened and --leave.")


@click.command()
@RUN
@click.option("--abort", is_flag=True, help="Let the run give up, in place of trying again.")
@click.option("--skip", is_flag=True, help="Go on without a call or step that no worker has; needs --reason.")
@click.option("--name", help="Of what waits, as `pending` shows it.")
@click.option("--model", help="Go on with this model.")
@click.option("--reason", help="Why; the model reads that of a skip.")
@BY
@AUDITED
@partial(on_temporal, check=_check_resume)
async def resume(
    client: "Client",
    output: Output,
    run: str,
    abort: bool,
    skip: bool,
    name: str | None,
    model: str | None,
    reason: str | None,
    by: str | None,
    store: str | None,
) -> None:
    """Let a paused run try again, or give up; or go on without what no worker has."""
    action: Literal["retry", "abort", "skip"] = "skip" if skip else "abort" if abort else "retry"
    await _people(client).resume(run, action, name=name, model=model, by=who(by), reason=reason)
    output.item({"workflow_id": run, "action": action}, lambda: output.line(f"{run}: {action}"))
    why = ": ".join(filter(None, [model and f"with the model {model}", reason])) or None
    await put_on_record(client, output, store, run, "abort" if abort else "resume", by=who(by), comment=why)


@click.command()
@RUN
@click.argument("call")
@click.option("--happened", metavar="JSON", help="It happened, with this result (null if it has none).")
@click.option("--not-happened", is_flag=True, help="It did not, and is run.")
@click.option("--leave", is_flag=True, help="Nobody knows: the model is told so.")
@click.option("--reason", help="How it is known.")
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
    store: str | None,
) -> None:
    """Say what became of a call of unknown outcome.

    CALL is its id, as `pending` shows it.
    """
    decision: Literal["happened", "not-happened", "leave"] = (
        "happened" if happened is not None else "not-happened" if not_happened else "leave"
    )
    result = None if happened is None else read_json_option("--happened", happened)
    await _people(client).resolve(run, call, decision, result=result, by=who(by), reason=reason)
    output.item({"workflow_id": run, "call": call, "decision": decision},
                lambda: output.line(f"{call} of {run}: {decision}"))  # fmt: skip
    why = ": ".join(filter(None, [decision, happened, reason]))
    await put_on_record(client, output, store, run, "resolve", by=who(by), of=call, comment=why)


# --- checkpoints ---


@click.command("export")
@RUN
@click.option(
    "-f", "--file", type=click.Path(dir_okay=False, path_type=Path), help="Where to; standard output if left out."
)
@on_temporal
async def export_run(client: "Client", output: Output, run: str, file: Path | None) -> None:
    """Write a run as a checkpoint, plain JSON.

    `import` or `run(checkpoint=…)` goes on from it. With the same store that is in the same session, once this run has
    ended. Elsewhere cancel this run first: two would do later things twice. A run that calls a tool is exported when
    that is done.
    """
    text = (await _people(client).export(run)).model_dump_json(indent=2)
    if file is None:
        click.echo(text)
        return
    with open(file, "w", opener=private) as written:  # noqa: ASYNC230  # a command does one thing
        written.write(text + "\n")
    output.note(f"Wrote {file}")


@click.command("import")
@click.argument("agent")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("-s", "--session", help="The session; that of the exported run if left out, or a new one.")
@click.option("--user", help="Whose it is.  [env: STANDFAST_USER; else the login name]")
@click.option("--tenant", help="For whom.")
@click.option("--task-queue", default="standfast", show_default=True, help="Queue of the workers.")
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
) -> None:
    """Start a run that goes on from a checkpoint.

    FILE has what `export` wrote; - is standard input.
    """
    from standfast.temporal import start_agent

    data = read_json_option("FILE", "-" if file == "-" else f"@{file}")
    if isinstance(data, dict) and "signature" not in data:
        data.pop("session_id", None)  # it begins another one
    handle = await start_agent(
        client, agent, checkpoint=data, session_id=session, user_id=who(user), tenant_id=tenant, task_queue=task_queue
    )
    await tell_if_failed(client, output, handle.id)
    output.item({"workflow_id": handle.id}, lambda: output.line(f"Started {handle.id}"))
