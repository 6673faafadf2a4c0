"""`standfast standing`: lists and ends standing approvals, which approve later calls in advance."""

import asyncio
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import click

from standfast.agent_loop import pattern_in_words
from standfast.cli.audits import BY
from standfast.cli.commands import with_output
from standfast.cli.inputs import who
from standfast.cli.listening import people_in
from standfast.cli.outputs import Output
from standfast.cli.stores import BOARD, Named, existing_store
from standfast.errors import InputError
from standfast.messages import JSONObject
from standfast.runtime.standing_approvals import revoke
from standfast.stores import StandingApproval, StandingFilter

REMEMBER = click.option(
    "--remember",
    "scope",
    type=click.Choice(["run", "session", "agent"]),
    help="Also approve later calls like this one: of the run, of its session, or of all runs of the agent.",
)
UNTIL = click.option(
    "--until", metavar="TIME", default="1d", show_default=True, help="When --remember ends: 7d, or a time."
)
ANY = click.option("--any", "anything", metavar="ARG", multiple=True, help="With --remember: ARG may be anything.")
AT_MOST = click.option(
    "--at-most", metavar="ARG=NUMBER", multiple=True, help="With --remember: ARG may be at most this number."
)


def wish_of(scope: str | None, until: str, anything: tuple[str, ...], at_most: tuple[str, ...]) -> JSONObject | None:
    """Return the standing approval that the options of `approve` ask for; None without one."""
    if scope is None:
        if anything or at_most:
            raise click.UsageError("--any and --at-most go with --remember")
        return None
    arguments: JSONObject = {name: {} for name in anything}
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
    """List and end standing approvals, which approve later calls in advance."""


PEOPLE = click.option(
    "--people",
    metavar="FILE.toml",
    type=click.Path(exists=True, dir_okay=False),
    help="The people of the page; also shows which givers have left or may no longer approve.",
)


@standing.command("list")
@click.option("--agent", help="Only those for an agent.")
@click.option("--tenant", help="Only those for a tenant.")
@click.option("--all", "also_ended", is_flag=True, help="Also those that have ended.")
@PEOPLE
@BOARD
@with_output
def list_standing(
    output: Output, store: Named, agent: str | None, tenant: str | None, also_ended: bool, people: str | None
) -> None:
    """List standing approvals, the latest first: who has approved which calls, in which scope and until when."""
    why = _outdated(people)
    wanted = StandingFilter(agent=agent, tenant_id=tenant, in_force_at=None if also_ended else datetime.now(UTC))
    found = [one.model_dump(mode="json") | why(one) for one in asyncio.run(_listed(store, wanted))]
    columns = {
        "ID": lambda row: row["id"],
        "Tool": lambda row: f"{row['agent']}: {row['tool']}",
        "Scope": lambda row: row["scope"],
        "By": lambda row: row["given_by"],
        "Until": lambda row: row["expires_at"],
        "Used": lambda row: str(row["used"]),
        "Arguments": lambda row: arguments_in_words(row["arguments"]),
        "Ended": lambda row: (
            "" if row.get("revoked_at") is None else f"revoked by {row.get('revoked_by') or 'someone'}"
        ),
    }
    if people is not None:
        columns["Outdated"] = lambda row: row["outdated"] or ""
    output.rows(found, columns, nothing="There are no standing approvals.")


@standing.command("revoke")
@click.argument("approval", metavar="ID", required=False)
@click.option(
    "--outdated", is_flag=True, help="With --people: end all whose givers have left or may no longer approve."
)
@PEOPLE
@BY
@BOARD
@with_output
def revoke_standing(
    output: Output, approval: str | None, outdated: bool, people: str | None, by: str | None, store: Named
) -> None:
    """End a standing approval: calls that are not approved yet no longer pass by it.

    Workers do not read FILE.toml. After removing a person from it, --outdated --people FILE.toml ends that person's
    approvals.
    """
    if (approval is None) != outdated or (people is not None) != outdated:
        raise click.UsageError("Give ID, or --outdated with --people FILE.toml.")
    if approval is not None:
        ended = asyncio.run(_revoked(store, approval, who(by)))
        output.item(ended.model_dump(mode="json"), lambda: output.line(_end_of(ended)))
        return
    why = _outdated(people)
    each = asyncio.run(_revoked_each(store, lambda one: why(one)["outdated"] is not None, who(by)))
    columns = {"Ended": lambda row: row["said"]}
    rows = [one.model_dump(mode="json") | {"said": _end_of(one)} for one in each]
    output.rows(rows, columns, nothing="No standing approval is outdated.")


def _end_of(ended: StandingApproval) -> str:
    return f"{ended.id} was revoked by {ended.revoked_by or 'somebody'} at {ended.revoked_at}"


def _outdated(people: str | None) -> Callable[[StandingApproval], dict[str, str | None]]:
    """Return an addition to a standing approval's data: why its giver could not give it now."""
    if people is None:
        return lambda _: {}

    from standfast.web.identity.people import Access
    from standfast.web.page.standing import outdated

    access = Access(people=people_in(people))
    if not access.people:
        raise InputError(f"{people}: has no people")
    return lambda one: {"outdated": outdated(access, one)}


async def _listed(address: Named, wanted: StandingFilter) -> list[StandingApproval]:
    async with existing_store(address) as store:
        return list(await store.standing_approvals(wanted))


async def _revoked(address: Named, approval: str, by: str) -> StandingApproval:
    async with existing_store(address) as store:
        return await revoke(store, approval, by)


async def _revoked_each(
    address: Named, is_wanted: Callable[[StandingApproval], bool], by: str
) -> list[StandingApproval]:
    async with existing_store(address) as store:
        found = await store.standing_approvals(StandingFilter(in_force_at=datetime.now(UTC)))
        return [await revoke(store, one.id, by) for one in found if is_wanted(one)]


def arguments_in_words(arguments: Mapping[str, Any]) -> str:
    """Return the permitted arguments of later calls, for people."""
    return ", ".join(f"{name} {pattern_in_words(one)}" for name, one in arguments.items()) or "none"
