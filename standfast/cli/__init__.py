"""The command `standfast`, a thin layer over `standfast.temporal`; each kind of command has a module."""

import sys

try:
    from standfast.cli.program import main
except KeyboardInterrupt:  # it takes 0.3 s to load, in which somebody may think better of it
    sys.exit(130)

__all__ = ["main"]
