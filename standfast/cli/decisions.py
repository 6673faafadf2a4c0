"""The commands `approve` and `reject`, which decide on one or several gates of a run."""

import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

from standfast.cli.audits import BY
from standfast.cli.commands import on_temporal
from standfast.cli.inputs import read_json_option, who
from standfast.cli.outputs import Output, stoppable
from standfast.cli.runs import RUN
from standfast.cli.standing import ANY, AT_MOST, REMEMBER, UNTIL, wish_of
from standfast.cli.stores import BOARD, Named, needs_server, store_of_workers
from standfast.cli.waiting import people_of, whole_item, write_waiting
from standfast.errors import InputError, StandfastError
from standfast.messages import JSONObject

if TYPE_CHECKING:
    from temporalio.client import Client

    from standfast.temporal import StandfastClient

Item = JSONObject
DIGEST = click.option(
    "--digest",
    "digests",
    multiple=True,
    help="Digest of the reviewed contents, as `pending` shows it; refused if they have changed. One for each GATE, in "
    "order.",
)
COMMENT = click.option("--comment", help="The reason, for the audit trail; the model reads it if this is a rejection.")
GATES = click.argument("gates", metavar="[GATE]...", nargs=-1)


@click.command()
@RUN
@GATES
@BY
@COMMENT
@click.option("--edit", metavar="JSON", help="Approve these arguments instead, given in full; @FILE reads a file.")
@DIGEST
@REMEMBER
@UNTIL
@ANY
@AT_MOST
@click.option("-y", "--yes", is_flag=True, help="Do not ask in the terminal.")
@BOARD
@partial(on_temporal, needs_server=needs_server)
async def approve(
    client: "Client",
    output: Output,
    run: str,
    gates: tuple[str, ...],
    digests: tuple[str, ...],
    edit: str | None,
    scope: str | None,
    until: str,
    anything: tuple[str, ...],
    at_most: tuple[str, ...],
    yes: bool,
    store: Named,
    **given: Any,
) -> None:
    """Approve at gates of a run, after showing their contents.

    For each gate, the terminal shows the contents (over 16 KB, from the store) and asks for confirmation. A script, a
    pipe or -o json cannot ask: pass --digest of the contents that were reviewed, or --yes to approve without a review.
    Contents over 16 KB then need their --digest.

    GATE is the path of a step or the id of a tool call, as `pending` shows it. It may be omitted if only one waits.
    Several gates are decided independently, and refused ones are named at the end.

    Waiting items are read from the board in the store, without a worker. If no worker answers, the decision was sent
    and may count later; the command then reports that, and fails.

    --remember also approves later calls of the tool, if its Approval allows that: calls with exactly these arguments,
    except as --any and --at-most allow. `standfast standing` lists and ends such approvals.
    """
    wish = wish_of(scope, until, anything, at_most)
    async with store_of_workers(client, output, store, run=run) as board:
        people = people_of(client, board)
        chosen = await _chosen(people, run, gates, digests)
        changed = None if edit is None else read_json_option("--edit", edit)
        if changed is not None and len(chosen) > 1:
            raise InputError("--edit is for one gate: name one")
        asks = output.is_text and not yes and sys.stdin.isatty()
        for at, (item, digest) in enumerate(chosen):
            if asks:
                chosen[at] = (item if digest is not None else _shown_whole(await whole_item(item, store)), digest)
            elif digest is None:
                _check_unseen(item, run, yes=yes)
        for item, _ in chosen if asks else ():
            write_waiting(output, {**item, "workflow_id": run})
            if changed is not None:
                output.line(f"  Instead: {edit}")
            with stoppable():
                later = "" if wish is None else f", and later calls like it of the {wish['scope']} until {until}"
                click.confirm(f"Approve{later}?", abort=True)
        await _decide(people, output, run, chosen, "approve", edit=changed, remember=wish, **given)


@click.command()
@RUN
@GATES
@BY
@COMMENT
@DIGEST
@BOARD
@partial(on_temporal, needs_server=needs_server)
async def reject(
    client: "Client",
    output: Output,
    run: str,
    gates: tuple[str, ...],
    digests: tuple[str, ...],
    store: Named,
    **given: Any,
) -> None:
    """Reject at gates of a run.

    GATE is the path of a step or the id of a tool call, as `pending` shows it. It may be omitted if only one waits.
    Several gates are decided independently, and refused ones are named at the end.

    Waiting items are read from the board in the store, without a worker. If no worker answers, the decision was sent
    and may count later; the command then reports that, and fails.
    """
    async with store_of_workers(client, output, store, run=run) as board:
        people = people_of(client, board)
        await _decide(people, output, run, await _chosen(people, run, gates, digests), "reject", **given)


def _check_unseen(item: Item, run: str, *, yes: bool) -> None:
    """Refuse to approve unreviewed contents, unless the caller waives the review."""
    from standfast.temporal.client.board.gate_contents import is_cut

    if is_cut(item):
        raise InputError(
            f"Gate {item['name']} shows {item['size']:,} bytes, which were not shown here: review them with "
            "`standfast pending --full -o json`, and pass the digest shown there as --digest"
        )
    if not yes:
        raise InputError(
            f"Cannot ask here whether to approve {item['name']} of {run}: pass the digest from "
            "`standfast pending -o json` as --digest, or --yes to approve it without a review"
        )


def _shown_whole(item: Item) -> Item:
    """Return an item, unless it has contents that cannot be shown in full."""
    left = [one["label"] for one in item.get("shown", ()) if one["kind"] == "left-out"]
    if left:
        raise InputError(
            f"Gate {item['name']}: {', '.join(left)} cannot be shown in full. Let the gate define with show= what "
            "people see; or review it elsewhere, and pass the digest from `pending` as --digest"
        )
    return item


async def _chosen(
    people: "StandfastClient", run: str, gates: tuple[str, ...], digests: tuple[str, ...]
) -> list[tuple[Item, str | None]]:
    """Return the named gates, or the only one that waits, each with its given digest."""
    waits = [item for item in await people.pending(run) if item["kind"] == "approval"]
    names = ", ".join(item["name"] for item in waits)
    if not gates and len(waits) != 1:
        raise InputError(
            f"Run {run} waits for {len(waits)} approvals; name one of {names}"
            if waits
            else f"Run {run} does not wait for an approval"
        )
    by_name = {item["name"]: item for item in waits}
    for gate in gates:
        if gate not in by_name:
            raise InputError(f"Run {run} does not wait for an approval {gate!r}; open: {names or 'none'}")
    chosen = [by_name[gate] for gate in dict.fromkeys(gates)] or waits
    if digests and len(digests) != len(chosen):
        raise InputError(f"{len(digests)} --digest for {len(chosen)} gates: pass one for each, in the same order")
    return list(zip(chosen, digests or [None] * len(chosen), strict=True))


async def _decide(
    people: "StandfastClient",
    output: Output,
    run: str,
    chosen: list[tuple[Item, str | None]],
    decision: Literal["approve", "reject"],
    **given: Any,
) -> None:
    """Decide on each gate's shown contents; a refused decision does not block the others."""
    from standfast.temporal.client.runs.decisions import Choice, decide_each

    by, word = who(given.pop("by")), "Approved" if decision == "approve" else "Rejected"
    choices = [Choice(run, item["name"], digest or item.get("digest")) for item, digest in chosen]
    done: list[Item] = []
    refused: list[str] = []
    each = await decide_each(people, choices, decision, by=by, **given)
    for (item, _), decided in zip(chosen, each, strict=True):
        gate = decided.choice.gate
        if decided.error is not None:
            if len(chosen) == 1:
                raise decided.error
            refused.append(str(decided.error))
            continue
        note = {} if decided.note is None else {"note": decided.note}
        left = await _left(people, run, gate) if decision == "approve" and "quorum" in item else {}
        named = {"name": gate, "gate": gate}  # as `pending` and as `decide` call it
        done.append({"workflow_id": run, **named, "decision": decision, "by": by, **note, **left})
        if output.is_text:
            counted = f": {len(left['approved_by'])} of {left['quorum']} approvals" if left else ""
            output.line(
                f"{word} {gate} of {run}, by {by}{counted}{'' if decided.note is None else f'. {decided.note}'}"
            )
    if len(chosen) == 1:
        output.item(done[0], lambda: None)
    elif not output.is_text:
        output.rows(done, {}, nothing="")
    if refused:
        raise InputError(f"{len(refused)} of {len(chosen)} gates were not decided: {'; '.join(refused)}")


async def _left(people: "StandfastClient", run: str, gate: str) -> Item:
    """Return who has approved at a gate that needs more approvals, and their required number; empty when complete."""
    from standfast.runtime.stored_gates import is_in_process
    from standfast.temporal import StandfastClient

    # The run itself is queried: the board in the store may be a moment behind it.
    asked = people if is_in_process(run) else StandfastClient(people.client)
    with suppress(StandfastError):
        for item in await asked.pending(run):
            if item["name"] == gate and "quorum" in item:
                return {"approved_by": item["approved_by"], "quorum": item["quorum"]}
    return {}
