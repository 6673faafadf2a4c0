"""The store of a command: its option, and how the store is opened."""

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from standfast.cli.outputs import Output
from standfast.errors import InputError, StoreError
from standfast.stores import D1Store, DurableStore, PostgresStore, SQLiteStore, open_store
from standfast.stores.protocol import has_waits

if TYPE_CHECKING:
    from temporalio.client import Client

Store = SQLiteStore | PostgresStore | D1Store
Named = str | Store  # the address of a store, or the store of an application
USUAL = "standfast.db"
_ANOTHER = "; --store or STANDFAST_STORE names another"


def store_option(
    what: str, otherwise: str = "", *, default: str | None = None, exists: bool = False
) -> Callable[[Any], Any]:
    """Return the option `--store`: the path of a SQLite file, postgresql://…, or d1://ACCOUNT/DATABASE.

    Args:
        otherwise: describes the default.
        exists: refuse a named store that does not exist, before a server is contacted; see `existing_store`.
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


def from_application(option: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the option `--store` together with `--app`, which takes the store of an application instead."""

    def decorate(function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def run(*arguments: Any, app: str | None, store: str | None, **options: Any) -> Any:
            named: Any = store
            if app is not None and store in (None, USUAL):
                from standfast.cli.applications import load_application

                its = load_application(app, None).store
                named = its.path if isinstance(its, SQLiteStore) else its
            return function(*arguments, store=named, **options)

        return option(click.option("--app", metavar="APP", help="File or module whose store is used.")(run))

    return decorate


STORED = store_option("Store", default=USUAL, exists=True)
BOARD = from_application(STORED)


def is_file(address: str) -> bool:
    """Whether an address names a SQLite file."""
    return "://" not in address


def shown_address(address: Named) -> str:
    """Return an address without its password."""
    if not isinstance(address, str):
        return address.path if isinstance(address, SQLiteStore) else repr(address)
    if is_file(address):
        return address
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def existing_store(address: Named, hint: str = _ANOTHER) -> Store:
    """Open an existing store.

    Raises:
        InputError: there is none.
    """
    if not isinstance(address, str):
        return address
    check_exists(address, hint)
    return open_store(address)


def check_exists(address: str, hint: str = _ANOTHER) -> None:
    """Check that a store exists, as far as this machine can tell: opening a file would create it.

    Raises:
        InputError: there is none.
    """
    if is_file(address) and not Path(address).is_file():
        raise InputError(f"There is no store {address!r}{hint}")


def store_if_any(address: Named | None) -> Store | None:
    """Open the named store, or standfast.db if it exists.

    Raises:
        InputError: the named store does not exist.
    """
    address = USUAL if address is None else address
    return None if address == USUAL and not Path(USUAL).is_file() else existing_store(address)


@asynccontextmanager
async def store_of_workers(
    client: "Client",
    output: Output,
    address: Named | None,
    *,
    run: str | None = None,
    task_queue: str | None = None,
    is_record: bool = False,
) -> AsyncIterator[Store | None]:
    """Open the named store, or the usual one if it exists, and check that it is the workers' store.

    Args:
        run: the workflow id that the command is about; an in-process run needs no server.
        task_queue: the queue whose workers have the store; any queue of the namespace if None.
        is_record: an act must be recorded on its audit trail before it is sent.

    Raises:
        InputError: there is none, or the workers have another.
    """
    if (opened := store_if_any(address)) is None:
        yield None
        return
    async with opened as store:
        try:
            await check_workers_store(client, output, address, store, run=run, task_queue=task_queue)
        except StoreError as error:
            if not is_record:
                raise
            raise StoreError(f"Nothing was sent: {error}") from error
        yield store


async def check_workers_store(
    client: "Client",
    output: Output,
    address: Named | None,
    store: DurableStore,
    *,
    run: str | None = None,
    task_queue: str | None = None,
) -> None:
    """Check that a store is the workers' store, as `store_of_workers` does, and report which store it is.

    Raises:
        InputError: the workers have another.
    """
    from temporalio.service import RPCError

    from standfast.runtime.stored_gates import is_in_process
    from standfast.temporal.client.board.boards import is_without_temporal
    from standfast.temporal.client.queues.queue_stores import check_read_store

    shown, is_named = shown_address(USUAL if address is None else address), address not in (None, USUAL)
    alone = has_waits(store) and await is_without_temporal(store)
    if output.is_text:
        output.note(f"Store: {shown}{', which has in-process runs only' if alone else ''}")
    if (run is not None and is_in_process(run)) or (alone and is_named):
        return
    try:
        others = await check_read_store(client, store, shown, task_queue)
    except (RPCError, RuntimeError) as error:  # a server that no longer answers, or that refuses a list to this client
        if not alone:
            output.note(f"Whether the workers have this store is not known: {getattr(error, 'message', error)}")
        return
    if others and run is None:
        output.note(f"Not shown: the runs of task queues with another store ({', '.join(others)})")


async def needs_server(*, run: str | None, store: Named, **_: Any) -> bool:
    """Whether only a server has the waiting items of a run, or of all: only the store has in-process runs."""
    from standfast.runtime.stored_gates import is_in_process
    from standfast.temporal.client.board.boards import is_without_temporal

    if run is not None:
        return not is_in_process(run)
    if (opened := store_if_any(store)) is None:
        return True
    async with opened as board:
        return not await is_without_temporal(board)


def not_in_process(*, run: str, **_: Any) -> None:
    """Refuse an in-process run, which no server knows.

    Raises:
        InputError: it is one; the text names the commands that show it.
    """
    from standfast.runtime.stored_gates import is_in_process

    if is_in_process(run):
        raise InputError(
            f"Run {run!r:.300} is in a store, and not on Temporal: `standfast pending RUN --store STORE` shows its "
            "waiting items, and `standfast sessions SESSION --store STORE` its messages"
        )
