"""A D1 database: its binding, which sends batches, and their repetition when answers are lost."""

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from standfast.errors import StoreError
from standfast.stores.d1.errors import D1Error, is_refused_by_guard, outcome_of, read_answer, translated
from standfast.stores.d1.statements import Statement, plain_json, values_to_send
from standfast.stores.kept_values import with_nul
from standfast.stores.sql.dialect import RefusedByGuardError, Row
from standfast.tls import tls_context

if TYPE_CHECKING:
    import httpx
    import httpx2

API = "https://api.cloudflare.com/client/v4"
CONNECT = 10.0  # seconds
ANSWER = 40.0  # seconds; D1 ends a statement after 30
TRIES = 50  # of a write that always loses the race
REPEATS = (0.1, 0.5, 2.0)  # seconds before a batch is sent again
LONGEST_WAIT = 30.0  # seconds before a rate-limited batch is sent again


class D1Statement(Protocol):
    """A statement of a binding."""

    def bind(self, *values: Any) -> Any:
        """Return the statement with values for `?1` and so on: str, int, float or None."""
        ...


class D1Binding(Protocol):
    """The part of a D1 database that a store needs, in the form of a Cloudflare Worker's binding.

    As an error, an exception whose text contains D1's message is enough. `close`, if there is one, is awaited when an
    event loop stops using the binding.
    """

    def prepare(self, sql: str, /) -> D1Statement:
        """Return a statement."""
        ...

    async def batch(self, statements: list[Any], /) -> Sequence[Any]:
        """Run bound statements in one transaction, all or none, and return a result for each.

        A result has `results`, as a key or an attribute: a list of dicts, one per row, with the columns in their order.
        """
        ...


def crowded(store: str, name: str) -> StoreError:
    return StoreError(f"The store {store} could not write {name} beside what others wrote at the same time; try again")


class Database:
    """A database in the form that the store's statements use.

    Args:
        name: the database's name in messages.
    """

    def __init__(self, binding: D1Binding, name: str) -> None:
        self._binding, self.name = binding, name

    async def batch(self, statements: Sequence[Statement], *, again: bool = True) -> list[list[Row]]:
        """Run statements in one transaction, all or none, and return the rows of each; one round trip.

        Args:
            again: whether the batch may safely run twice, so that it may be sent again if the answer is lost.

        Raises:
            RefusedByGuardError: a guard did not hold.
            StoreError: explaining the failure.
        """
        for delay in (*REPEATS, None):
            try:
                return await self._send(statements)
            except Exception as error:
                if is_refused_by_guard(error):
                    raise RefusedByGuardError from error
                outcome = outcome_of(error)
                if delay is None or outcome == "refused" or (outcome == "unknown" and not again):
                    explained = translated(error, self.name)
                    if explained is error:
                        raise
                    raise explained from error
                wait = getattr(error, "wait", None) or delay
            if wait > LONGEST_WAIT:
                wait = LONGEST_WAIT
            await asyncio.sleep(wait * (1 + random.random() / 4))  # not all refused batches at once
        raise AssertionError

    async def one(self, asked: Statement, *, again: bool = True) -> list[Row]:
        """Run one statement, and return its rows."""
        return (await self.batch([asked], again=again))[0]

    async def _send(self, statements: Sequence[Statement]) -> list[list[Row]]:
        prepared = [self._binding.prepare(one.sql).bind(*values_to_send(one, self.name)) for one in statements]
        results = await self._binding.batch(prepared)
        rows = [_rows(result) for result in results]
        if len(rows) != len(statements):
            raise D1Error(f"{len(statements)} statements have {len(rows)} results", outcome="unknown")
        return rows


def _rows(result: Any) -> list[Row]:
    results = result.get("results") if isinstance(result, dict) else getattr(result, "results", None)
    if not isinstance(results, list) or not all(isinstance(row, dict) for row in results):
        raise D1Error("a result has no `results` that are a list of dicts", outcome="unknown")
    return [tuple(map(with_nul, row.values())) for row in results]


class _Bound:
    """A statement for Cloudflare's HTTP API."""

    def __init__(self, sql: str, values: tuple[Any, ...] = ()) -> None:
        self.sql, self.values = sql, values

    def bind(self, *values: Any) -> "_Bound":
        return _Bound(self.sql, values)


class HttpBinding:
    """A database behind Cloudflare's HTTP API, as a binding.

    Args:
        client: an httpx or httpx2 client that its creator closes; None for a separate one.
    """

    def __init__(self, url: str, token: str, client: "httpx.AsyncClient | httpx2.AsyncClient | None" = None) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._given, self._own = client, None if client is not None else _client()

    def prepare(self, sql: str) -> _Bound:
        return _Bound(sql)

    async def batch(self, statements: list[_Bound]) -> list[Any]:
        content = plain_json({"batch": [{"sql": one.sql, "params": one.values} for one in statements]}).encode()
        client: Any = self._given or self._own
        response = await client.post(self._url, content=content, headers=self._headers, follow_redirects=False)
        try:
            body = response.json()
        except ValueError:
            body = None
        return read_answer(response.status_code, response.headers.get("retry-after"), response.text, body)

    async def close(self) -> None:
        if self._own is not None:
            await self._own.aclose()


def _client() -> "httpx.AsyncClient":
    import httpx

    limits = httpx.Limits(max_connections=10, max_keepalive_connections=10)
    return httpx.AsyncClient(
        verify=tls_context(), timeout=httpx.Timeout(ANSWER, connect=CONNECT, pool=None), limits=limits
    )
