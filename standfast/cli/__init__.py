"""The command `standfast`, a thin face of `standfast.temporal`. What a command does is in the module of its kind."""

import sys

try:
    from standfast.cli.program import main
except KeyboardInterrupt:  # it takes 0.3 s to load, in which somebody may think better of it
    sys.exit(130)

__all__ = ["main"]
