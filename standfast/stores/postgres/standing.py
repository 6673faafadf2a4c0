"""Standing approvals of the PostgreSQL store."""

from standfast.agent_loop import StandingApproval
from standfast.stores import standing_rows as sql
from standfast.stores.postgres.database import Database
from standfast.stores.postgres.ledger import record_decision
from standfast.stores.postgres.waits import rows_of
from standfast.stores.protocol import DecisionRecord
from standfast.stores.wait_rows import Query


async def give(db: Database, approval: StandingApproval, record: DecisionRecord) -> None:
    async with db.transaction():
        await record_decision(db, record)
        await rows_of(db, (sql.GIVE, sql.values_of(approval)))


async def load(db: Database, query: Query) -> list[StandingApproval]:
    return [sql.read(row) for row in await rows_of(db, query)]


async def change(db: Database, query: Query) -> int:
    """Run a statement, and return the number of rows that it returns."""
    return len(await rows_of(db, query))
