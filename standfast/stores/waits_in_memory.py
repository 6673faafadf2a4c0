"""The board in memory, with the items that runs wait for, until the process ends."""

from collections.abc import Sequence
from datetime import UTC, datetime

from standfast.messages import person
from standfast.stores.waits import Board, ShownWait, Wait, WaitFilter, WaitPlace

_NEVER = datetime.max.replace(tzinfo=UTC)


class WaitsInMemory:
    """The `Waits` of a memory store."""

    def __init__(self) -> None:
        self._boards: dict[tuple[str, str], tuple[Board, dict[str, Wait]]] = {}

    async def show_waits(self, board: Board, put: Sequence[Wait], keep: Sequence[str] = ()) -> list[str]:
        place = (board.namespace, board.workflow_id)
        known, items = self._boards.get(place, (board, {}))
        if known.at > board.at:
            return []
        there = {key: wait for key, wait in items.items() if key in {*keep, *(one.key for one in put)}}
        self._boards[place] = board, {**{wait.key: wait for wait in put}, **there}
        return [key for key in keep if key not in items]

    async def waits(
        self, wanted: WaitFilter, *, after: WaitPlace | None = None, limit: int | None = None
    ) -> list[ShownWait]:
        found = sorted(self._wanted(wanted), key=lambda one: _order(one.place))
        return [one for one in found if after is None or _order(one.place) > _order(after)][:limit]

    async def count_waits(self, wanted: WaitFilter) -> dict[str, int]:
        counts: dict[str, int] = {}
        for one in self._wanted(wanted):
            counts[one.wait.kind] = counts.get(one.wait.kind, 0) + 1
        return counts

    async def load_board(self, namespace: str, workflow_id: str) -> Board | None:
        kept = self._boards.get((namespace, workflow_id))
        return None if kept is None else kept[0]

    async def boards(self, namespace: str, *, after: str = "", limit: int = 500) -> list[tuple[Board, int]]:
        found = [
            (board, len(items))
            for (space, run), (board, items) in self._boards.items()
            if space == namespace and run > after
        ]
        return sorted(found, key=lambda one: one[0].workflow_id)[:limit]

    async def forget_boards(self, namespace: str, before: datetime) -> None:
        self._boards = {
            place: (board, items)
            for place, (board, items) in self._boards.items()
            if items or place[0] != namespace or board.at >= before
        }

    def _wanted(self, wanted: WaitFilter) -> list[ShownWait]:
        shown = [ShownWait(board=board, wait=wait) for board, items in self._boards.values() for wait in items.values()]
        return [one for one in shown if _is_wanted(wanted, one.board, one.wait)]


def _order(place: WaitPlace) -> tuple[datetime, datetime, str, str]:
    return place.deadline or _NEVER, place.since, place.workflow_id, place.key


def _is_wanted(wanted: WaitFilter, board: Board, wait: Wait) -> bool:
    return (
        board.namespace == wanted.namespace
        and wanted.kind in (None, wait.kind)
        and wanted.agent in (None, board.agent)
        and wanted.tenant_id in (None, board.tenant_id)
        and (wanted.tenants is None or board.tenant_id in wanted.tenants)
        and (wanted.owner is None or (board.user_id is not None and person(board.user_id) == wanted.owner))
        and wanted.workflow_id in (None, board.workflow_id)
        and (wanted.group is None or wanted.group in wait.groups)
        and (wanted.before is None or wait.since <= wanted.before)
        and all(word in wait.words for word in wanted.words)
        and (wanted.person is None or wait.is_for(wanted.person, wanted.person_kinds) is not wanted.others)
    )
