"""Where sessions are kept: a Protocol, and one module per database."""

from holdfast.stores.memory import MemoryStore, memory_store
from holdfast.stores.partial_answers import PartialAnswer, PartialAnswers
from holdfast.stores.protocol import (
    AgentStore,
    Append,
    DecisionRecord,
    DurableStore,
    Ledger,
    LedgerEntry,
    RunningCall,
    Session,
    session_key_of,
)
from holdfast.stores.sqlite import SQLiteStore, sqlite_store
from holdfast.stores.workers import AtWork, Workers

__all__ = [
    "AgentStore",
    "Append",
    "AtWork",
    "DecisionRecord",
    "DurableStore",
    "Ledger",
    "LedgerEntry",
    "MemoryStore",
    "PartialAnswer",
    "PartialAnswers",
    "RunningCall",
    "SQLiteStore",
    "Session",
    "Workers",
    "memory_store",
    "session_key_of",
    "sqlite_store",
]
