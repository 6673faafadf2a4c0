"""Commands that show people what waits for them, and send their decisions. Each says whether it counts."""

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

from standfast.cli.audits import AUDITED, BY, on_record
from standfast.cli.commands import on_temporal
from standfast.cli.inputs import image_of, read_json_option, read_text, who
from standfast.cli.outputs import Output, stoppable
from standfast.cli.runs import RUN
from standfast.cli.waiting import people_of
from standfast.errors import InputError

if TYPE_CHECKING:
    from temporalio.client import Client


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
