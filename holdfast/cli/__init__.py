"""The command `holdfast`: a thin face of `holdfast.temporal`. What a command does stands in the module of its kind."""

import sys

try:
    from holdfast.cli.program import main
except KeyboardInterrupt:  # it takes 0.3 s to load, in which somebody may think better of it
    sys.exit(130)

__all__ = ["main"]
