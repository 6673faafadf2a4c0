"""Runs agents of other frameworks as our own, or puts the guard of `standfast.effects` around their tools."""
