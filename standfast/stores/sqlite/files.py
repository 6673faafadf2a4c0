"""The file of a SQLite store: checks, opens and migrates it, explains its errors, and detects a copied or restored one.

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
import re
import sqlite3
import stat
import time
from contextlib import closing, suppress
from pathlib import Path
from secrets import token_hex

from standfast.errors import InputError, StandfastError, StoreError
from standfast.stores.file_holds import is_any_held, open_beside, private
from standfast.stores.schema_versions import check_version, foreign, lost_identity, oldest_reader
from standfast.stores.tables import closed_error

_MOUNTS = "/proc/self/mountinfo"  # on Linux; the fifth word of a line is a mount point

_MEANINGS = {
    "SQLITE_BUSY": "is locked by another process; end that one or wait, then try again",
    "SQLITE_LOCKED": "is locked by another connection; try again",
    "SQLITE_FULL": "cannot grow: the disk is full; free some space, then try again",
    "SQLITE_READONLY": "is read-only; give this process the right to write to the file and its folder",
    "SQLITE_NOTADB": "is not a SQLite database; give another path",
    "SQLITE_CORRUPT": "is damaged; restore it from a backup",
    "SQLITE_CANTOPEN": "cannot be opened; check that the folder exists and may be written to",
    "SQLITE_IOERR": "cannot be read or written: the disk reports an error, or is full",
}
_BACKUPS = {
    "SQLITE_NOTADB": "is not a SQLite database; use another one",
    "SQLITE_CORRUPT": "is damaged; use another one",
    "SQLITE_CANTOPEN": "cannot be opened; check that this process may read it",
}
_UNREADABLE = ("SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_CORRUPT_INDEX")


class SameFile:
    """The file that a path referred to when it was opened.

    An open connection keeps using a file that was moved or replaced, where its writes are lost. A call would be claimed
    there, and run again by a process that opens the new file at the path.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._known: tuple[int, int] | None = None

    def note(self) -> None:
        """Remember the file at the path, the first time."""
        if self._known is None and self._path != ":memory:":
            found = os.stat(self._path)
            self._known = (found.st_dev, found.st_ino)

    def forget(self) -> None:
        self._known = None

    def check(self) -> None:
        """Check that the path still refers to it.

        Raises:
            StoreError: the path does not.
        """
        if self._known is None:
            return
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise StoreError(f"The store {self._path} was moved or deleted while it was open: put it back") from error
        if (found.st_dev, found.st_ino) != self._known:
            raise StoreError(
                f"The store {self._path} was replaced by another file while it was open: put it back, or start this "
                "process anew if the other one is right"
            )


def open_file(path: str, migrations: tuple[str, ...], busy_timeout: float) -> sqlite3.Connection:
    if path != ":memory:":
        # SQLite would let every user read it. The files next to it get its permissions. SQLite reports errors itself.
        with suppress(OSError):
            os.close(private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        _refuse_second_names(path)
        refuse_foreign_wal(path)
    db = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None)
    try:
        # Checked before any change: a file that is not a database, or is newer, stays unchanged.
        _refuse_foreign(db, path)
        _version(db, path, len(migrations))
        _switch_to_wal(db, busy_timeout)
        _set_up(db)
        _migrate(db, path, migrations)
        note_place(db, path)
    except BaseException:
        db.close()
        raise
    return db


def open_again(path: str) -> sqlite3.Connection:
    """Open a file that `open_file` has opened before, with a connection that does not wait for locks.

    Any thread may close it.
    """
    db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        _set_up(db)
    except BaseException:
        db.close()
        raise
    return db


def _set_up(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA foreign_keys = ON")


def wait_for_locks(db: sqlite3.Connection, seconds: float) -> None:
    """Let a connection wait this long for other connections' locks."""
    db.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")


def is_busy(error: Exception) -> bool:
    """Whether the error means that another connection has the lock. Nothing was done then."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")


def _refuse_second_names(path: str) -> None:
    """Refuse a file that may be open elsewhere under another name.

    SQLite and our locks keep recent data in files next to it, under its name. A process that uses another name does not
    see them, and would claim and run calls that have run.
    """
    with suppress(OSError):  # SQLite reports the problem
        found = os.stat(path)
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            raise StoreError(
                f"The store {path} has another name, a hard link, and a process that uses one name does not see what "
                "was written by the other: remove one of them. Nothing was changed."
            )
    with suppress(OSError), open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
        if any(re.sub(r"\\([0-7]{3})", _unescaped, line.split(" ")[4]) == path for line in mounts):
            raise StoreError(
                f"The store {path} is mounted as a file by itself, and a process that uses another name does not see "
                "what is written here: mount the folder that it is in. Nothing was changed."
            )


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 8))


def _switch_to_wal(db: sqlite3.Connection, busy_timeout: float) -> None:
    """Switch to WAL. SQLite does not wait here, and several processes may open a new file at once."""
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _refuse_foreign(db: sqlite3.Connection, path: str) -> None:
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables and "standfast_schema" not in tables:
        raise foreign(path, min(tables), "path")


def _version(db: sqlite3.Connection, path: str, newest: int) -> int:
    columns = _schema_columns(db)
    if not columns:
        return 0
    if (words := closed_words(db)) is not None:
        raise closed_error(path, words)
    oldest = "oldest_reader" if "oldest_reader" in columns else "NULL"
    query = f"SELECT version, {oldest} FROM standfast_schema ORDER BY version DESC LIMIT 1"
    version, oldest_reader = db.execute(query).fetchone() or (0, None)
    check_version(path, version, oldest_reader, newest)
    return int(version)


def closed_words(db: sqlite3.Connection) -> str | None:
    """Return the text with which a moved store is closed; None if it is open."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'store_closed'").fetchone() is None:
        return None
    return str(db.execute("SELECT words FROM store_closed").fetchone()[0])


def _schema_columns(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM pragma_table_info('standfast_schema')")}


def _migrate(db: sqlite3.Connection, path: str, migrations: tuple[str, ...]) -> None:
    if _version(db, path, len(migrations)) >= len(migrations):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute("CREATE TABLE IF NOT EXISTS standfast_schema (version INTEGER NOT NULL, oldest_reader INTEGER)")
        if "oldest_reader" not in _schema_columns(db):
            db.execute("ALTER TABLE standfast_schema ADD COLUMN oldest_reader INTEGER")
        # Checked again under the lock: another process may have migrated in the meantime.
        done = _version(db, path, len(migrations))
        for version, script in enumerate(migrations[done:], done + 1):
            for statement in script.split(";"):
                db.execute(statement)
            oldest = oldest_reader(migrations, version)
            db.execute("INSERT INTO standfast_schema (version, oldest_reader) VALUES (?, ?)", (version, oldest))
        note_place(db, path)  # at this point, a new file does not need a second flush to disk
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def restore_file(backup: str, path: str, migrations: tuple[str, ...]) -> None:
    """Replace the data of a store with a backup's, in one transaction. A missing file is created.

    Raises:
        InputError: the backup is missing, or belongs to another store, or the store's folder is missing.
        StoreError: the backup is damaged, newer or not a store; or a process has the store open; or the store has moved
            or cannot be read. Nothing was changed.
    """
    if not os.path.isfile(backup):
        raise InputError(f"There is no backup {backup!r}")
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise InputError(f"There is no folder {os.path.dirname(os.path.abspath(path))!r} for the store")
    if os.path.exists(path) and os.path.samefile(backup, path):
        raise InputError(f"{backup!r} is the store itself, and not a backup of it")
    _refuse_second_names(path)
    with closing(_open_backup(backup)) as source:
        try:
            _refuse_foreign(source, backup)
            if not _version(source, backup, len(migrations)):
                raise InputError(f"The backup {backup!r} has no tables of a store")
            wanted = identity(source, backup)
            (damage,) = source.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.Error as error:
            raise _caused_by(
                error, f"The backup {backup} {_meaning(error, _BACKUPS)} ({error}). Nothing was changed."
            ) from error
        if damage != "ok":
            raise StoreError(f"The backup {backup} is damaged ({damage}): use another one. Nothing was changed.")
        try:
            _replace(source, wanted, path, len(migrations))
        except sqlite3.Error as error:
            raise translated(error, path) from error


def _open_backup(backup: str) -> sqlite3.Connection:
    if any(os.path.exists(f"{backup}-{its}") and os.path.getsize(f"{backup}-{its}") for its in ("wal", "journal")):
        return sqlite3.connect(f"{Path(backup).absolute().as_uri()}?mode=ro", uri=True)
    return open_without_wal(backup)  # even from a read-only folder


def _replace(source: sqlite3.Connection, wanted: str, path: str, newest: int) -> None:
    if not os.path.exists(path):
        os.close(private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as target:
        try:
            _refuse_foreign(target, path)
            here = identity(target, path) if _version(target, path, newest) else wanted
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorname", "") not in _UNREADABLE:
                raise
            raise _caused_by(
                error,
                f"The store {path} cannot be read ({error}), so that nobody knows whose backup it needs: move it, "
                f"{path}-wal and {path}-shm away, then run this again. Nothing was changed.",
            ) from error
        if here != wanted:
            raise InputError(f"The backup is of the store {wanted}, and {path} is the store {here}")
        # A database leaves WAL only if no other connection has it open. In the other mode, the backup is one
        # transaction.
        if is_any_held(path) or not _leaves_wal(target):
            raise StoreError(f"The store {path} is in use: stop all its workers and runs first. Nothing was changed.")
        source.backup(target)


def _leaves_wal(db: sqlite3.Connection) -> bool:
    """Leave WAL, and exclude other connections until this one is closed. Return whether this was the only one."""
    try:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
        db.execute("COMMIT")
        return bool(db.execute("PRAGMA journal_mode").fetchone() == ("delete",))
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise
        return False


def translated(error: Exception, path: str) -> Exception:
    if isinstance(error, UnicodeEncodeError):  # a lone surrogate
        return _caused_by(error, f"The store {path} refused a text that UTF-8 cannot write: {error}")
    if isinstance(error, StandfastError) or not isinstance(error, sqlite3.Error):
        return error
    return _caused_by(error, f"The store {path} {_meaning(error, _MEANINGS)} ({error})")


def _meaning(error: sqlite3.Error, meanings: dict[str, str]) -> str:
    # Text that Python cannot decode was torn; SQLite does not have an error code for that.
    name = getattr(error, "sqlite_errorname", "SQLITE_CORRUPT" if "decode" in str(error) else "")
    return next((text for code, text in meanings.items() if name.startswith(code)), f"refused: {error}")


def _caused_by(error: Exception, text: str) -> StoreError:
    translated = StoreError(text)
    translated.__cause__ = error
    return translated


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
