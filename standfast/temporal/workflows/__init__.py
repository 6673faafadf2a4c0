"""What stands in a history: deterministic, without I/O, the same in every replay."""
