"""Starts processes that die with their parent. That needs Linux; elsewhere they outlive a parent that is killed."""

import os
import sys
from collections.abc import Sequence

# A process asks to be killed when its parent dies (1 is PR_SET_PDEATHSIG, 9 SIGKILL), then becomes the command. A
# `preexec_fn` would run Python in a fork of a process with threads, which may lock up and warns from 3.12 on.
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit("The process that started this one is gone.")
os.execv(sys.argv[2], sys.argv[2:])
"""


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """Return the command line that runs a command, given by its full path, in a process that dies with this one."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
