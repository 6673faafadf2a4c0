"""Explains the errors of PostgreSQL and of its client: what happened, and what to do about it.

asyncpg is not imported here; its errors are recognized by their attributes.
"""

import socket
import ssl

from standfast.errors import InputError, StandfastError, StoreError

_AWAY = "does not answer, or the connection to it was lost; the operation can be repeated once it is back"
_MEANINGS = {
    "28P01": "refuses this user's password; check it, and write @ : / ? # and % in it as %40 %3A %2F %3F %23 %25",
    "28": "refuses this user; check the user's name, and the server's pg_hba.conf",
    "3D000": "cannot be opened: there is no such database; create it, or give another address",
    "42501": "refuses this user's operation; give the user the rights to the schema and its tables, and to create "
    "the schema if there is none (GRANT CREATE ON DATABASE)",
    "42P01": "lacks a table that its schema version says it has; restore it from a backup, or give another schema",
    "42703": "lacks a column that its schema version says it has; restore it from a backup, or give another schema",
    "25006": "is read-only: it is a replica, or default_transaction_read_only is on; give the address of the primary",
    "53100": "cannot grow: the server's disk is full; free some space, then try again",
    "53200": "has run out of memory on its server; try again later",
    "53300": "has no connection left; raise the server's max_connections, or give fewer with max_connections=",
    "54000": "refuses a value that is too large: 1 GB is the most for a text, 2,700 bytes for a key",
    "57P01": _AWAY,
    "57P02": _AWAY,
    "57P03": "does not take connections yet: its server starts, stops or recovers; try again",
    "57014": "has cancelled the operation, by its statement_timeout or an administrator; try again",
    "55P03": "is locked by another session for longer than its lock_timeout; try again",
    "40": "could not do this beside what others did at the same time; try again",
    "58": "cannot be read or written: its server's disk reports an error",
    "XX001": "is damaged; restore it from a backup",
    "XX002": "is damaged; rebuild its indexes (REINDEX), or restore it from a backup",
    "08": _AWAY,
    "26000": "is behind a pooler in transaction mode, which loses prepared statements and holds; give it session mode "
    "(pool_mode = session), or give the server's own address",
}
_MEANINGS["42P05"] = _MEANINGS["26000"]
_REPEATABLE = ("08", "57P01", "57P02", "57P03", "40")


def is_away(error: BaseException) -> bool:
    """Whether an operation may succeed if it is repeated at once or soon, on another connection."""
    state = _state(error)
    if state is not None:
        return state.startswith(_REPEATABLE)
    # TimeoutError is an OSError. An error that asyncpg detects itself, such as a closed connection, is an
    # InterfaceError.
    return isinstance(error, OSError) or _is_of(error, "InterfaceError", "InternalClientError")


def translated(error: Exception, store: str) -> Exception:
    """Return the exception to raise for an error.

    Args:
        store: its name in messages, without a password.
    """
    if isinstance(error, StandfastError):
        return error
    state = _state(error)
    if state is not None and state.startswith("22"):  # usually the client's own check of a value
        result: Exception = InputError(f"The store {store} cannot keep a value: {_first_line(error)[:200]}")
    elif state is not None:
        found = (text for code, text in _MEANINGS.items() if state.startswith(code))
        result = StoreError(f"The store {store} {next(found, 'refused')} ({_first_line(error)})")
    elif isinstance(error, ssl.SSLError):
        result = StoreError(f"The store {store} cannot be reached by TLS; check sslmode= in its address ({error})")
    elif isinstance(error, socket.gaierror):
        result = StoreError(f"The store {store} cannot be found: no host has this name ({error.strerror})")
    elif is_away(error):
        why = "it did not answer in time" if isinstance(error, TimeoutError) else _first_line(error)
        result = StoreError(f"The store {store} {_AWAY} ({why})")
    else:
        return error
    return result


def _state(error: BaseException) -> str | None:
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) else None


def _is_of(error: BaseException, *names: str) -> bool:
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
