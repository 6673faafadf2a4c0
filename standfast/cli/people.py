"""Commands that show people what waits for them, and send their decisions. Each says whether it counts."""

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

from standfast.cli.audits import AUDITED, BY, on_record
from standfast.cli.commands import on_temporal
from standfast.cli.inputs import image_of, read_json_option, read_text, who
from standfast.cli.outputs import Output, stoppable
from standfast.cli.runs import RUN
from standfast.cli.stores import STORED
from standfast.cli.waiting import people_of, whole_item
from standfast.cli.waiting_items import write_waiting
from standfast.errors import InputError

if TYPE_CHECKING:
    from temporalio.client import Client


DIGEST = click.option(
    "--digest", help="Digest of what was looked at, as `pending` shows it; refused if it has changed."
)
COMMENT = click.option("--comment", help="The reason, for the audit trail; the model reads it if this is a rejection.")


@click.command()
@RUN
@click.argument("gate", required=False)
@BY
@COMMENT
@click.option("--edit", metavar="JSON", help="Approve these arguments instead, given in full; @FILE reads a file.")
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
    """Approve at a gate of a run, after showing what is approved.

    The terminal shows what would be approved (with arguments over 16 KB from the store) and asks. In a script, in a
    pipe or with -o json nobody can be asked: --digest then says what was looked at, or --yes that nobody needs to
    look. Arguments over 16 KB then need their --digest.

    GATE is the path of a step or the id of a tool call, as `pending` shows it. It may be omitted if only one waits.
    """
    from standfast.temporal.client.asked import is_cut

    item = await _gate(client, run, gate)
    changed = None if edit is None else read_json_option("--edit", edit)
    asks = output.is_text and not yes and sys.stdin.isatty()
    if not asks and given["digest"] is None:
        if is_cut(item):
            raise InputError(
                f"Gate {item['name']} shows {item['size']:,} bytes, which nobody has seen here: look at "
                "them with `standfast pending --full -o json`, and give the digest shown there as --digest"
            )
        if not yes:
            raise InputError(
                f"Nobody can be asked here whether to approve {item['name']} of {run}: give the digest that "
                "`standfast pending -o json` shows for it as --digest, or --yes to approve whatever waits there"
            )
    if asks:
        if given["digest"] is None:
            item = await whole_item(item, store)
            _check_whole(item)
        write_waiting(output, {**item, "workflow_id": run})
        if changed is not None:
            output.line(f"  Instead: {edit}")
        with stoppable():
            click.confirm("Approve?", abort=True)
    given["digest"] = given["digest"] or item.get("digest")  # that of the item shown here
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

    GATE is the path of a step or the id of a tool call, as `pending` shows it. It may be omitted if only one waits.
    """
    item = await _gate(client, run, gate)
    given["digest"] = given["digest"] or item.get("digest")
    await _decide(client, output, run, item["name"], "reject", **given)


def _check_whole(item: dict[str, Any]) -> None:
    """Refuse to ask about what cannot be shown whole."""
    left = [one["label"] for one in item.get("shown", ()) if one["kind"] == "left-out"]
    if left:
        raise InputError(
            f"Gate {item['name']}: {', '.join(left)} cannot be shown whole. Let the gate say with show= what people "
            "see of it; or look at it elsewhere, and give the digest that `pending` shows as --digest"
        )


async def _gate(client: "Client", run: str, gate: str | None) -> dict[str, Any]:
    waits = [item for item in await people_of(client).pending(run) if item["kind"] == "approval"]
    named = waits if gate is None else [item for item in waits if item["name"] == gate]
    if len(named) == 1:
        return named[0]
    names = ", ".join(item["name"] for item in waits)
    if gate is not None:
        raise InputError(f"Run {run} does not wait for an approval {gate!r}; open: {names or 'none'}")
    raise InputError(
        f"Run {run} waits for {len(waits)} approvals; name one of {names}"
        if waits
        else f"Run {run} does not wait for an approval"
    )


async def _decide(
    client: "Client", output: Output, run: str, gate: str, decision: Literal["approve", "reject"], **given: Any
) -> None:
    by = who(given.pop("by"))
    await people_of(client).decide(run, gate, decision, by=by, **given)
    word = "Approved" if decision == "approve" else "Rejected"
    output.item(
        {"workflow_id": run, "gate": gate, "decision": decision, "by": by},
        lambda: output.line(f"{word} {gate} of {run}, by {by}"),
    )


# --- questions, messages ---


@click.command()
@RUN
@click.argument("text", required=False)
@click.option("--call", help="Id of the call that asks.  [default: the first open question]")
@BY
@AUDITED
@on_temporal
async def answer(
    client: "Client", output: Output, run: str, text: str | None, call: str | None, by: str | None, store: str | None
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
    async with on_record(client, store) as people:
        await people.answer(run, said, tool_call_id=call, by=who(by))
    output.item({"workflow_id": run, "answered": True}, lambda: output.line(f"Answered {run}"))


@click.command()
@RUN
@click.argument("text")
@click.option(
    "--image", "images", multiple=True, metavar="URL|FILE", help="An image to go with the answer; may be repeated."
)
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
    shown = [image_of(one) for one in images]
    async with on_record(client, store) as people:
        await people.message(run, said, images=shown, by=who(by))
    output.item({"workflow_id": run, "said": True}, lambda: output.line(f"Said to {run}"))


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
@click.option("--abort", is_flag=True, help="Let the run give up instead of trying again.")
@click.option("--skip", is_flag=True, help="Continue without a call or step that no worker has; needs --reason.")
@click.option("--name", help="Name of the pause, as `pending` shows it.  [default: all]")
@click.option("--model", help="Continue with this model.")
@click.option("--reason", help="The reason; the model reads it if a call is skipped.")
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
    """Let a paused run try again, give up, or continue without a call or step that no worker has."""
    action: Literal["retry", "abort", "skip"] = "skip" if skip else "abort" if abort else "retry"
    async with on_record(client, store) as people:
        await people.resume(run, action, name=name, model=model, by=who(by), reason=reason)
    output.item({"workflow_id": run, "action": action}, lambda: output.line(f"{run}: {action}"))


@click.command()
@RUN
@click.argument("call")
@click.option("--happened", metavar="JSON", help="It happened, with this result (null if it has none).")
@click.option("--not-happened", is_flag=True, help="It did not happen: run it.")
@click.option("--leave", is_flag=True, help="Nobody knows; the model is told so.")
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
    store: str | None,
) -> None:
    """Settle a call whose outcome is unknown.

    CALL is its id, as `pending` shows it.
    """
    decision: Literal["happened", "not-happened", "leave"] = (
        "happened" if happened is not None else "not-happened" if not_happened else "leave"
    )
    result = None if happened is None else read_json_option("--happened", happened)
    async with on_record(client, store) as people:
        await people.resolve(run, call, decision, result=result, by=who(by), reason=reason)
    output.item(
        {"workflow_id": run, "call": call, "decision": decision}, lambda: output.line(f"{call} of {run}: {decision}")
    )
