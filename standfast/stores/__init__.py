"""Stores of sessions: a Protocol, and one module per database."""

from standfast.agent_loop import StandingApproval
from standfast.stores.addresses import open_store
from standfast.stores.d1 import D1Store, d1_store
from standfast.stores.d1.database import D1Binding
from standfast.stores.deletion import Deletion, Dropped, Noted, NotedRun
from standfast.stores.memory import MemoryStore, memory_store
from standfast.stores.partial_answers import PartialAnswer, PartialAnswers, PartialNews
from standfast.stores.postgres import PostgresStore, postgres_store
from standfast.stores.protocol import (
    AgentStore,
    Append,
    DecisionRecord,
    DurableStore,
    Ledger,
    LedgerEntry,
    RunningCall,
    Session,
    StandingApprovals,
    StandingFilter,
    session_key_of,
)
from standfast.stores.sqlite import SQLiteStore, sqlite_store
from standfast.stores.waits import Board, ShownWait, Wait, WaitFilter, WaitPlace, Waits
from standfast.stores.workers import AtWork, Workers

__all__ = [
    "AgentStore",
    "Append",
    "AtWork",
    "Board",
    "D1Binding",
    "D1Store",
    "DecisionRecord",
    "Deletion",
    "Dropped",
    "DurableStore",
    "Ledger",
    "LedgerEntry",
    "MemoryStore",
    "Noted",
    "NotedRun",
    "PartialAnswer",
    "PartialAnswers",
    "PartialNews",
    "PostgresStore",
    "RunningCall",
    "SQLiteStore",
    "Session",
    "ShownWait",
    "StandingApproval",
    "StandingApprovals",
    "StandingFilter",
    "Wait",
    "WaitFilter",
    "WaitPlace",
    "Waits",
    "Workers",
    "d1_store",
    "memory_store",
    "open_store",
    "postgres_store",
    "session_key_of",
    "sqlite_store",
]
