"""Stores with one fault each in their boards. The store suite finds all of them."""

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from standfast.stores import Board, ShownWait, SQLiteStore, Wait, WaitFilter
from standfast.stores.sql.dialect import Query
from support.faulty_stores import TwoSteps, until


class ShowsWhatIsLate(SQLiteStore):
    async def show_waits(self, board: Board, put: Sequence[Wait], keep: Sequence[str] = ()) -> list[str]:
        def work(db: sqlite3.Connection) -> None:
            db.execute("UPDATE boards SET at = ''")

        await self._do(work)
        return await super().show_waits(board, put, keep)


class ForgetsWhoWasLast(SQLiteStore):
    """One without a trace of a board whose items are gone."""

    async def show_waits(self, board: Board, put: Sequence[Wait], keep: Sequence[str] = ()) -> list[str]:
        missing = await super().show_waits(board, put, keep)
        await super().forget_boards(board.namespace, datetime.max.replace(tzinfo=UTC))
        return missing


class TakesNothingOut(SQLiteStore):
    async def show_waits(self, board: Board, put: Sequence[Wait], keep: Sequence[str] = ()) -> list[str]:
        there = [one.wait.key for one in await super().waits(_of(board))]
        return await super().show_waits(board, put, [*there, *keep])


class LooksThenShows(TwoSteps):
    async def show_waits(self, board: Board, put: Sequence[Wait], keep: Sequence[str] = ()) -> list[str]:
        async def is_late() -> bool:
            known = await self.load_board(board.namespace, board.workflow_id)
            return known is not None and known.at > board.at

        if await is_late():
            return []
        if board.workflow_id in self.between:
            self.between.append(board.workflow_id)
            await until(is_late)
        else:  # the newest, which comes first
            await self.meet(board.workflow_id, is_late)
        return await super().show_waits(board, put, keep)

    def _show(self, board: Board, put: Sequence[Wait], keys: list[str]) -> list[Query]:
        (save, values), *others = super()._show(board, put, keys)
        return [(save.replace("excluded.at >= known.at", "true"), values), *others]


class SaysNothingIsMissing(SQLiteStore):
    async def show_waits(self, board: Board, put: Sequence[Wait], keep: Sequence[str] = ()) -> list[str]:
        await super().show_waits(board, put, keep)
        return []


class SearchesByPattern(SQLiteStore):
    async def waits(self, wanted: WaitFilter, **options: Any) -> list[ShownWait]:
        wild = wanted.model_copy(update={"text": wanted.text.partition("%")[0].partition("_")[0]})
        return await super().waits(wild, **options)


class OrdersByKey(SQLiteStore):
    async def waits(self, wanted: WaitFilter, **options: Any) -> list[ShownWait]:
        return sorted(await super().waits(wanted, **options), key=lambda one: one.wait.key)


class CountsAll(SQLiteStore):
    async def count_waits(self, wanted: WaitFilter) -> dict[str, int]:
        return await super().count_waits(WaitFilter(namespace=wanted.namespace))


class TakesNoTenantsForAll(SQLiteStore):
    async def waits(self, wanted: WaitFilter, **options: Any) -> list[ShownWait]:
        return await super().waits(wanted.model_copy(update={"tenants": wanted.tenants or None}), **options)


class CountsForEveryOwner(SQLiteStore):
    async def count_waits(self, wanted: WaitFilter) -> dict[str, int]:
        return await super().count_waits(wanted.model_copy(update={"owner": None}))


class ForgetsOtherNamespaces(SQLiteStore):
    async def forget_boards(self, namespace: str, before: datetime) -> None:
        await super().forget_boards(namespace, before)
        await super().forget_boards("other", before)


class KeepsBoardsOfDeletedSessions(SQLiteStore):
    async def delete_session(self, session_id: str, *, keep_decisions: bool = False) -> None:
        shown = [one for one in await super().waits(WaitFilter(namespace="default")) if one.board.session == session_id]
        await super().delete_session(session_id, keep_decisions=keep_decisions)
        for one in shown:
            await super().show_waits(one.board, [one.wait])


def _of(board: Board) -> WaitFilter:
    return WaitFilter(namespace=board.namespace, workflow_id=board.workflow_id)
