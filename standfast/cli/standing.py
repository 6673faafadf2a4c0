"""`standfast standing`: lists standing approvals, by which later calls are approved in advance, and ends them."""

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click

from standfast.agent_loop import pattern_in_words
from standfast.cli.audits import BY
from standfast.cli.commands import with_output
from standfast.cli.inputs import who
from standfast.cli.outputs import Output
from standfast.cli.stores import STORED, existing_store
from standfast.runtime.standing_approvals import revoke
from standfast.stores import StandingApproval, StandingFilter

REMEMBER = click.option(
    "--remember",
    "scope",
    type=click.Choice(["run", "session", "agent"]),
    help="Approve later calls like this one, too: of the run, of its session, or of all runs of the agent.",
)
UNTIL = click.option(
    "--until", metavar="TIME", default="1d", show_default=True, help="When --remember ends: 7d, or a time."
)
ANY = click.option("--any", "anything", metavar="ARG", multiple=True, help="With --remember: ARG may be anything.")
AT_MOST = click.option(
    "--at-most", metavar="ARG=NUMBER", multiple=True, help="With --remember: ARG may be at most this number."
)


def wish_of(
    scope: str | None, until: str, anything: tuple[str, ...], at_most: tuple[str, ...]
) -> dict[str, Any] | None:
    """Return what is to be approved beside the call, from the options of `approve`; None if nothing is."""
    if scope is None:
        if anything or at_most:
            raise click.UsageError("--any and --at-most go with --remember")
        return None
    arguments: dict[str, Any] = {name: {} for name in anything}
    for one in at_most:
        name, _, number = one.partition("=")
        try:
            most = json.loads(number)
        except ValueError:
            most = None
        if not name or isinstance(most, bool) or not isinstance(most, int | float):
            raise click.UsageError(f"--at-most must be like amount=100, got {one!r}")
        arguments[name] = {"maximum": most}
    return {"scope": scope, "until": until, "arguments": arguments}


@click.group()
def standing() -> None:
    """List standing approvals, by which later calls are approved in advance, and end them."""


@standing.command("list")
@click.option("--agent", help="Only those for an agent.")
@click.option("--tenant", help="Only those for a tenant.")
@click.option("--all", "also_ended", is_flag=True, help="Also those that have ended.")
@STORED
@with_output
def list_standing(output: Output, store: str, agent: str | None, tenant: str | None, also_ended: bool) -> None:
    """List standing approvals, the last given first: who has approved which calls, how far and until when."""
    wanted = StandingFilter(agent=agent, tenant_id=tenant, in_force_at=None if also_ended else datetime.now(UTC))
    found = asyncio.run(_listed(store, wanted))
    columns = {
        "ID": lambda row: row["id"],
        "Tool": lambda row: f"{row['agent']}: {row['tool']}",
        "Scope": lambda row: row["scope"],
        "By": lambda row: row["given_by"],
        "Until": lambda row: row["expires_at"],
        "Used": lambda row: str(row["used"]),
        "Arguments": lambda row: arguments_in_words(row["arguments"]),
        "Ended": lambda row: (
            "" if row.get("revoked_at") is None else f"revoked by {row.get('revoked_by') or 'somebody'}"
        ),
    }
    output.rows(found, columns, nothing="There are no standing approvals.")


@standing.command("revoke")
@click.argument("approval", metavar="ID")
@BY
@STORED
@with_output
def revoke_standing(output: Output, approval: str, by: str | None, store: str) -> None:
    """End a standing approval: no call passes by it any more that is not approved yet."""
    ended = asyncio.run(_revoked(store, approval, who(by)))
    output.item(
        ended.model_dump(mode="json"),
        lambda: output.line(f"{ended.id} was revoked by {ended.revoked_by or 'somebody'} at {ended.revoked_at}"),
    )


async def _listed(address: str, wanted: StandingFilter) -> list[dict[str, Any]]:
    async with existing_store(address) as store:
        return [one.model_dump(mode="json") for one in await store.standing_approvals(wanted)]


async def _revoked(address: str, approval: str, by: str) -> StandingApproval:
    async with existing_store(address) as store:
        return await revoke(store, approval, by)


def arguments_in_words(arguments: Mapping[str, Any]) -> str:
    """Return what the arguments of later calls may be, for people."""
    return ", ".join(f"{name} {pattern_in_words(one)}" for name, one in arguments.items()) or "none"
