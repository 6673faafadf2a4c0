"""Who runs a session now: known to every process on the machine, and forgotten by nobody but the dead.

A lock is one byte of a file beside the database, at a place that follows from the session's id. The operating system
drops it when its process, and the children that it forked, are dead, however they died: a lock needs no clock. It keeps
a second run from taking live calls for lost ones. That no two runs write is the database's to see, by version.
"""

import contextlib
import errno
import hashlib
import os
import struct
import sys
from types import ModuleType

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: sessions are then guarded within a process only
    fcntl = None


class SessionLocks:
    """Locks by session id; never waits.

    Args:
        path: of the lock file; None guards within this object only.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._file: int | None = None
        self._held: set[str] = set()

    def take(self, session_id: str) -> bool:
        """Take a session's lock; False if anybody has it."""
        if session_id in self._held:
            return False
        if self._file is None and self._path is not None and fcntl is not None:
            with contextlib.suppress(OSError):  # what is wrong with the folder is the database's to say
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if self._file is not None:
            try:
                _lock(self._file, session_id, locked=True)
            except OSError as error:
                # Any other error says that this file system has no locks: then the database alone guards.
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    self._close_if_idle()
                    return False
        self._held.add(session_id)
        return True

    def release(self, session_id: str) -> None:
        """Give a lock back."""
        self._held.discard(session_id)
        if self._file is not None:
            with contextlib.suppress(OSError):
                _lock(self._file, session_id, locked=False)
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        if not self._held and self._file is not None:
            os.close(self._file)
            self._file = None


def _lock(file: int, session_id: str, *, locked: bool) -> None:
    assert fcntl is not None
    place = int.from_bytes(hashlib.blake2b(session_id.encode(), digest_size=8).digest()) >> 2
    if sys.platform == "linux":
        # A lock of the open file, not of the process: two stores of one process exclude each other, too.
        kind = fcntl.F_WRLCK if locked else fcntl.F_UNLCK
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", kind, os.SEEK_SET, place, 1, 0))
    else:
        fcntl.lockf(file, (fcntl.LOCK_EX | fcntl.LOCK_NB) if locked else fcntl.LOCK_UN, 1, place)
