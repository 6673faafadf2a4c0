"""Statements and rows of standing approvals.

Times are texts of one length in UTC, as on the board.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from standfast.agent_loop import StandingApproval
from standfast.messages import person
from standfast.stores.protocol import StandingFilter
from standfast.stores.sql.dialect import Query
from standfast.stores.sql.waits import moment_text

_COLUMNS = [
    "id",
    "tenant_id",
    "agent",
    "tool",
    "scope_key",
    "session_id",
    "owner",
    "giver",
    "run_key",
    "since",
    "until",
    "data",
]
_SET_LATER = {"revoked_at", "revoked_by", "used"}
GIVE = (
    f"INSERT INTO @standing_approvals ({', '.join(_COLUMNS)})"
    f" VALUES ({', '.join(f':{name}' for name in _COLUMNS)})"
    " ON CONFLICT (id) DO NOTHING"
)
REVOKE = "UPDATE @standing_approvals SET revoked_at = :at, revoked_by = :by WHERE id = :id AND revoked_at IS NULL"
FORGET = "DELETE FROM @standing_approvals WHERE until < :before RETURNING id"
COUNT_ENDED = "SELECT id FROM @standing_approvals WHERE until < :before"
_USED = "(SELECT count(*) FROM @gate_decisions AS d WHERE d.standing = s.id AND d.refused IS NULL)"
_SELECT = f"SELECT s.data, s.revoked_at, s.revoked_by, {_USED} AS used FROM @standing_approvals AS s"


def values_of(one: StandingApproval) -> dict[str, Any]:
    """Return the columns of a standing approval."""
    return {
        "id": one.id,
        "tenant_id": one.tenant_id or "",
        "agent": one.agent,
        "tool": one.tool,
        "scope_key": one.scope_key,
        "session_id": one.session,
        "owner": person(one.user_id),
        "giver": person(one.given_by),
        "run_key": one.run,
        "since": moment_text(one.created_at),
        "until": moment_text(one.expires_at),
        "data": one.model_dump_json(exclude=_SET_LATER),
    }


def read(row: Sequence[Any]) -> StandingApproval:
    """Return a standing approval from a row of `selected`."""
    data, revoked_at, revoked_by, used = row
    later = {
        "revoked_at": None if revoked_at is None else datetime.fromisoformat(revoked_at),
        "revoked_by": revoked_by,
        "used": used,
    }
    return StandingApproval.model_validate_json(data).model_copy(update=later)


def revoked(approval_id: str, at: datetime, by: str | None) -> Query:
    return REVOKE, {"id": approval_id, "at": moment_text(at), "by": by}


def ended(before: datetime, dry_run: bool) -> Query:
    return COUNT_ENDED if dry_run else FORGET, {"before": moment_text(before)}


def selected(wanted: StandingFilter, limit: int | None) -> Query:
    """Return the statement that reads standing approvals, and its values."""
    values: dict[str, Any] = {}
    parts = ["1 = 1"]

    def among(column: str, name: str, those: Sequence[str]) -> None:
        places = {f"{name}{place}": one for place, one in enumerate(those)}
        values.update(places)
        parts.append(f"s.{column} IN ({', '.join(f':{place}' for place in places) or 'NULL'})")

    equal = {"agent": wanted.agent, "tool": wanted.tool, "tenant_id": wanted.tenant_id, "run_key": wanted.run}
    for column, value in equal.items():
        if value is not None:
            parts.append(f"s.{column} = :{column}")
            values[column] = value
    for column, name, those in (
        ("id", "one", wanted.ids),
        ("scope_key", "scope", wanted.scope_keys),
        ("tenant_id", "among", wanted.tenants),
    ):
        if those is not None:
            among(column, name, those)
    if wanted.tenants is not None:
        parts.append("s.tenant_id <> ''")  # an empty text means no tenant
    if wanted.person is not None:
        parts.append("(s.owner = :person OR s.giver = :person)")
        values["person"] = wanted.person
    if wanted.in_force_at is not None:
        parts.append("s.until > :at AND s.revoked_at IS NULL")
        values["at"] = moment_text(wanted.in_force_at)
    most = "" if limit is None else " LIMIT :most"
    values |= {} if limit is None else {"most": limit}
    where, order = " AND ".join(parts), f"s.since DESC, s.id{most}"
    return f"{_SELECT} WHERE {where} ORDER BY {order}", values
