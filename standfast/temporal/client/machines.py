"""Tells whether a Temporal server is on this machine: then a file store may serve all its workers."""

import asyncio
import socket
from typing import Any

from temporalio.client import Client

from standfast.errors import InputError
from standfast.stores import SQLiteStore


async def check_machine(store: Any, client: Client) -> None:
    """Refuse a store that only this machine sees if other machines may reach the server.

    Workers elsewhere would have different files: they would begin sessions again, and repeat work.

    Raises:
        InputError: with advice.
    """
    target = client.service_client.config.target_host
    if not isinstance(store, SQLiteStore) or await asyncio.to_thread(_is_here, target):
        return
    raise InputError(
        f"{store!r} is a file on this machine, but the Temporal server {target} is not on it: workers on other "
        "machines would not see its sessions, and would run calls again. Use one store for all, such as "
        "postgres_store(…), or declare that all workers run here: single_machine=True"
    )


def _is_here(target: str) -> bool:
    """Whether an address belongs to this machine, so that a socket can bind it. An unknown address may belong to it."""
    host = target.rpartition(":")[0].strip("[]") or target
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return True  # the server is reached by other means, such as a name that only the SDK resolves
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: Any) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as tried:
        try:
            tried.bind(address)
        except OSError:
            return False
        return True
