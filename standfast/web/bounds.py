"""Says which runs a person may see, and refuses the others as if they did not exist.

A person with tenants is told from a workflow id alone that a run is not of them: no question goes to the server, so
that not even the time of an answer tells what others have.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError

from standfast.errors import InputError
from standfast.messages import person as identity
from standfast.temporal.client.owners import last_admitted, owner_of
from standfast.temporal.client.runs import described, looks_ours, quoted
from standfast.temporal.wire import names
from standfast.web.access import Person

_AT_LEAST = 0.1  # seconds until somebody hears that a run of their tenant is not theirs, or does not exist
_AT_ONCE = 16


def no_run(client: Client, workflow_id: str) -> InputError:
    """Return the error for a run that does not exist, as far as somebody may know."""
    return InputError(
        f"There is no run {workflow_id!r} in namespace {client.namespace}; `standfast ls` lists those that are"
    )


def tenant_query(person: Person) -> str | None:
    """Return a filter of lists that leaves out the tenants of others; None if the person may see all."""
    if person.tenants is None:
        return None
    among = ", ".join(quoted(tenant) for tenant in person.tenants)
    return f"{names.TENANT_ATTRIBUTE} IN ({among})" if among else f"{names.TENANT_ATTRIBUTE} = ''"


async def admit(client: Client, person: Person, workflow_id: str, run_id: str | None = None) -> None:
    """Refuse a run that a person may not see, with the words for one that does not exist.

    Args:
        run_id: a certain one of the runs of that id, of which an earlier one may have been somebody else's.

    Raises:
        InputError: there is no such run for this person.
    """
    if not person.is_bounded:
        return
    if not _is_of_tenant(person, workflow_id):
        raise no_run(client, workflow_id)
    clock = asyncio.get_running_loop().time
    begun = clock()
    if not await _is_admitted(client, person, workflow_id, run_id):
        await asyncio.sleep(begun + _AT_LEAST - clock())
        raise no_run(client, workflow_id)


async def only_admitted(client: Client, person: Person, found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return those of some runs, or of items that wait in runs, that a person may see."""
    if not person.is_bounded:
        return list(found)
    few = asyncio.Semaphore(_AT_ONCE)

    async def is_admitted(workflow_id: str, run_id: str | None) -> bool:
        async with few:
            return await _is_admitted(client, person, workflow_id, run_id)

    asked = {(one["workflow_id"], one.get("run_id")) for one in found if _is_of_tenant(person, one["workflow_id"])}
    ordered = sorted(asked, key=str)
    answers = await asyncio.gather(*(is_admitted(*one) for one in ordered))
    theirs = {one for one, is_one in zip(ordered, answers, strict=True) if is_one}
    return [one for one in found if (one["workflow_id"], one.get("run_id")) in theirs]


async def _is_admitted(client: Client, person: Person, workflow_id: str, run_id: str | None) -> bool:
    """Whether the input that a run was started with says that it is the person's."""
    try:
        if run_id is None:
            run = await described(client, workflow_id)
            run_id = await last_admitted(client, run) if looks_ours(run) else None
        if run_id is None:
            return False
        user, tenant = await owner_of(client, workflow_id, run_id)
    except (InputError, RPCError):
        return False
    return owns(person, user, tenant)


def owns(person: Person, user: str | None, tenant: str | None) -> bool:
    """Whether a person may see what belongs to this user and tenant."""
    is_users = not person.only_own or (user is not None and identity(user) == identity(person.name))
    return is_users and (person.tenants is None or tenant in person.tenants)


def _is_of_tenant(person: Person, workflow_id: str) -> bool:
    return person.tenants is None or _tenant_in(workflow_id) in person.tenants


def _tenant_in(workflow_id: str) -> str | None:
    """Return the tenant that a workflow id names: `<agent>/@<tenant>/<session>`, and what its runs have started."""
    _, _, rest = workflow_id.partition("/@")
    tenant, found, _ = rest.partition("/")
    is_second = "/" not in workflow_id.partition("/@")[0]
    return tenant if found and is_second else None


def tenant_for(person: Person, asked: str | None) -> str | None:
    """Return the tenant that a person starts a run for.

    Raises:
        InputError: it is none of theirs, or they have to say which.
    """
    if person.tenants is None:
        return asked
    if asked is None and len(person.tenants) == 1:
        return person.tenants[0]
    if asked in person.tenants:
        return asked
    raise InputError(f"tenant_id must be one of yours: {', '.join(person.tenants) or 'you have none'}")
