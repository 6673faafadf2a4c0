"""`python -m standfast` is the command `standfast`."""

from standfast.cli import main

main(prog_name="standfast")
