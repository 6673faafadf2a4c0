"""Calls a method in every process that is forked from this one, before anything else runs there.

What a forked process inherits stays open in it: a lock would outlive the process that has taken it, and its death would
not be seen as long as the other lives.
"""

import os
import weakref
from collections.abc import Callable


def in_forked_processes(method: Callable[[], None]) -> None:
    """Call a method after each fork, in the child, for as long as its object is there."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
        known = weakref.WeakMethod(method)

        def call() -> None:
            if (found := known()) is not None:
                found()

        os.register_at_fork(after_in_child=call)
