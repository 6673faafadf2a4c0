"""Locks that tell every process on the machine which session a run holds, and that die with their process.

A lock is one byte of a file next to the database, at an offset derived from the session's id. The operating system
drops the lock when its process dies, however it dies, so a lock does not need a clock. It keeps a second run from
mistaking live calls for lost ones. The database itself ensures, by version, that two runs never both write.
"""

import contextlib
import errno
import hashlib
import logging
import os
import stat
import struct
import sys
import threading
from types import ModuleType

from standfast.errors import StoreError
from standfast.stores.event_loops import in_forked_processes

fcntl: ModuleType | None


def private(path: str, flags: int) -> int:
    """Open a file as an `open(…, opener=private)` does."""
    return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o600)


try:
    import fcntl
except ImportError:  # Windows: sessions are then guarded only within a process
    fcntl = None

_TAKEN = (errno.EAGAIN, errno.EACCES)
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class SessionLocks:
    """Locks by session id. They never wait, and may be used from several threads.

    Args:
        path: the database's path; the lock file is next to it. None guards within this object only.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._file: int | None = None
        self._held: set[str] = set()
        self._process = os.getpid()
        self._guard = threading.Lock()
        self.shared = path is not None and fcntl is not None  # unless the file system refuses
        if self.shared:
            in_forked_processes(self._is_forked)

    def take(self, session_id: str) -> bool:
        """Take a session's lock. Return False if it is taken.

        Raises:
            StoreError: the lock file cannot be used.
        """
        with self._guard:
            self._leave_to_parent()
            if session_id in self._held:
                return False
            if self._path is not None and fcntl is not None and not self._lock(self._path, session_id):
                self._close_if_idle()
                return False
            self._held.add(session_id)
            return True

    def release(self, session_id: str) -> None:
        """Release a lock."""
        with self._guard:
            self._leave_to_parent()
            self._held.discard(session_id)
            if self._file is not None:
                with contextlib.suppress(OSError):
                    _set(self._file, session_id, locked=False)
                self._close_if_idle()

    def scope(self) -> str:
        """Return an id of the lock file, the same for all its users; "" if locks are not shared."""
        with self._guard:
            self._leave_to_parent()
            if self._path is None or not self.shared:
                return ""
            try:
                self._file = open_beside(self._path, "lock") if self._file is None else self._file
                return str(os.fstat(self._file).st_ino)
            except OSError as error:
                raise StoreError(f"The lock file {self._path}-lock cannot be used: {error}") from error
            finally:
                self._close_if_idle()

    def _lock(self, path: str, session_id: str) -> bool:
        try:
            if self._file is None:
                self._file = open_beside(path, "lock")
            _set(self._file, session_id, locked=True)
        except OSError as error:
            if error.errno in _UNSUPPORTED:  # then only the database guards
                self.shared = False
                logging.getLogger("standfast").warning("%s-lock: this file system has no locks (%s)", path, error)
            elif self._file is None or error.errno not in _TAKEN:
                raise StoreError(f"The lock file {path}-lock cannot be used: {error}") from error
            else:
                return False
        return True

    def _is_forked(self) -> None:
        self._guard = threading.Lock()  # another thread, absent here, may have held the old one
        self._leave_to_parent()

    def _leave_to_parent(self) -> None:
        """After a fork, the open file and its locks belong to the parent."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._held.clear()
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        if not self._held and self._file is not None:
            os.close(self._file)
            self._file = None


def is_any_held(path: str) -> bool:
    """Whether any lock of a database is held; False where the operating system does not tell."""
    if fcntl is None or sys.platform != "linux" or not os.path.exists(f"{path}-lock"):
        return False
    file = open_beside(path, "lock")
    try:
        asked = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # the whole file
        found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked)
        return bool(struct.unpack("hhqqi0q", found)[0] != fcntl.F_UNLCK)
    finally:
        os.close(file)


def open_beside(path: str, name: str) -> int:
    """Open the file PATH-NAME beside a database, with the database's permissions, and return its descriptor.

    Other users' folders may contain a link, to a file that would be created or get other permissions.
    """
    file = private(f"{path}-{name}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        lock, database = os.fstat(file), os.stat(path)
        if not stat.S_ISREG(lock.st_mode) or lock.st_nlink != 1:
            raise OSError(errno.EPERM, "it is a link, or not a file")
        if lock.st_uid not in (os.geteuid(), database.st_uid) and not database.st_mode & 0o022:
            raise OSError(errno.EPERM, "it belongs to somebody who may not write to the database")
        if lock.st_mode & 0o777 != database.st_mode & 0o777:
            with contextlib.suppress(
                PermissionError
            ):  # another user's: every user who may write to the database may also lock
                os.fchmod(file, database.st_mode & 0o777)
    except BaseException:
        os.close(file)
        raise
    return file


def _set(file: int, session_id: str, *, locked: bool) -> None:
    assert fcntl is not None
    place = int.from_bytes(hashlib.blake2b(session_id.encode(), digest_size=8).digest()) >> 2
    if sys.platform == "linux":
        # A lock of the open file, not of the process, so two stores of one process also exclude each other.
        kind = fcntl.F_WRLCK if locked else fcntl.F_UNLCK
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", kind, os.SEEK_SET, place, 1, 0))
    else:
        fcntl.lockf(file, (fcntl.LOCK_EX | fcntl.LOCK_NB) if locked else fcntl.LOCK_UN, 1, place)
