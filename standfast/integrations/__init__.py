"""Adapters: the guard of `standfast.effects` under the tools of other agent frameworks, a module for each of them."""
