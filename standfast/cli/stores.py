"""The store of a command: its option, and how it is opened."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from standfast.errors import InputError
from standfast.stores import D1Store, PostgresStore, SQLiteStore, open_store

Store = SQLiteStore | PostgresStore | D1Store
USUAL = "standfast.db"
_ANOTHER = "--store or STANDFAST_STORE names another"


def store_option(
    what: str, otherwise: str = "", *, default: str | None = None, exists: bool = False
) -> Callable[[Any], Any]:
    """Return the option `--store`: the path of a SQLite file, postgresql://…, or d1://ACCOUNT/DATABASE.

    Args:
        otherwise: says what is used without it.
        exists: refuse a store that is named and not there, before a server is looked for; see `existing_store`.
    """
    help = f"{what}.  [env: STANDFAST_STORE{otherwise and f'; else {otherwise}'}]"  # noqa: A001
    shown: dict[str, Any] = {} if default is None else {"default": default, "show_default": True}
    if exists:
        shown["callback"] = _existing
    return click.option("--store", metavar="FILE|URL", envvar="STANDFAST_STORE", help=help, **shown)


def _existing(_context: click.Context, _parameter: click.Parameter, address: str | None) -> str | None:
    if address not in (None, USUAL):
        check_exists(address)
    return address


STORED = store_option("Store", default=USUAL, exists=True)


def is_file(address: str) -> bool:
    """Whether an address is that of a SQLite file."""
    return "://" not in address


def shown_address(address: str) -> str:
    """Return an address without its password."""
    if is_file(address):
        return address
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def existing_store(address: str) -> Store:
    """Open a store that is there.

    Raises:
        InputError: there is none.
    """
    check_exists(address)
    return open_store(address)


def check_exists(address: str) -> None:
    """Check that a store is there, as far as this machine can tell: opening a file would create it.

    Raises:
        InputError: there is none.
    """
    if is_file(address) and not Path(address).is_file():
        raise InputError(f"There is no store {address!r}; {_ANOTHER}")


@asynccontextmanager
async def board_if_any(address: str) -> AsyncIterator[Store | None]:
    """Open a store to read its board; the usual one does not have to be there.

    Raises:
        InputError: another one is named, which is not there.
    """
    if address == USUAL and not Path(USUAL).is_file():
        yield None
        return
    async with existing_store(address) as store:
        yield store


async def needs_server(*, run: str | None, store: str, **_: Any) -> bool:
    """Whether only a server can say what waits in a run, or in all: the store alone knows of runs in process."""
    from standfast.runtime.stored_gates import is_in_process
    from standfast.temporal.client.boards import is_without_temporal

    if run is not None:
        return not is_in_process(run)
    async with board_if_any(store) as board:
        return board is None or not await is_without_temporal(board)


def not_in_process(*, run: str, **_: Any) -> None:
    """Refuse a run in process, of which no server knows.

    Raises:
        InputError: it is one; the text says which commands show it.
    """
    from standfast.runtime.stored_gates import is_in_process

    if is_in_process(run):
        raise InputError(
            f"Run {run!r:.300} is in a store, and not on Temporal: `standfast pending RUN --store STORE` shows what it "
            "waits for, and `standfast sessions SESSION --store STORE` its messages"
        )


def store_if_any(address: str | None) -> Store | None:
    """Open the store that is named, else standfast.db if it is there.

    Raises:
        InputError: the one that is named is not there.
    """
    address = address or (USUAL if Path(USUAL).is_file() else None)
    return None if address is None else existing_store(address)
