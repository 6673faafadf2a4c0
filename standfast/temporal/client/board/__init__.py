"""Waiting items from outside: the board in the store, items of a run, full contents of gates."""
