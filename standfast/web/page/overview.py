"""The overview: the number of runs of each kind, how long people have been waited for, and the costs of runs.

Each number links to the list that it counts. A value that cannot be counted is reported as unknown, and never as zero.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from temporalio.service import RPCError

from standfast.errors import StandfastError
from standfast.mcp.known_tools import known_servers
from standfast.messages import JSONObject, visible
from standfast.messages import person as identity
from standfast.stores.protocol import has_ledger
from standfast.stores.waits import WaitFilter
from standfast.temporal.client.board.boards import filter_of
from standfast.temporal.client.runs.descriptions import listed
from standfast.time_limits import time_limit
from standfast.web.identity.people import Person
from standfast.web.identity.visible_runs import bounded_filter, bounded_query, only_admitted, waiting_for
from standfast.web.page.desk import Desk
from standfast.web.page.rendering import dollars
from standfast.web.page.run_lists import WRONG, Filter
from standfast.web.page.runs import RunFacts

_KEPT = 5.0  # seconds for which concurrent viewers share the counts
_PATIENCE = 3.0  # seconds for one count
_DAYS, _RUNS = 7, 500  # runs whose costs are added up; the latest
_TILES = (
    ("Running", {"status": "running"}, ""),
    ("Waiting for people", {"status": "waiting"}, "asks"),
    ("Paused", {"status": "paused"}, "bad"),
    ("Unknown outcomes", {"waits": "unknown"}, "bad"),
    ("Failed, 24 h", {"status": WRONG, "since": "24h"}, "bad"),
    ("Complete, 24 h", {"status": "complete", "since": "24h"}, ""),
)
_AGES = (("under an hour", 1), ("1 to 24 hours", 24), ("1 to 7 days", 168), ("over 7 days", None))  # hours
_ASKED = 100  # runs that are queried if the store lacks a board

_WIDTH, _NAME, _ROW = 560, 130, 26
_HEIGHT, _FOOT, _TOP = 150, 20, 18
COLORS = 6  # classes `c0` to `c5`; the last represents all others


def bars(label: str, rows: Sequence[tuple[str, int]]) -> Markup:
    """Return a bar for each name and count."""
    most, room = max([count for _, count in rows] or [1]) or 1, _WIDTH - _NAME - 60
    drawn = [
        Markup(
            '<text class="name" x="{0}" y="{1}" text-anchor="end">{2}</text>'
            '<rect class="track" x="{3}" y="{4}" width="{5}" height="14" rx="3"/>'
            '<rect class="c0" x="{3}" y="{4}" width="{6:.1f}" height="14" rx="3"/>'
            '<text class="value" x="{7:.1f}" y="{1}">{8:,}</text>'
        ).format(
            _NAME - 10, at + 16, visible(name), _NAME, at + 5, room, room * count / most,
            _NAME + room * count / most + 8, count,
        )
        for at, (name, count) in zip(range(0, _ROW * len(rows), _ROW), rows, strict=True)
    ]  # fmt: skip
    return _chart(label, _ROW * len(rows), drawn)


def stacks(label: str, columns: Sequence[tuple[str, Sequence[float]]], top: str) -> Markup:
    """Return a column for each name, with a part for each of its values, the first at the bottom.

    Args:
        top: the text beside the highest column.
    """
    most = max([sum(values) for _, values in columns] or [1]) or 1
    step, room = (_WIDTH - 20) / max(len(columns), 1), _HEIGHT - _FOOT - _TOP
    drawn = [Markup('<text x="0" y="12">{}</text>').format(top)]
    for number, (name, values) in enumerate(columns):
        x, y = 10 + number * step, float(_HEIGHT - _FOOT)
        drawn.append(
            Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(x + step / 2, _HEIGHT - 5, name)
        )
        for color, value in enumerate(values):
            height = room * value / most
            y -= height
            drawn.append(
                Markup('<rect class="c{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
                    min(color, COLORS - 1), x + step * 0.18, y, step * 0.64, height
                )
            )
    return _chart(label, _HEIGHT, drawn)


def _chart(label: str, height: int, drawn: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg class="chart" role="img" aria-label="{0}" width="{1}" height="{2}" viewBox="0 0 {1} {2}">{3}</svg>'
    ).format(visible(label), _WIDTH, height, Markup().join(drawn))


def largest(costs: Mapping[str, float]) -> list[str]:
    """Return the names that have a separate color: those with the highest costs."""
    return sorted(costs, key=lambda name: -costs[name])[: COLORS - 1]


@dataclass(frozen=True, slots=True)
class Tile:
    """A count, its list, and its appearance; None if it could not be counted."""

    name: str
    address: str
    look: str
    count: int | None


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of the last days' runs.

    Args:
        by: dollars, by agent and day.
        counted, of: the number of runs that were added up, and the number of all runs.
        unpriced: of the added runs, the number whose model's price is unknown.
    """

    by: Mapping[str, Mapping[date, float]]
    counted: int
    of: int
    unpriced: int

    @property
    def totals(self) -> dict[str, float]:
        """The sum of each agent, the largest first."""
        sums = {name: sum(days.values()) for name, days in self.by.items()}
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def chart(self, today: date) -> Markup:
        """Return a column for each day."""
        own = largest(self.totals)
        rest = [name for name in self.by if name not in own]
        columns, most = [], 0.0
        for day in (today - timedelta(days=ago) for ago in reversed(range(_DAYS))):
            values = [self.by[name].get(day, 0.0) for name in own]
            values.append(sum(self.by[name].get(day, 0.0) for name in rest))
            columns.append((f"{day:%a} {day.day}", values))
            most = max(most, sum(values))
        return stacks("Cost by day", columns, f"{dollars(most)} on the most expensive day")


@dataclass(frozen=True, slots=True)
class Seen:
    """The contents of the overview; None represents a value that is unavailable."""

    tiles: Sequence[Tile]
    ages: Sequence[tuple[str, int]] | None
    ageless: int
    costs: Costs | None
    left_out: Sequence[tuple[str, str, str]]  # unusable MCP tools: server, tool, reason


class Overview:
    """The handler of the overview."""

    def __init__(self, desk: Desk, facts: RunFacts) -> None:
        self._desk, self._client, self._facts, self._store = desk, desk.client, facts, desk.store
        self._last: dict[object, tuple[float, asyncio.Task[Seen]]] = {}  # by the person's view

    def routes(self) -> list[Route]:
        return [Route("/overview", self.overview)]

    async def overview(self, request: Request) -> Response:
        """The state of the namespace's runs."""
        person = self._desk.person(request)
        now, theirs = asyncio.get_running_loop().time(), look_of(person)
        self._last = {known: last for known, last in self._last.items() if now - last[0] <= _KEPT}
        if theirs not in self._last:
            self._last[theirs] = (now, asyncio.create_task(self._look(person)))
        seen = await asyncio.shield(self._last[theirs][1])
        today = datetime.now(UTC).date()
        return self._desk.page(
            request,
            "overview",
            seen=seen,
            ages=None if seen.ages is None else bars("Waiting by age", seen.ages),
            chart=None if seen.costs is None else seen.costs.chart(today),
            own=[] if seen.costs is None else largest(seen.costs.totals),
            days=_DAYS,
            changes=None,
        )

    async def _look(self, person: Person) -> Seen:
        tiles, (ages, ageless), costs = await asyncio.gather(
            asyncio.gather(*(self._tile(person, *one) for one in _TILES)), self._ages(person), self._costs(person)
        )
        return Seen(tiles, ages, ageless, costs, await self._left_out(person))

    async def _left_out(self, person: Person) -> list[tuple[str, str, str]]:
        """Return the MCP tools that are left out; only people who see all runs see the servers."""
        store = self._store
        if store is None or not has_ledger(store) or person.tenants is not None or person.only_own:
            return []
        try:
            servers = await known_servers(store)
            found = [(name, await known.left_out()) for name, known in servers.items()]
        except StandfastError:
            return []
        return [(server, tool, why) for server, tools in found for tool, why in tools.items()]

    async def _tile(self, person: Person, name: str, wanted: Mapping[str, str], look: str) -> Tile:
        found = Filter.read(wanted)
        count = await self._count(person, found.query)
        return Tile(name, found.address, look if count else "", count)

    async def _count(self, person: Person, query: str) -> int | None:
        with suppress(RPCError, TimeoutError):
            async with time_limit(_PATIENCE):
                if person.only_own:  # the server does not know whose runs they are
                    found = await self._list(person, query)
                    return None if found is None else len(found)
                return (await self._client.count_workflows(bounded_query(person, query))).count
        return None

    async def _list(self, person: Person, query: str) -> list[JSONObject] | None:
        """Return the latest runs that a person may see; None if runs of theirs may be missing.

        For people who see all runs, or all of a tenant, the latest are enough.
        """
        found = self._client.list_workflows(bounded_query(person, query), limit=_RUNS)
        runs = [listed(run) async for run in found]
        theirs = await only_admitted(self._desk.people, person, runs)
        return None if person.only_own and len(runs) == _RUNS else theirs

    async def _ages(self, person: Person) -> tuple[Sequence[tuple[str, int]] | None, int]:
        """Return the number of items by waiting time, and the number of items of unknown age."""
        people = self._desk.people
        try:
            if (board := await people.board()) is None:
                return _by_age(await waiting_for(people, person, {}, _ASKED))
            older = [
                sum((await board.count_waits(self._waits(person, hours))).values())
                for hours in (None, *(most for _, most in _AGES if most is not None))
            ]
        except (RPCError, StandfastError):
            return None, 0
        return [(name, more - less) for (name, _), more, less in zip(_AGES, older, [*older[1:], 0], strict=True)], 0

    def _waits(self, person: Person, hours: int | None) -> WaitFilter:
        age = {"waits_longer_than": f"{hours}h" if hours else None}
        return bounded_filter(person, filter_of(self._client.namespace, age))  # type: ignore[arg-type]

    async def _costs(self, person: Person) -> Costs | None:
        since = datetime.combine(datetime.now(UTC).date() - timedelta(days=_DAYS - 1), datetime.min.time(), UTC)
        query = f"CloseTime >= '{since.isoformat()}' AND StandfastStatus IS NOT NULL"
        query += " AND ExecutionStatus IN ('Completed', 'Failed', 'Canceled')"
        try:
            async with time_limit(_PATIENCE):
                runs = await self._list(person, query)
        except (RPCError, TimeoutError):
            return None
        if runs is None:
            return None
        there = None if person.only_own else await self._count(person, query)
        facts = await self._facts.of(runs)
        agents = {run["workflow_id"] for run in runs if "session_id" in run}
        by: dict[str, dict[date, float]] = defaultdict(lambda: defaultdict(float))
        unpriced = 0
        for run in runs:
            known = facts.get(run["run_id"])
            if known is None or known.usage is None or _counts_for_another(run["workflow_id"], agents):
                continue
            if known.usage.cost is None:
                unpriced += 1
            else:
                by[run["type"]][datetime.fromisoformat(run["closed"]).date()] += known.usage.cost
        counted = sum(run["run_id"] in facts for run in runs)
        return Costs(by, counted, len(runs) if there is None else there, unpriced)


def look_of(person: Person) -> object:
    """Return a key that is equal for two people who see the same runs."""
    tenants = None if person.tenants is None else tuple(sorted(person.tenants))
    return (tenants, identity(person.name) if person.only_own else None)


def _by_age(items: Sequence[Mapping[str, Any]]) -> tuple[Sequence[tuple[str, int]], int]:
    now, counts = datetime.now(UTC), Counter[str]()
    for since in (item["since"] for item in items if "since" in item):
        hours = (now - datetime.fromisoformat(since)).total_seconds() / 3_600
        counts[next(name for name, most in _AGES if most is None or hours < most)] += 1
    return [(name, counts[name]) for name, _ in _AGES], len(items) - counts.total()


def _counts_for_another(run: str, agents: set[str]) -> bool:
    """Whether a run's usage is also counted for the agent that has called it."""
    parts = run.split("/")
    return any("/".join(parts[:end]) in agents for end in range(2, len(parts)))
