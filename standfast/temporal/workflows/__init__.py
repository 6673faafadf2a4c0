"""The workflows: deterministic, without I/O, identical in every replay."""
