"""Agents of other frameworks: as agents of ours, or with the guard of `standfast.effects` under their tools."""
