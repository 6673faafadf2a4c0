"""Sessions, ledger and replies in a D1 database of Cloudflare, for workers on any number of machines."""

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from standfast.errors import InputError
from standfast.extras import MissingExtraError, install
from standfast.stores.d1 import ledger, rows
from standfast.stores.d1.connections import Connections
from standfast.stores.d1.database import API, D1Binding, Database, HttpBinding
from standfast.stores.d1.holds import LEASE
from standfast.stores.d1.statements import LARGEST, chunks, statement
from standfast.stores.partial_answers import PartialAnswer
from standfast.stores.protocol import DecisionRecord, LedgerEntry, RunningCall, Session
from standfast.stores.schema_versions import lost_identity
from standfast.stores.sql.dialect import Query, Row
from standfast.stores.sql.rows import Write
from standfast.stores.sql.store import SQLStore
from standfast.stores.sql.tables import SQLTables
from standfast.stores.tables import BATCH_BYTES, TIMES, check_times, moment
from standfast.stores.waits import Board, Wait

if TYPE_CHECKING:
    import httpx
    import httpx2


_OWN = ("write_key", "gate_decisions")  # columns that only this store has, for repeated writes


class Connection:
    """A separate binding."""

    def __init__(self, connect: Callable[[], D1Binding], name: str) -> None:
        self._binding = connect()
        self._db = Database(self._binding, name)

    async def rows(self, query: Query, *, again: bool = True) -> list[Row]:
        return (await self.batch([query]))[0]

    async def batch(self, queries: Sequence[Query], *, again: bool = True) -> list[list[Row]]:
        return await self._db.batch([statement(sql, **values) for sql, values in queries])

    async def close(self) -> None:
        if (close := getattr(self._binding, "close", None)) is not None:
            await close()


class D1Tables(SQLTables):
    """The tables of a database."""

    _batch_bytes = BATCH_BYTES // 4  # an answer is one text in JSON

    def __init__(self, connect: Callable[[], D1Binding], name: str) -> None:
        super().__init__(Connection(connect, name), name)

    async def columns(self, table: str) -> list[str]:
        return [name for name in await super().columns(table) if (name, table) != _OWN]

    async def _inserts(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> list[Query]:
        if table == "agent_sessions":
            check_times(columns, rows)
        made: list[Query] = []
        for _, part in chunks([list(map(self._value, columns, row)) for row in rows]):
            if len(part) == 1:  # unchanged: as JSON it may be too large
                made += await super()._inserts(table, columns, [tuple(part[0])])
            else:
                places = ", ".join(f"json_extract(value, '$[{place}]')" for place in range(len(columns)))
                into = f"INSERT INTO @{table} ({', '.join(columns)})"
                made.append(
                    (f"{into} SELECT {places} FROM json_each(:rows) WHERE true ON CONFLICT DO NOTHING", {"rows": part})
                )
        return made

    def _value(self, column: str, value: Any) -> Any:
        if column in TIMES and isinstance(value, datetime | str):  # D1 compares times as texts
            at = moment(value)
            return None if at is None else at.astimezone(UTC).isoformat(timespec="microseconds")
        return super()._value(column, value)


class D1Store(SQLStore):
    """A durable store in a Cloudflare D1 database, shared by workers on any number of machines.

    A hold lasts for as long as it is renewed, which the store does in the background. The holds of a dead process end
    after `lease` seconds. `await store.close()`, or leaving `async with store`, ends all holds and all connections.
    Those of an event loop also end with the loop, or when the last reference to the store is gone.

    Args:
        connect: returns the database for the running event loop; called once per loop. The database is an object like
            the binding of a Cloudflare Worker, with `prepare(sql).bind(*values)` and `await batch(statements)`; see
            `D1Binding`.
        name: the store's name in messages. Stores of other databases have other names.
        lease: in seconds.
    """

    shares_holds = True
    look_every = 5.0  # seconds; see `Workers`
    largest_row = LARGEST

    def __init__(self, connect: Callable[[], D1Binding], *, name: str = "d1", lease: float = LEASE) -> None:
        if not lease > 0:
            raise InputError(f"lease must be seconds, more than 0, got {lease!r:.80}")
        self._connections = Connections(connect, name, lease)
        super().__init__(self._connections, name)
        self._do = self._connections.do
        self._holder = self._connections.holder

    def __repr__(self) -> str:
        return f"d1_store({self._name!r})"

    async def identity(self) -> str:
        found = await self._executor.rows(("SELECT id FROM @store_identity WHERE id > ''", {}))
        if not found:
            raise lost_identity(self._name)
        return str(found[0][0])

    def tables(self) -> D1Tables:
        return D1Tables(self._connections.connect, self._name)

    async def place(self) -> str:
        return f"{await self.hold_scope()}/{await self._connections.place()}"

    async def hold(self, session_id: str) -> bool:
        return await self._connections.hold(session_id)

    async def let_go(self, session_id: str) -> None:
        await self._connections.let_go(session_id)

    # --- sessions and messages ---

    async def save_session(self, session: Session) -> None:
        await self._append(Write(session, [], holder=self._holder(session.id)))

    async def _append(self, write: Write) -> int:
        return await self._do(rows.append_rows, rows.keyed(write))

    async def _append_more(self, write: Write) -> int | None:
        return await self._do(rows.append_more, rows.keyed(write))

    # --- ledger and replies ---

    async def claim(
        self, scope: str, call_key: str, *, owner: str, arguments_hash: str, running: RunningCall | None = None
    ) -> LedgerEntry:
        holder = None if running is None else self._holder(running.worker)
        return await self._do(ledger.claim, scope, call_key, owner, arguments_hash, running, holder)

    async def begin_call(self, running: RunningCall) -> None:
        await self._do(ledger.begin_call, running, self._holder(running.worker))

    async def _append_reply(self, writes: Sequence[Write], journal_key: str, turn: int, reply: str) -> str:
        return await self._do(rows.append_reply, writes, journal_key, turn, reply)

    async def _save_reply(self, journal_key: str, turn: int, reply: str, held: tuple[str, str] | None) -> str:
        return await self._do(rows.save_reply, journal_key, turn, reply, held)

    def _decision(self, record: DecisionRecord) -> Query:
        return ledger.decision(record)

    # --- workers and their sessions ---

    async def hold_scope(self) -> str:
        # A copy of the database has its identity, but not its holds.
        return hashlib.blake2b(f"{await self.identity()} {self._name}".encode(), digest_size=8).hexdigest()

    async def add_worker(self, name: str) -> None:
        self._connections.holds.keep_worker(name)
        await super().add_worker(name)

    async def drop_worker(self, name: str) -> None:
        self._connections.holds.drop_worker(name)
        await super().drop_worker(name)

    def _show(self, board: Board, put: Sequence[Wait], keys: list[str]) -> list[Query]:
        return rows.show(board, put, keys)

    # --- partial answers ---

    async def add_partial(self, journal_key: str, part: PartialAnswer) -> None:
        # SQLite would cut a text at NUL, and UTF-8 does not encode lone surrogates. Nothing depends on the text.
        text = part.text.replace("\0", "\ufffd").replace("\x10", "\ufffd").encode("utf-16", "surrogatepass")
        await super().add_partial(journal_key, part.model_copy(update={"text": text.decode("utf-16", "replace")}))


def d1_store(
    account_id: str,
    database_id: str,
    api_token: str,
    *,
    lease: float = LEASE,
    client: "httpx.AsyncClient | httpx2.AsyncClient | None" = None,
    base_url: str | None = None,
) -> D1Store:
    """Return a durable store in a D1 database, over Cloudflare's HTTP API.

    The first operation creates its tables. If Cloudflare does not answer or refuses, the operation raises `StoreError`
    and says what to do; the text never contains the token. A request whose answer was lost is sent again where that is
    safe. A rate-limited request (429) is sent again after the time that the answer asks for, at most 30 s.

    Args:
        account_id, database_id: as shown by `wrangler d1 list` and Cloudflare's dashboard.
        api_token: with the permission "D1: Edit" for the account.
        lease: seconds after which a dead process's holds end. Only then can others take over its sessions.
        client: an httpx or httpx2 client that makes the requests, for example through a proxy. Its creator closes it,
            and uses the store on one event loop only.
        base_url: the API's URL; by default CLOUDFLARE_API_BASE_URL, else https://api.cloudflare.com/client/v4.

    Raises:
        ImportError: httpx is not installed, and no client was given.
        InputError: an id, the token or the address cannot be used.
    """
    if client is None:
        try:
            import httpx  # noqa: F401
        except ImportError as error:
            raise MissingExtraError(f"d1_store needs httpx: {install('httpx')}") from error
    for name, value in (("account_id", account_id), ("database_id", database_id)):
        if not isinstance(value, str) or not _ID.fullmatch(value):
            raise InputError(f"{name} must be letters, digits and -, as `wrangler d1 list` shows it, got {value!r:.80}")
    if not isinstance(api_token, str) or not _TOKEN.fullmatch(api_token):  # not shown: it may be nearly right
        raise InputError("api_token must be an API token of Cloudflare: printable characters without spaces")
    base = base_url or os.environ.get("CLOUDFLARE_API_BASE_URL") or API
    if not base.startswith(("https://", "http://")):
        raise InputError(f"base_url must begin with https://, got {base!r:.80}")
    url = f"{base.rstrip('/')}/accounts/{account_id}/d1/database/{database_id}/query"
    return D1Store(lambda: HttpBinding(url, api_token, client), name=f"d1://{account_id}/{database_id}", lease=lease)


_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOKEN = re.compile(r"[!-~]{1,1000}")
