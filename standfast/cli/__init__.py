"""The command `standfast`, a thin layer over `standfast.temporal`; each kind of command has a module."""

import sys

try:
    from standfast.cli.program import main
except KeyboardInterrupt:  # loading takes 0.3 s, during which people may press Ctrl-C
    sys.exit(130)

__all__ = ["main"]
