"""Runs other frameworks' agents like standfast's own, or puts the guard of `standfast.effects` around their tools."""
