"""Detects a pooler in front of a PostgreSQL server, and whether holds survive it.

In transaction mode, a pooler gives each transaction to any free server connection, without telling the client. Session
locks would then belong to any client: two holders at once, and holds that outlive their process.
"""

import asyncio
import secrets
from typing import TYPE_CHECKING

from standfast.errors import StoreError

if TYPE_CHECKING:
    from asyncpg import Connection

    from standfast.stores.postgres.database import Address

_LOOKS = 20
_LOOK_EVERY = 0.1  # seconds
_HOLDER = (
    "SELECT pid = pg_backend_pid() FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())"
    " AND ((classid::bigint << 32) | objid::bigint) = $1"
)


async def check_session_mode(address: "Address", connection: "Connection") -> None:
    """Refuse a pooler that does not keep a client on one server connection.

    At the start, a server names the process that serves a connection, and a pooler cannot name it truthfully. Only
    behind a pooler, a lock is taken to check whether it persists, and ends with its connection.

    Raises:
        StoreError: the pooler does not.
    """
    if await connection.fetchval("SELECT pg_backend_pid()") == connection.get_server_pid():
        return
    key = secrets.randbits(62)
    probe = await address.connect()
    try:
        await probe.fetchval("SELECT pg_advisory_lock($1)", key)
        is_there = await probe.fetchval(_HOLDER, key)
    finally:
        await probe.close()
    for _ in range(_LOOKS if is_there else 0):
        if (is_ours := await connection.fetchval(_HOLDER, key)) is None:
            return
        if is_ours:
            await connection.fetchval("SELECT pg_advisory_unlock($1)", key)
            break
        await asyncio.sleep(_LOOK_EVERY)
    raise StoreError(
        f"The store {address.name} is behind a pooler in transaction mode, in which holds belong to anybody; give it "
        "session mode (pool_mode = session), or give the server's own address. Nothing was changed."
    )
