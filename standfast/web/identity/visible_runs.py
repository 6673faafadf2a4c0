"""Decides which runs a person may see, and refuses the others as if they did not exist.

For a person with tenants, the workflow id alone shows that a run belongs to another tenant. The server is not asked, so
even the response time reveals nothing about others.
"""

import asyncio
import base64
import hashlib
from collections.abc import Sequence
from contextlib import suppress

from itsdangerous import BadSignature, Signer
from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError

from standfast.errors import InputError, SessionAccessDeniedError
from standfast.messages import JSONObject
from standfast.messages import person as identity
from standfast.runtime.stored_gates import is_in_process
from standfast.stores.deletion import DELETED
from standfast.stores.protocol import AgentStore, has_ledger, session_key_of
from standfast.stores.waits import WaitFilter
from standfast.temporal import StandfastClient
from standfast.temporal.client.board.boards import WaitingFilters, filter_of, read_waiting
from standfast.temporal.client.runs.descriptions import described, listed, looks_ours, quoted
from standfast.temporal.client.runs.owners import last_admitted, owner_of
from standfast.temporal.wire import names
from standfast.temporal.wire.inputs import is_stranger
from standfast.web.identity.people import Person

_AT_LEAST = 0.1  # seconds until a person learns that a run of their tenant is not theirs, or does not exist
_AT_ONCE = 16
_PAGES = 10  # of the server's list that are checked for one page of a person's own runs


def no_run(client: Client, workflow_id: str) -> InputError:
    """Return the error for a run that does not exist, as far as the person may know."""
    return InputError(f"There is no run {workflow_id!r} in namespace {client.namespace}; `standfast ls` lists the runs")


def tenant_query(person: Person) -> str | None:
    """Return a list filter that excludes other tenants; None if the person may see all."""
    if person.tenants is None:
        return None
    among = ", ".join(quoted(tenant) for tenant in person.tenants)
    return f"{names.TENANT_ATTRIBUTE} IN ({among})" if among else f"{names.TENANT_ATTRIBUTE} = ''"


def bounded_query(person: Person, query: str) -> str:
    """Return a list filter that finds only the person's tenants among the given runs."""
    theirs = tenant_query(person)
    return query if theirs is None else f"({query}) AND {theirs}"


def bounded_filter(person: Person, wanted: WaitFilter) -> WaitFilter:
    """Return a board filter that finds only items that a person may see among the given ones."""
    tenants = None if person.tenants is None else tuple(person.tenants)
    return wanted.model_copy(update={"tenants": tenants, "owner": identity(person.name) if person.only_own else None})


class RunPages:
    """The pages of lists of runs, whose tokens only this page can make.

    Temporal retries an unreadable token ten times, for as many seconds.
    """

    def __init__(self, people: StandfastClient, secret: str) -> None:
        self._people = people
        self._signer = Signer(secret, salt="standfast.lists", digest_method=hashlib.sha256)

    async def read(self, person: Person, query: str, size: int, after: str) -> tuple[list[JSONObject], str | None]:
        """Return a page of the runs that a person may see, and the token of the next page, if any.

        Neither reveals other people's runs: a page without a run of the person's is skipped.

        Args:
            after: the token of this page; "" is the first.

        Raises:
            InputError: the token is not from one of these pages.
        """
        runs, token = await _listed(self._people, person, query, size, self._read_token(after))
        if token is not None and person.only_own:
            later, _ = await _listed(self._people, person, query, size, token)
            token = token if later else None
        return runs, None if token is None else self._signer.sign(base64.urlsafe_b64encode(token)).decode()

    def _read_token(self, text: str) -> bytes | None:
        try:
            return base64.urlsafe_b64decode(self._signer.unsign(text)) if text else None
        except BadSignature as error:
            raise InputError("This part of the list has expired: begin at its first page") from error


async def _listed(
    people: StandfastClient, person: Person, query: str, size: int, token: bytes | None
) -> tuple[list[JSONObject], bytes | None]:
    for _ in range(_PAGES):
        found = people.client.list_workflows(bounded_query(person, query), page_size=size, next_page_token=token)
        await found.fetch_next_page()
        runs = await only_admitted(people, person, [listed(run) for run in found.current_page or ()])
        token = found.next_page_token or None
        if runs or token is None:
            return runs, token
    return [], token


async def waiting_for(
    people: StandfastClient, person: Person, wanted: WaitingFilters, limit: int | None, *, after: str | None = None
) -> list[JSONObject]:
    """Return the waiting items of the runs that a person may see; see `StandfastClient.waiting`."""
    if (board := await people.board()) is not None:
        found = bounded_filter(person, filter_of(people.client.namespace, wanted))
        return await read_waiting(board, found, after=after, limit=limit)
    return await only_admitted(people, person, await people.waiting(limit=limit, after=after, **wanted))


async def waiting_counts(people: StandfastClient, person: Person, wanted: WaitingFilters) -> dict[str, int] | None:
    """Return the number of these items, by kind; None without a board."""
    if (board := await people.board()) is None:
        return None
    return await board.count_waits(bounded_filter(person, filter_of(people.client.namespace, wanted)))


async def admit(people: StandfastClient, person: Person, workflow_id: str, run_id: str | None = None) -> None:
    """Refuse a run that a person may not see, with the text for one that does not exist.

    Args:
        run_id: a specific run of that id, since an earlier one may have belonged to another user.

    Raises:
        InputError: the run does not exist for this person.
    """
    if not person.is_bounded:
        return
    client = people.client
    if not _is_of_tenant(person, workflow_id):
        raise no_run(client, workflow_id)
    clock = asyncio.get_running_loop().time
    begun = clock()
    if not await _is_admitted(people, person, workflow_id, run_id):
        await asyncio.sleep(begun + _AT_LEAST - clock())
        raise no_run(client, workflow_id)


async def only_admitted(people: StandfastClient, person: Person, found: Sequence[JSONObject]) -> list[JSONObject]:
    """Return the runs, or the items of runs, that a person may see."""
    if not person.is_bounded:
        return list(found)
    few = asyncio.Semaphore(_AT_ONCE)

    async def is_admitted(workflow_id: str, run_id: str | None) -> bool:
        async with few:
            return await _is_admitted(people, person, workflow_id, run_id)

    asked = {(one["workflow_id"], one.get("run_id")) for one in found if _is_of_tenant(person, one["workflow_id"])}
    ordered = sorted(asked, key=str)
    answers = await asyncio.gather(*(is_admitted(*one) for one in ordered))
    theirs = {one for one, is_one in zip(ordered, answers, strict=True) if is_one}
    return [one for one in found if (one["workflow_id"], one.get("run_id")) in theirs]


async def _is_admitted(people: StandfastClient, person: Person, workflow_id: str, run_id: str | None) -> bool:
    """Whether the run's input names the person as its owner; for an in-process run, its session does."""
    client = people.client
    try:
        if is_in_process(workflow_id):
            board = await people.in_process.board(workflow_id)
            return owns(person, board.user_id, board.tenant_id)
        if run_id is None:
            run = await described(client, workflow_id)
            run_id = await last_admitted(client, run) if looks_ours(run) else None
        if run_id is None:
            return False
        user, tenant = await owner_of(client, workflow_id, run_id)
    except (InputError, RPCError):
        return False
    return owns(person, user, tenant)


async def admit_start(
    people: StandfastClient, store: AgentStore | None, person: Person, name: str, session: str, tenant: str | None
) -> None:
    """Refuse a start in a session, or under a run key, whose runs the person may not see.

    A start may join a run: it sends its message there, or shows it. A run without an owner is open to anyone who starts
    it, but not to a person who may see only their own. If its session was deleted, an ended run does not block a new
    start under its name.

    Args:
        name: the agent's or pipeline's name.

    Raises:
        SessionAccessDeniedError: it belongs to another user, or to none.
    """
    key = session_key_of(tenant, session)
    if store is not None and (known := await store.load_session(key)) is not None:
        is_theirs = owns(person, known.user_id, known.tenant_id)
        if not is_theirs or is_stranger((known.user_id, known.tenant_id), (person.name, tenant)):
            raise SessionAccessDeniedError(session)
    if not person.is_bounded:
        return
    run = names.workflow_id(name, key)
    with suppress(InputError):  # there is none
        last = await described(people.client, run)
        if not await _was_deleted(store, last) and not await _is_admitted(people, person, run, None):
            raise SessionAccessDeniedError(session)


async def _was_deleted(store: AgentStore | None, run: WorkflowExecution) -> bool:
    """Whether a run has ended and its session was deleted from this store, which reports it until it is forgotten."""
    if run.close_time is None or not has_ledger(store):
        return False
    return await store.load_reply(f"{run.raw_info.first_run_id or run.run_id}/open", 0) == DELETED


def owns(person: Person, user: str | None, tenant: str | None) -> bool:
    """Whether a person may see the data of this user and tenant."""
    is_users = not person.only_own or (user is not None and identity(user) == identity(person.name))
    return is_users and (person.tenants is None or tenant in person.tenants)


def remembered(person: Person, wish: JSONObject) -> JSONObject:
    """Return a person's wish to approve later calls as well.

    Raises:
        InputError: it covers runs of others, which the person may not see.
    """
    if person.only_own and wish.get("scope") == "agent":
        raise InputError('remember: the scope "agent" includes other people\'s runs, which you may not see')
    return wish


def _is_of_tenant(person: Person, workflow_id: str) -> bool:
    return person.tenants is None or _tenant_in(workflow_id) in person.tenants


def _tenant_in(workflow_id: str) -> str | None:
    """Return the tenant that a workflow id names: `<agent>/@<tenant>/<session>`, and its runs' children."""
    _, _, rest = workflow_id.partition("/@")
    tenant, found, _ = rest.partition("/")
    is_second = "/" not in workflow_id.partition("/@")[0]
    return tenant if found and is_second else None


def tenant_for(person: Person, asked: str | None) -> str | None:
    """Return the tenant for which a person starts a run.

    Raises:
        InputError: it is not theirs, or they have several and must name one.
    """
    if person.tenants is None:
        return asked
    if asked is None and len(person.tenants) == 1:
        return person.tenants[0]
    if asked in person.tenants:
        return asked
    raise InputError(f"tenant_id must be one of yours: {', '.join(person.tenants) or 'you have none'}")
