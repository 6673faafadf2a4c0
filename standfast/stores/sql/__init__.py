"""The store in SQL: the same statements for SQLite, PostgreSQL and D1."""
