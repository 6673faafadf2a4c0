"""Standing approvals of the D1 store. A write is one batch."""

from standfast.agent_loop import StandingApproval
from standfast.stores import standing_rows as sql
from standfast.stores.d1.database import Database
from standfast.stores.d1.ledger import decision_statement
from standfast.stores.d1.statements import statement
from standfast.stores.protocol import DecisionRecord
from standfast.stores.sqlite.waits import plain
from standfast.stores.wait_rows import Query


async def give(db: Database, approval: StandingApproval, record: DecisionRecord) -> None:
    await db.batch([decision_statement(record), statement(plain(sql.GIVE), **sql.values_of(approval))])


async def load(db: Database, query: Query) -> list[StandingApproval]:
    asked, values = query
    return [sql.read(row) for row in await db.one(statement(plain(asked), **values))]


async def change(db: Database, query: Query) -> int:
    """Run a statement, and return the number of rows that it returns."""
    asked, values = query
    return len(await db.one(statement(plain(asked), **values)))
