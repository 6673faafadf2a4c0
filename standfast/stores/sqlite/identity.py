"""The identity of a SQLite store, and the detection of a copied or restored file.

The database has a random mark and counts its writes. A file next to it, PATH-mark, has the same two values. Each commit
writes them there without a flush to disk, which is not needed when a process is killed. A backup has an older count, or
another mark, than the file next to it, even if it was copied into the same inode. A power failure can only make the
file older than the database, which means nothing. A new mark is drawn whenever the data turn out to be copied or
restored, so that `place` changes.

The database also stores its last inode: a copy of the whole folder has both files, but usually other inodes. The device
is not stored, since its number changes when a machine restarts. A copy is a reason to warn, not to refuse: a restored
store must continue under its identity.
"""

import logging
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from secrets import token_hex

from standfast.errors import StoreError
from standfast.stores.file_holds import open_beside
from standfast.stores.schema_versions import lost_identity

_LENGTH = 54  # bytes of the file, written in place


class MarkBeside:
    """The file next to a store with its mark and the number of its last write. Each connection has one."""

    def __init__(self, path: str) -> None:
        self._path = None if path == ":memory:" else path
        self._file: int | None = None

    def read(self) -> tuple[str, int] | None:
        """Return the mark and the number of the last write; None if the file is missing or damaged.

        Raises:
            OSError: this process may not read it.
        """
        if self._path is None:
            return None
        try:
            with open(f"{self._path}-mark", "rb", opener=_here) as file:
                mark, writes = file.read(_LENGTH).split()
                return mark.decode(), int(writes)
        except (FileNotFoundError, ValueError):
            return None

    def write(self, mark: str, writes: int) -> None:
        """Write both. If the disk refuses, the file keeps an older count, which is harmless."""
        if self._path is None:
            return
        with suppress(OSError):
            if self._file is None:
                self._file = open_beside(self._path, "mark")
            data = f"{mark:<32} {writes:020}\n".encode()
            if hasattr(os, "pwrite"):
                os.pwrite(self._file, data, 0)
            else:
                os.lseek(self._file, 0, os.SEEK_SET)
                os.write(self._file, data)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def refuse_foreign_wal(path: str) -> None:
    """Refuse a database whose `-wal` belongs to a later state of it: it was replaced, and the `-wal` stayed.

    SQLite cannot detect that, and would write pages of the one into the other. The first write in a matching `-wal`
    follows the last one in the database, or an earlier one.

    Raises:
        StoreError: the database is older.
    """
    with suppress(OSError, sqlite3.Error):  # SQLite reports the problem
        if (wrote := _first_write_in_wal(path)) is not None and wrote > _writes_without_wal(path) + 1:
            raise StoreError(
                f"The store {path} was replaced by an older copy, and {path}-wal belongs to the file that was there "
                f"before: delete {path}-wal and {path}-shm. Nothing was changed."
            )


def _first_write_in_wal(path: str) -> int | None:
    """Return the number of the first write in the `-wal`, which must not be open anywhere; None if it does not have
    one.
    """
    if not os.path.exists(f"{path}-wal") or not os.path.getsize(f"{path}-wal"):
        return None
    with closing(open_without_wal(path)) as main, open(f"{path}-wal", "rb") as wal:
        query = "SELECT rootpage, sql FROM sqlite_master WHERE name = 'store_identity'"
        root, table = main.execute(query).fetchone() or (None, "")
        header = wal.read(32)
        size = int.from_bytes(header[8:12])
        while len(frame := wal.read(24 + size)) == 24 + size and frame[8:16] == header[16:24]:
            if int.from_bytes(frame[:4]) == root:
                return _writes_in_page(frame[24:], table)
    return None


def _writes_in_page(page: bytes, table: str) -> int:
    """Return the count in a page of `store_identity`, which SQLite reads as the second page of a small database."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute(f"PRAGMA page_size = {len(page)}")
        db.execute(table)
        db.deserialize(db.serialize()[: len(page)] + page)
        return _writes(db)


def _writes_without_wal(path: str) -> int:
    with closing(open_without_wal(path)) as main:
        return _writes(main)


def _writes(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT max(writes) FROM store_identity").fetchone()[0] or 0)


def open_without_wal(path: str) -> sqlite3.Connection:
    """Open the contents of a file without its `-wal`, read-only. No file is created next to it."""
    return sqlite3.connect(f"{Path(path).absolute().as_uri()}?immutable=1", uri=True)


def _here(path: str, flags: int) -> int:
    """Open a file that is not a link, and do not wait for a pipe: others may write to the folder."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def identity(db: sqlite3.Connection, path: str) -> str:
    """Return the store's identity.

    Raises:
        StoreError: the identity was removed.
    """
    row = db.execute("SELECT id FROM store_identity WHERE id > ''").fetchone()
    if row is None:
        raise lost_identity(path)
    return str(row[0])


def count_write(db: sqlite3.Connection) -> tuple[str, int] | None:
    """Count a write, and return the mark with the number of the write; None without a mark."""
    db.execute("UPDATE store_identity SET writes = writes + 1")  # RETURNING takes 50 µs more than another statement
    row: tuple[str, int] | None = db.execute("SELECT mark, writes FROM store_identity").fetchone()
    return None if row is None or row[0] is None else row


def current_place(db: sqlite3.Connection, path: str) -> str:
    """Return the mark of the data, which changes when they turn out to be copied or restored."""
    if path == ":memory:":
        return ""
    (mark,) = db.execute("SELECT mark FROM store_identity").fetchone() or (None,)
    return str(os.stat(path).st_ino) if mark is None else str(mark)  # a read-only file does not have a mark


def note_place(db: sqlite3.Connection, path: str) -> None:
    """Compare the database with the file next to it. If it was copied or restored, draw a new mark and warn once."""
    if path == ":memory:":
        return
    beside = MarkBeside(path)
    try:
        beside.read()
    except OSError as error:
        if os.access(path, os.W_OK):
            logging.getLogger("standfast").warning(
                "The file %s-mark cannot be read (%s), so nobody notices if the store %s is restored from a backup: "
                "delete it, or give this process the right to read and write it",
                path,
                error.strerror,
                path,
            )
        return
    with suppress(OSError, sqlite3.Error):  # a read-only file can still be read
        if not _is_as_it_was(db, path, beside):
            is_alone = not db.in_transaction
            if is_alone:
                db.execute("BEGIN IMMEDIATE")
            try:
                if not _is_as_it_was(db, path, beside):  # another process may have noted it in the meantime
                    _draw_mark(db, path, beside)
                if is_alone:
                    db.execute("COMMIT")
            except BaseException:
                if is_alone and db.in_transaction:
                    db.execute("ROLLBACK")
                raise
    beside.close()


def _is_as_it_was(db: sqlite3.Connection, path: str, beside: MarkBeside) -> bool:
    found = beside.read()  # before the database, which other processes may write to
    # A torn page reads as zeros, and a damaged file is left unchanged.
    row = db.execute("SELECT mark, writes, inode FROM store_identity WHERE id > ''").fetchone()
    return row is None or (row[2] == _inode(path) and _fits(found, row[0], row[1]))


def _fits(found: tuple[str, int] | None, mark: str | None, writes: int) -> bool:
    """Whether the file next to a database was written by it, and not by a later state of it."""
    return found is not None and found[0] == mark and found[1] <= writes


def _draw_mark(db: sqlite3.Connection, path: str, beside: MarkBeside) -> None:
    mark, writes, inode, was_at = db.execute("SELECT mark, writes, inode, path FROM store_identity").fetchone()
    is_here = inode in (None, _inode(path))
    if is_here and was_at not in (None, path) and _is_left_at(was_at, mark, writes):
        db.execute("UPDATE store_identity SET path = ?", (path,))  # moved on its disk, without the file next to it
        beside.write(mark, writes)
        return
    # A store from before there were marks keeps its place, which was its inode.
    drawn = inode if mark is None and inode is not None and is_here else token_hex(16)
    db.execute("UPDATE store_identity SET path = ?, inode = ?, mark = ?", (path, _inode(path), drawn))
    beside.write(drawn, writes)
    if was_at == path and mark is not None:
        logging.getLogger("standfast").warning("The store %s was restored from a backup", path)
    elif mark is not None or not is_here:
        logging.getLogger("standfast").warning(
            "The store %s is a copy of %s, or was restored from a backup. Both have one identity, so they cannot be "
            "told apart: if the other one is still in use, stop using one of them.",
            path,
            was_at,
        )


def _is_left_at(was_at: str, mark: str | None, writes: int) -> bool:
    """Whether the file with the mark is still at a database's old place, which this process may be unable to read."""
    with suppress(OSError):
        return _fits(MarkBeside(was_at).read(), mark, writes)
    return False


def _inode(path: str) -> str:
    return str(os.stat(path).st_ino)
