"""Calls a method in every process that is forked from this one, before other code runs there.

A forked process inherits open files. A lock would outlive the process that has taken it, and the death of that process
would go unnoticed while the child lives.
"""

import os
import weakref
from collections.abc import Callable


def in_forked_processes(method: Callable[[], None]) -> None:
    """Call a method in the child after each fork, for as long as its object exists."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which lacks fork
        known = weakref.WeakMethod(method)

        def call() -> None:
            if (found := known()) is not None:
                found()

        os.register_at_fork(after_in_child=call)
