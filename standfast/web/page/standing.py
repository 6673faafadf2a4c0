"""Standing approvals on the page: how people add them to an approval, list them and end them."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from standfast.agent_loop import StandingApproval, pattern_in_words
from standfast.errors import InputError
from standfast.messages import person as identity
from standfast.runtime.standing_approvals import no_standing_approval, revoke
from standfast.stores.protocol import StandingApprovals, StandingFilter, has_standing_approvals
from standfast.web.identity.people import Access, Person
from standfast.web.identity.visible_runs import owns
from standfast.web.page.desk import Desk, redirect

MOST = 500  # that are listed


def bounded(person: Person, **wanted: Any) -> StandingFilter:
    """Return a filter that finds the standing approvals which a person may see."""
    tenants = None if person.tenants is None else tuple(person.tenants)
    return StandingFilter(tenants=tenants, person=identity(person.name) if person.only_own else None, **wanted)


async def listed(store: object, person: Person, **wanted: Any) -> list[StandingApproval]:
    """Return the standing approvals that a person may see, the last given first."""
    if not has_standing_approvals(store):
        return []
    return await store.standing_approvals(bounded(person, **wanted), limit=MOST)


async def ended(store: object, person: Person, approval_id: str) -> StandingApproval:
    """End a standing approval for a person, and return it.

    Raises:
        InputError: there is none that the person may see.
    """
    if not has_standing_approvals(store) or not await listed(store, person, ids=(approval_id,)):
        raise no_standing_approval(approval_id)
    kept: StandingApprovals = store
    return await revoke(kept, approval_id, person.name)


def outdated(access: Access, approval: StandingApproval) -> str | None:
    """Return why the giver of a standing approval could not give it today; None if they could, or none are listed."""
    if not access.people:
        return None
    giver = access.named(approval.given_by)
    if giver is None:
        return f"{approval.given_by or 'someone'} is no longer one of the page's people"
    if not giver.can_decide:
        return f"{giver.name} may no longer approve"
    if not owns(giver, approval.user_id, approval.tenant_id):
        return f"{giver.name} may no longer see these runs"
    return None


class StandingPages:
    """The list of standing approvals, and the buttons that end them."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def routes(self) -> list[Route]:
        return [Route("/standing", self.list), Route("/standing/{approval}/revoke", self.revoke, methods=["POST"])]

    async def list(self, request: Request) -> Response:
        person = self._desk.person(request)
        found = await listed(self._desk.store, person)
        shown: dict[str, Any] = {"standing": found, "now": datetime.now(UTC), "in_words": pattern_in_words}
        shown["outdated"] = partial(outdated, self._desk.access)
        return self._desk.page(request, "standing", changes=None, **shown)

    async def revoke(self, request: Request) -> Response:
        person = self._desk.person(request, "approver", "decide")
        await self._desk.access.form(request)
        try:
            await ended(self._desk.store, person, request.path_params["approval"])
        except InputError as error:
            raise HTTPException(404, str(error)) from error
        return redirect(request, "/standing")
