"""Updates a bot's messages about approvals: first with the approvers so far, then with the decision.

The store has the place of each message and its item, under the run that asks. When a run has written its board, the
worker that wrote it checks which of the run's messages are outdated. From time to time one worker checks the messages
of all runs, for runs whose worker died. Workflows do not know about this. A message loses its buttons only if the board
does not show its gate, and the run has ended or confirms that it does not wait there. A run that continues as new, or
is reset, shows its gates again.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from standfast.errors import StandfastError
from standfast.messages import JSONObject
from standfast.notices.chat_bots import Bot, Place
from standfast.notices.chat_messages import Mark, counted, outcome, passed_on, progress
from standfast.runtime.tasks import repeating
from standfast.stores.kept_values import read_kept_object
from standfast.stores.protocol import DurableStore, has_waits
from standfast.stores.waits import WaitFilter
from standfast.temporal.wire import names

_LOG = logging.getLogger("standfast")
_EVERY = 300.0  # seconds between two checks of the messages of all runs; ten times as long for a slow store
_AGAIN = 5.0  # seconds between checks that a run still shows an undecided gate
_LOOKS = 3  # checks, after which the gate counts as no longer waiting
_PAUSES = (0.0, 1.0, 5.0, 30.0)  # seconds before each attempt to change a message
_PATIENCE = timedelta(seconds=2)  # for a query to a run
_AT_END = 5.0  # seconds for a change in progress when a worker stops
_KNOWN = 10_000  # runs for which the number of finished messages is remembered
_CLOSED = 0  # the number under which a message's final decision is kept


class PostedMessages:
    """The messages that the bots of a worker have posted.

    Args:
        bots: by the names of their webhooks.
    """

    def __init__(self, store: DurableStore, bots: Mapping[str, Bot]) -> None:
        self.bots = bots
        self._store = store
        self._done: dict[str, int] = {}  # by run: the number of its first messages that are final
        self._looking: dict[str, asyncio.Task[None]] = {}  # by run
        self._again: set[str] = set()  # runs that changed while they were checked
        self._client: Client | None = None  # while a worker runs

    # --- what is kept ---

    async def note(self, run: str, webhook: str, data: Mapping[str, Any], place: Place, link: str | None) -> None:
        """Record that a message was posted; if the store refuses, the message stays: it cannot be posted again."""
        kept = json.dumps({"webhook": webhook, "item": dict(data), "place": place, "link": link})
        try:
            number = 0
            while await self._store.save_reply(_posted(run), number, kept) != kept:
                number += 1
        except StandfastError as error:
            _LOG.warning("The message about %s will not show the decision: %s", data["workflow_id"], error)
            return
        self.look(run, data["workflow_id"])

    # --- when it is looked at ---

    def look(self, run: str, workflow_id: str) -> None:
        """Soon check whether the messages of a run are up to date.

        Args:
            run: its key in the store.
        """
        client = self._client
        if not self.bots or client is None or not has_waits(self._store):
            return
        if run in self._looking:
            self._again.add(run)
            return
        self._looking[run] = asyncio.get_running_loop().create_task(self._look_soon(client, run, workflow_id))

    @asynccontextmanager
    async def looking(self, client: Client) -> AsyncIterator[None]:
        """Keep the messages of a namespace up to date for as long as the block lasts."""
        if not self.bots or not has_waits(self._store):
            yield
            return
        self._client = client
        every = _EVERY * (10 if hasattr(self._store, "look_every") else 1)
        sweep = partial(self._sweep, client)
        try:
            async with repeating(
                sweep, every, "Chat messages could not be updated; retrying next time", expected=RPCError
            ):
                yield
        finally:
            here = asyncio.get_running_loop()
            if doing := [task for task in self._looking.values() if task.get_loop() is here]:
                _, left = await asyncio.wait(doing, timeout=_AT_END)
                for task in left:
                    task.cancel()

    async def _sweep(self, client: Client) -> None:
        """Check all runs that have a board, by one worker at a time: some workers died before they could."""
        store, mark, after = self._store, f"standfast/posted/{client.namespace}", ""
        assert has_waits(store)
        if not await store.hold(mark):
            return
        try:
            while found := await store.boards(client.namespace, after=after):
                for board, _ in found:
                    await self._look(client, board.journal_key, board.workflow_id, looks=1)
                after = found[-1][0].workflow_id
        finally:
            await store.let_go(mark)

    async def _look_soon(self, client: Client, run: str, workflow_id: str) -> None:
        try:
            await self._look(client, run, workflow_id)
        finally:
            del self._looking[run]

    async def _look(self, client: Client, run: str, workflow_id: str, looks: int = _LOOKS) -> None:
        left = looks
        while left:
            self._again.discard(run)
            try:
                is_sure = await self._bring_up_to_date(
                    client, run, workflow_id, looks=looks, is_last=left == 1 and looks > 1
                )
            except (StandfastError, RPCError) as error:
                _LOG.warning("The messages about %s could not be checked: %s", workflow_id, error)
                is_sure = False
            if run in self._again:
                left = looks
            elif is_sure:
                return
            else:
                left -= 1
                if left:
                    await asyncio.sleep(_AGAIN)

    # --- what they say ---

    async def _bring_up_to_date(self, client: Client, run: str, workflow_id: str, *, looks: int, is_last: bool) -> bool:
        """Change the messages of a run that are out of date; False if the state of one is unknown."""
        number, is_sure = self._done.get(run, 0), True
        are_all_closed = True
        while (kept := await self._store.load_reply(_posted(run), number)) is not None:
            if await self._store.load_reply(_said(run, number), _CLOSED) is None:
                message = read_kept_object(f"a message about run {workflow_id}", kept)
                said = await self._say(client, run, number, message, looks=looks, is_last=is_last)
                is_sure, are_all_closed = is_sure and said is not None, are_all_closed and said is True
            number += 1
            if are_all_closed:
                if len(self._done) >= _KNOWN:
                    del self._done[next(iter(self._done))]
                self._done[run] = number
        return is_sure

    async def _say(
        self, client: Client, run: str, number: int, message: Mapping[str, Any], *, looks: int, is_last: bool
    ) -> bool | None:
        """Change one message if it is out of date; return whether its item is over, or None."""
        item, bot = message["item"], self.bots.get(message["webhook"])
        if bot is None:
            return False  # another worker's bot, or one that was removed
        workflow_id, mark = item["workflow_id"], Mark.of(item["workflow_id"], item)
        waiting = await self._waiting(client, mark)
        if waiting is not None and (looks > 1 or await _runs(client, workflow_id)):
            approved = len(waiting.get("approved_by") or ())
            if approved and await self._store.load_reply(_said(run, number), approved) is None:
                now = {**item, **waiting}
                await self._change(bot, message, bot.approval(workflow_id, now, message["link"], progress(now)))
                await self._store.save_reply(_said(run, number), approved, "said")
            return False
        rows = await self._store.load_decisions(run)
        if (edited := await self._edited(client, mark)) is not None:
            by = edited["edited_by"] or "somebody"
            await self._change(bot, message, bot.closed(workflow_id, item, message["link"], passed_on(by)))
            await self._store.save_reply(_said(run, number), _CLOSED, "said")
            return True
        if await self._goes_on(client, run, workflow_id):
            deadline = item.get("deadline")
            is_late = deadline is not None and datetime.fromisoformat(deadline) <= datetime.now(UTC)
            if not (counted(rows, mark) or is_late or is_last) or await _may_ask(client, mark):
                return None
        await self._change(bot, message, bot.closed(workflow_id, item, message["link"], outcome(rows, mark)))
        await self._store.save_reply(_said(run, number), _CLOSED, "said")
        return True

    async def _waiting(self, client: Client, mark: Mark) -> JSONObject | None:
        """Return the item of a message, if the board shows it."""
        return next((item for item in await self._items(client, mark) if mark.is_for(item)), None)

    async def _edited(self, client: Client, mark: Mark) -> JSONObject | None:
        """Return the current item of a gate, if it was edited after a message was posted."""
        items = [one for one in await self._items(client, mark) if one["name"] == mark.gate and "edited_by" in one]
        return next((item for item in items if item["digest"] != mark.digest), None)

    async def _items(self, client: Client, mark: Mark) -> list[JSONObject]:
        assert has_waits(self._store)
        wanted = WaitFilter(namespace=client.namespace, workflow_id=mark.workflow_id, kind="approval")
        return [json.loads(one.wait.item) for one in await self._store.waits(wanted)]

    async def _goes_on(self, client: Client, run: str, workflow_id: str) -> bool:
        """Whether a run is still open, as far as that is known: its workflow id may belong to another run by now."""
        assert has_waits(self._store)
        if not await _runs(client, workflow_id):
            return False
        board = await self._store.load_board(client.namespace, workflow_id)
        return board is None or board.is_watched or board.journal_key == run

    async def _change(self, bot: Bot, message: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Change a message; if every attempt fails, the message stays unchanged, and the failure is logged."""
        for pause in _PAUSES:
            await asyncio.sleep(pause)
            try:
                await bot.change(message["place"], now)
            except ApplicationError as error:
                problem = error
                if error.non_retryable:
                    break
            else:
                return
        else:
            raise StandfastError(str(problem))  # it is retried when all runs are checked
        _LOG.warning("A message about %s was not changed: %s", message["item"]["workflow_id"], problem)


async def _runs(client: Client, workflow_id: str) -> bool:
    """Whether a workflow id has an open run."""
    try:
        found = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return False
    return found.status == WorkflowExecutionStatus.RUNNING


async def _may_ask(client: Client, mark: Mark) -> bool:
    """Whether the run itself confirms that it waits at a gate, or no worker answers."""
    try:
        items = await client.get_workflow_handle(mark.workflow_id).query(names.PENDING, rpc_timeout=_PATIENCE)
        return any(mark.is_for(item) for item in items)
    except (RPCError, WorkflowQueryFailedError):
        return True


def _posted(run: str) -> str:
    return f"{run}/posted"


def _said(run: str, number: int) -> str:
    return f"{run}/posted/{number}"
