"""The workflows: deterministic, without I/O, the same in every replay."""
