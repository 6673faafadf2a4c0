"""The command `standfast`, a thin layer over `standfast.temporal`; each kind of command has a module."""

import sys

try:
    from standfast.cli.program import main
except KeyboardInterrupt:  # while it is loaded
    sys.exit(130)

__all__ = ["main"]
