"""Writes audit rows about what people did to runs besides deciding: answered, said, resumed, cancelled.

Whoever does it for somebody writes the row, once it counts: the page, and the command where it has the store. What
other programs send stands in the history of the run, with the name that they gave.
"""

from datetime import UTC, datetime

from temporalio.client import Client

from standfast.messages import cut
from standfast.stores.protocol import Act, AgentStore, DecisionRecord, Ledger
from standfast.temporal.client.runs import described, listed

_MOST = 4_000  # bytes of what was said


async def record_act(
    client: Client,
    store: AgentStore | None,
    workflow_id: str,
    act: Act,
    *,
    by: str | None,
    of: str = "",
    comment: str | None = None,
) -> None:
    """Add what somebody did to the audit trail of a run, if there is a store that keeps one.

    Args:
        of: the id of the call that it is about.
        comment: what was said, or why.
    """
    if not isinstance(store, Ledger):
        return
    run = listed(await described(client, workflow_id))["first_run_id"]
    said = None if comment is None else cut(comment, _MOST)
    await store.record_decision(
        DecisionRecord(run_key=run, gate=of, at=datetime.now(UTC), decision=act, by=by, comment=said)
    )


async def load_acts(store: AgentStore | None, *run_keys: str) -> list[DecisionRecord]:
    """Return the audit trail of a run by its keys: its own, and that of the first of the runs that it continues."""
    if not isinstance(store, Ledger):
        return []
    found = [row for key in dict.fromkeys(run_keys) for row in await store.load_decisions(key)]
    return sorted(found, key=lambda row: row.at)
