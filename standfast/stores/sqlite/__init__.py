"""The store for one machine: a SQLite file."""

from standfast.stores.sqlite.store import SQLiteStore, sqlite_store

__all__ = ["SQLiteStore", "sqlite_store"]
