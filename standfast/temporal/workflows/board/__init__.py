"""A run's waiting items: for queries, for the board in the store, and as search attributes."""
