"""Serves what every page needs: who asks and what they may do, templates, and the pages of refusals."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from temporalio.client import Client
from temporalio.service import RPCError

from standfast.errors import StandfastError
from standfast.stores.protocol import AgentStore
from standfast.temporal import StandfastClient
from standfast.temporal.client.history.audits import Entry
from standfast.web.identity.people import Person, Role
from standfast.web.identity.visitors import Visitors, who
from standfast.web.page.actions import SAID, Form
from standfast.web.page.edits import asked_again
from standfast.web.page.rendering import templates
from standfast.web.serving.mounts import Assets, path_of, root_of
from standfast.web.serving.statuses import status_of

_TITLES = {403: "You may not do this", 404: "There is no such page", 500: "That did not work", 504: "Not confirmed"}
_TYPED = ("edit", "comment", "text", "result", "reason", "model")  # fields of forms


class Desk:
    """Serves the person of a request, with one client and, for transcripts and the audit trail, the workers' store."""

    def __init__(
        self, client: Client, visitors: Visitors, store: AgentStore | None, assets: Assets, *, has_starts: bool
    ) -> None:
        self.client, self.people = client, StandfastClient(client, store=store)
        self.visitors, self.access, self.store = visitors, visitors.access, store
        self._assets, self._has_starts = assets, has_starts

    def person(self, request: Request, role: Role = "viewer", scope: str = "read") -> Person:
        person = who(request)
        if person is None:
            raise HTTPException(401)
        self.visitors.rates.count(request, person)
        if not person.may_do(scope):
            raise HTTPException(403, f"The token of {person.name} does not allow this: it lacks the scope {scope}.")
        if not person.may(role):
            raise HTTPException(403, f"This needs the role {role}; {person.name} has the role {person.role}.")
        return person

    def page(
        self, request: Request, name: str, *, status: int = 200, decider: Person | None = None, **values: Any
    ) -> Response:
        """Return a page; `decider` is the person who acts on it, if different from the signed-in person."""
        person = who(request)
        template = templates().get_template(f"{name}.html")
        html = template.render(
            root=root_of(request.scope),
            asset=self._assets.address,
            person=person,
            decider=decider or person,
            csrf=self.access.csrf(request),
            new_key=new_key,
            path=path_of(request.scope),
            is_local=self.access.local is not None,
            has_starts=self._has_starts,
            said=SAID.get(request.query_params.get("said", "")),
            acted_on=request.query_params.get("run"),
            **values,
        )
        return HTMLResponse(html, status)

    def refused(
        self,
        request: Request,
        status: int,
        why: str,
        *,
        run: str | None = None,
        form: Form | None = None,
        acts: Sequence[Entry] = (),
        **more: Any,
    ) -> Response:
        """Explain why an act was not done, and show the entries, since they are not kept anywhere else."""
        title = _TITLES.get(status, "That was not done")
        kept = {name: text for name, text in (form or {}).items() if name in _TYPED or name.startswith("field.")}
        shown: dict[str, Any] = {"title": title, "run": run, "why": why, "typed": kept, "acts": acts, **more}
        return self.page(request, "refused", status=status, changes=None, **shown)

    async def not_done(
        self, request: Request, error: StandfastError | RPCError, run: str, form: Form, **more: Any
    ) -> Response:
        """Explain why an act was not done, and show the entries: in the original form, if its item still waits."""
        again = await asked_again(self.people, self.store, run, form, error)
        return self.refused(request, status_of(error), str(error), form=form, **(more or {"run": run}), **again)


def new_key() -> str:
    """Return a new key for a form, so that it counts once however often it is sent."""
    return uuid4().hex


def redirect(request: Request, path: str) -> Response:
    """Redirect a browser to a path of the page."""
    return RedirectResponse(f"{root_of(request.scope)}{path}", 303)
