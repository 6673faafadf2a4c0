"""The store for many machines: PostgreSQL, through asyncpg."""

from standfast.stores.postgres.store import PostgresStore, postgres_store

__all__ = ["PostgresStore", "postgres_store"]
