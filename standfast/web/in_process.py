"""The page of an in-process run: the waiting items in its store, the earlier messages, and the decisions."""

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from standfast.stores.protocol import AgentStore
from standfast.temporal.client.audits import load_acts
from standfast.web.asked import load_all

if TYPE_CHECKING:
    from standfast.web.pages import Pages

_LOOKED_AT = 12  # messages that are searched for those with text
_TURNS = 3


async def page_in_process(pages: "Pages", store: AgentStore | None, request: Request, run: str) -> Response:
    """Return the page of a run that no server knows; only its store has it.

    Raises:
        InputError: there is none.
    """
    board = await pages.people.in_process.board(run)
    waiting = await pages.people.pending(run)
    messages = []
    if store is not None and board.session is not None and (session := await store.load_session(board.session)):
        messages = await store.load_messages(board.session, after=max(0, session.last_seq - _LOOKED_AT))
    return pages.page(
        request,
        "in_process",
        run=run,
        board=board,
        waiting=waiting,
        whole=await load_all(store, waiting),
        turns=[one for one in messages if one.content or one.tool_calls][-_TURNS:],
        acts=await load_acts(store, [board.journal_key], run),
        changes=None,
    )
