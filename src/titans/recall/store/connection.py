"""One SQLite file (WAL), open: whose it is, one writer at a time, errors that say what to do.

A new file is readable by its owner only. A transaction is acknowledged only if the file is still
where it was opened. After something was forgotten its traces are removed; if a reader is in the
way, a mark in the file says so, and the next open or the next writer completes it.
"""

import errno
import os
import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from titans.errors import StoreError
from titans.files import check_path
from titans.recall.store.erasure import overwrite_gaps
from titans.recall.store.migrations import APPLICATION_ID, MIGRATIONS, migrate, schema_version
from titans.recall.store.rows import BUSY_SECONDS, Answer, Rows
from titans.recall.store.seal import Value

SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What a query raises; the second if Python cannot read what SQLite says of a damaged schema."""
FREE_SHARE = 0.25
"""A file with more free pages than this share is written anew after forgetting, to be smaller."""
ATTEMPTS = 5
"""To find the log empty, after forgetting."""


class Connection(Rows):
    """An open store's file. Not for several threads at once: the caller holds a lock.

    Args:
        is_durable: False only for stores that are thrown away: faster, and a loss of power may
            damage the file.
    """

    repair_hint = (
        "`titans memory check` lists all damage, `titans memory repair` keeps what is sound"
    )

    def __init__(self, path: str | Path, *, is_durable: bool = True) -> None:
        self.path = Path(path)
        self._file = self.path.absolute()  # the process may change its folder
        self._is_durable = is_durable
        if str(path) == ":memory:":
            raise StoreError(
                "':memory:' is no file, so nothing would be remembered: give the path of a file"
            )
        check_path(self.path)
        with self._translated("opened"):
            self._create()
            self.db = sqlite3.connect(
                self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._prepare()

    def _create(self) -> None:
        """Make a new file that only its owner can read; SQLite gives its -wal the same rights."""
        if self.path.parent != Path() and not self.path.parent.exists():
            self.path.parent.mkdir(parents=True, mode=0o700)
        with suppress(FileExistsError):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))

    def _prepare(self) -> None:
        """Recognise the file before anything is written to it, then bring it up to date."""
        try:
            self._refuse_foreign()
            self._wait_for_others(BUSY_SECONDS)
            self._enter_wal()
            # A commit survives loss of power, not only of the process.
            self.db.execute(f"PRAGMA synchronous = {'FULL' if self._is_durable else 'OFF'}")
            self.db.execute("PRAGMA secure_delete = ON")
            self.db.execute("PRAGMA foreign_keys = OFF")
            if schema_version(self.db) < len(MIGRATIONS):
                self.db.execute("BEGIN IMMEDIATE")
                migrate(self.db)
                self.db.execute("COMMIT")
            self._places = self._inodes()
            self._scrub(wait=0.0)
        except BaseException:
            self.db.close()
            raise

    def _refuse_foreign(self) -> None:
        # In one transaction: another process may be making the store at this moment.
        self.db.execute("BEGIN")
        application = int(self.db.execute("PRAGMA application_id").fetchone()[0])
        tables = self.db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        version = schema_version(self.db)
        self.db.execute("COMMIT")
        if application != APPLICATION_ID and tables:
            raise StoreError(
                f"{self.path} is an SQLite file of another program; choose another path"
            )
        if version > len(MIGRATIONS):
            raise StoreError(
                f"{self.path} was written by a newer version (schema {version}, "
                f"this one knows {len(MIGRATIONS)}): upgrade titans-neural-memory"
            )

    def _wait_for_others(self, seconds: float) -> None:
        self.db.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")

    def _enter_wal(self) -> None:
        # Switching to WAL does not wait for locks: two processes that create a store at once meet.
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self.db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def close(self) -> None:
        """Let go of the file."""
        self.db.close()

    @property
    def name(self) -> str:
        """The file's path, for messages."""
        return str(self.path)

    @property
    def files(self) -> list[Path]:
        """The store's file and those that SQLite keeps beside it."""
        return files_of(self._file)

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.stat().st_size for file in self.files)

    def execute(self, query: str, *values: Value) -> Answer:
        """Run a statement."""
        return self.db.execute(query, values)

    def execute_many(self, query: str, rows: Sequence[Sequence[Value]]) -> None:
        """Run a statement for each row of values."""
        self.db.executemany(query, rows)

    # Transactions

    @contextmanager
    def writing(self, scope: str | None = None) -> Iterator[None]:
        """One transaction that sees the newest state and excludes other writers of the file."""
        with self._translated("written"):
            self.db.execute("BEGIN IMMEDIATE")
            try:
                mark = self.setting("scrub")
                yield
                self._check_place()
                due = self.setting("scrub")
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise
        if due is not None:
            # Whoever asked for it waits for readers; whoever finds it left over does not.
            self._scrub(wait=BUSY_SECONDS if due != mark else 0.0)

    @contextmanager
    def reading(self, scope: str | None = None) -> Iterator[None]:
        """One transaction in which every query sees the same state, of all scopes."""
        with self._translated("read"):
            self.db.execute("BEGIN")
            try:
                yield
            finally:
                if self.db.in_transaction:
                    self.db.execute("COMMIT")

    @contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        """SQLite's errors, and the file system's, as `StoreError`s that say what to do."""
        try:
            yield
        except (*SQLITE_ERRORS, OSError) as error:
            raise StoreError(explain(error, self.path, action)) from error

    def _inodes(self) -> list[tuple[int, int]]:
        """Which files these are: the store and its write-ahead log."""
        files = (self._file, self._file.with_name(self._file.name + "-wal"))
        return [(found.st_dev, found.st_ino) for found in map(os.stat, files)]

    def _check_place(self) -> None:
        """Refuse to acknowledge what nobody could read again: the file is gone, or another."""
        try:
            same = self._inodes() == self._places
        except FileNotFoundError:
            same = False
        if not same:
            raise StoreError(
                f"{self.path} was deleted or replaced while it was open: nothing was stored; "
                "open it again"
            )

    def check_sound(self) -> None:
        """Raise `StoreError` if pages of the file are damaged; reads all of it."""
        with self._translated("read"):
            found = str(self.db.execute("PRAGMA integrity_check(1)").fetchone()[0])
        if found != "ok":
            raise self.damage(" ".join(found.split()))

    # Forgetting for good

    def request_scrub(self) -> None:
        """Have traces in the files removed after this transaction; inside `writing()`."""
        self.set_setting("scrub", uuid.uuid4().hex)

    @property
    def is_clean(self) -> bool:
        """Whether nothing that was forgotten is left in any file of the store."""
        return self.setting("scrub") is None

    def _scrub(self, wait: float) -> None:
        """Empty the log and overwrite what the file has left of deleted rows, if a mark asks.

        What cannot be done now, because a process is reading or the disk is full, stays marked.
        """
        mark = self.setting("scrub")
        if mark is None:
            return
        self._wait_for_others(wait)
        # A failure leaves the mark where it is.
        with suppress(*SQLITE_ERRORS, OSError):
            free = self.db.execute("PRAGMA freelist_count").fetchone()[0]
            if free > FREE_SHARE * self.db.execute("PRAGMA page_count").fetchone()[0]:
                self.db.execute("VACUUM")
            # Whoever writes in between has a page in the log: then once more.
            for _ in range(ATTEMPTS):
                if self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                    break
                if self._overwrite(mark, wait):
                    break
        self._wait_for_others(BUSY_SECONDS)

    def _overwrite(self, mark: str, wait: float) -> bool:
        """Overwrite traces and remove the mark, if the log is empty.

        Through a connection of its own: its commit makes all others, and this one, drop the pages
        that they know from before.
        """
        other = sqlite3.connect(self._file, timeout=wait, isolation_level=None)
        with closing(other):
            other.execute("BEGIN IMMEDIATE")
            log = self._file.with_name(self._file.name + "-wal")
            if log.stat().st_size or self._inodes() != self._places:
                return False
            if overwrite_gaps(self._file) is None:
                other.execute("ROLLBACK")
                other.execute("VACUUM")
                if other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                    return True
                other.execute("BEGIN IMMEDIATE")
            # By its token: what was forgotten meanwhile has a mark of its own.
            other.execute("DELETE FROM meta WHERE key = 'scrub' AND value = ?", (mark,))
            other.execute("COMMIT")
            return True


def files_of(path: Path) -> list[Path]:
    """The store's file and those that SQLite keeps beside it."""
    names = [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))]
    return [name for name in names if name.exists()]


def explain(error: Exception, path: Path, action: str) -> str:
    """What a user can do about an error of SQLite or the file system."""
    kind = _kind(error)
    told = error.strerror or "" if isinstance(error, OSError) else str(error)
    text = " ".join(told.split())  # a damaged schema is shown with its line breaks
    if kind == "damaged":
        return (
            f"{path} is damaged or not a store of titans ({text}): nothing was changed; "
            "restore a copy, run `titans memory repair`, or choose another path"
        )
    if kind == "full":
        return f"{path} cannot be written: the disk is full; nothing was stored, free some space"
    if kind == "read-only":
        return f"{path} cannot be {action}: it is read-only ({text}); choose a path you may write"
    if kind == "busy":
        return (
            f"{path} cannot be {action}: another process has held it for {BUSY_SECONDS:.0f} s; "
            "try again when it is done"
        )
    return f"{path} cannot be {action} ({text}): check the path, its permissions and the disk"


_CODES = {
    **dict.fromkeys((sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT), "damaged"),
    **dict.fromkeys((sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM), "read-only"),
    **dict.fromkeys((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED), "busy"),
    sqlite3.SQLITE_FULL: "full",
}
_ERRNOS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "full"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "read-only"),
}


def _kind(error: Exception) -> str:
    """What kind of error this is, by its number: its text may name a path."""
    if isinstance(error, OSError):
        return _ERRNOS.get(error.errno or 0, "")
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # not of SQLite but of Python's module
        unreadable = isinstance(error, UnicodeDecodeError)
        return "damaged" if unreadable or str(error).startswith("Could not decode") else ""
    return _CODES.get(code & 0xFF, "")
