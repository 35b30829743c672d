"""SQLite store of metered amounts, and of the readings from which they were computed.

One transaction stores both, in a synced write-ahead log, so after a kill, a power cut or a full
disk the file contains either all of a batch or nothing. A commit can fail and still turn out to be
in the file when it is reopened, so each batch has a name, and a batch that is already stored is not
repeated.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.metering.account import Account
from penstock.node.metering.metered_amounts import FIELDS
from penstock.node.tenants.lock import take

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from penstock.node.metering.batch import Batch
    from penstock.node.metering.reading import Identity

FILE = "meter.db"
APPLICATION_ID = 0x70656E73  # "pens"; a file of another program is not touched
_ACCOUNT = (
    *("boot_id", "mono_ns", "wall_ns", "spent_ns", "total_bytes", "measured_ns"),
    *("measured_bytes", "credit_ns", "byte_carry", "measured_byte_carry"),
)
_AMOUNT_COLUMNS = ",\n  ".join(f"{name} INTEGER NOT NULL" for name in FIELDS)
# Each script migrates the file from the version that is its index to the next version. Append only.
MIGRATIONS = (
    f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tenant (
  id INTEGER PRIMARY KEY,
  incarnation TEXT NOT NULL UNIQUE,
  tenant TEXT NOT NULL,
  user TEXT NOT NULL,
  policy TEXT NOT NULL,
  namespace TEXT NOT NULL,
  pod TEXT NOT NULL,
  container TEXT NOT NULL
);
CREATE TABLE account (
  id INTEGER PRIMARY KEY,
  tenant_id INTEGER NOT NULL REFERENCES tenant (id),
  device_uuid TEXT NOT NULL,
  boot_id TEXT NOT NULL,
  mono_ns INTEGER NOT NULL,
  wall_ns INTEGER NOT NULL,
  spent_ns INTEGER NOT NULL,
  total_bytes INTEGER NOT NULL,
  measured_ns INTEGER,
  measured_bytes INTEGER,
  credit_ns INTEGER NOT NULL,
  byte_carry INTEGER NOT NULL,
  measured_byte_carry INTEGER NOT NULL,
  UNIQUE (tenant_id, device_uuid)
);
CREATE TABLE usage (
  unit_s INTEGER NOT NULL,
  start_s INTEGER NOT NULL,
  account_id INTEGER NOT NULL REFERENCES account (id),
  {_AMOUNT_COLUMNS},
  PRIMARY KEY (unit_s, start_s, account_id)
) WITHOUT ROWID;
""",
)
_PUT_USAGE = (
    f"INSERT INTO usage (unit_s, start_s, account_id, {', '.join(FIELDS)}) "  # noqa: S608 - names of ours
    f"VALUES (?, ?, ?, {', '.join('?' * len(FIELDS))}) ON CONFLICT DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in FIELDS)
)
_PUT_ACCOUNT = (
    f"INSERT INTO account (tenant_id, device_uuid, {', '.join(_ACCOUNT)}) "  # noqa: S608
    f"VALUES (?, ?, {', '.join('?' * len(_ACCOUNT))}) ON CONFLICT DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _ACCOUNT)
)
_BUSY_TIMEOUT_S = 5.0
_SQLITE_CORRUPT, _SQLITE_NOTADB = 11, 26  # Python has names for them since 3.11


class StoreDamagedError(Exception):
    """The file is no longer a valid database."""


def default_directory() -> Path:
    """/var/lib/penstock for root, else $XDG_STATE_HOME/penstock (~/.local/state/penstock)."""
    if os.geteuid() == 0:
        return Path("/var/lib/penstock")
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local/state") / "penstock"


class WriterLock:
    """The lock of the single writer, which the kernel releases if the process is killed."""

    def __init__(self, directory: Path) -> None:
        """Creates a missing directory. Raises `PenstockError` if another process holds the lock."""
        self._file = directory / "meter.lock"
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = directory.stat()
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                # A user who can write there could redirect our writes or change the sums.
                raise PermissionError(0, "this user does not own it, or others can write to it")
            self._fd = take(self._file)
        except BlockingIOError as error:
            pid = self._file.read_text(errors="replace")[:32].strip() or "unknown"
            raise PenstockError(
                f"another process already meters into {directory}", f"pid {pid} has its lock",
                "end that process, or name another directory",
            ) from error  # fmt: skip
        except OSError as error:
            raise PenstockError(
                f"cannot keep meter readings in {directory}",
                error.strerror or str(error),
                "check its permissions, or name another directory",
            ) from error
        with contextlib.suppress(OSError):  # on a full disk, the lock is held without the pid
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Lets another process write. May be called more than once."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Store:
    """An open store, for one thread at a time. Errors of the file are `sqlite3.Error`."""

    def __init__(self, path: Path) -> None:
        """Opens the file for writing; creates a missing file, and migrates an older one.

        Raises:
            PenstockError: a newer release, or another program, wrote the file.
            StoreDamagedError: the file is damaged.
            sqlite3.Error: the file cannot be opened now, because of a full disk or missing
            permission.
        """  # noqa: DOC501 - OperationalError is an Error; `told_apart` makes one of the two
        self.path = path
        try:  # private from the start; SQLite gives its log files the same mode
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            pass
        except OSError as error:
            raise sqlite3.OperationalError(f"{path}: {error.strerror}") from error
        self._connection = sqlite3.connect(
            path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare()
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise told_apart(error) from error
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        run = self._connection.execute
        version = int(run("PRAGMA user_version").fetchone()[0])
        owner = int(run("PRAGMA application_id").fetchone()[0])
        empty = run("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] == 0
        if (not empty or version) and owner != APPLICATION_ID:
            raise PenstockError(
                f"{self.path} is not a file of penstock", "another program created it",
                "move it away, or name another directory",
            )  # fmt: skip
        if version > len(MIGRATIONS):
            raise PenstockError(
                f"{self.path} was written by a newer release",
                f"it has version {version}, but this release only supports up to {len(MIGRATIONS)}",
                "install that release again, or name another directory",
            )
        run("PRAGMA auto_vacuum = INCREMENTAL")  # takes effect only before the first table
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")
        run("PRAGMA journal_size_limit = 4194304")
        for step, script in enumerate(MIGRATIONS[version:], version + 1):
            with self.transaction():
                for statement in script.split(";\n"):
                    if statement.strip():
                        run(statement)
                run(f"PRAGMA application_id = {APPLICATION_ID}")
                run(f"PRAGMA user_version = {step}")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction that commits everything done inside it, or nothing."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
            raise

    def commit(self, batch: Batch) -> None:
        """Stores `batch` unless it is already stored. Raises `sqlite3.Error`, changing nothing."""
        with self.transaction() as connection:
            run = connection.execute
            last = run("SELECT value FROM meta WHERE key = 'batch'").fetchone()
            if last is not None and last[0] == batch.name:
                return
            run("INSERT OR REPLACE INTO meta VALUES ('batch', ?)", (batch.name,))
            tenants = {one: _put_tenant(connection, who) for one, who in batch.identities.items()}
            accounts = {}
            for key, account in batch.accounts.items():
                values = [getattr(account, name) for name in _ACCOUNT]
                place = (tenants[key[0]], key[1])
                run(_PUT_ACCOUNT, (*place, *values))
                accounts[key] = run(
                    "SELECT id FROM account WHERE tenant_id = ? AND device_uuid = ?", place
                ).fetchone()[0]
            connection.executemany(
                _PUT_USAGE,
                (
                    (unit_s, start_s, accounts[key], *(getattr(part, name) for name in FIELDS))
                    for (unit_s, start_s, key), part in batch.usage.items()
                ),
            )

    def accounts(self, incarnation: str) -> dict[str, Account]:
        """The stored accounts of a tenant, by device UUID. Raises `sqlite3.Error` if unreadable."""
        rows = self._connection.execute(
            f"SELECT device_uuid, {', '.join(_ACCOUNT)} FROM account "  # noqa: S608 - names of ours
            "WHERE tenant_id = (SELECT id FROM tenant WHERE incarnation = ?)",
            (incarnation,),
        )
        return {row[0]: Account(*row[1:]) for row in rows}

    def give_back_room(self) -> None:
        """Returns free pages to the file system. Raises `sqlite3.Error` if that fails."""
        self._connection.execute("PRAGMA incremental_vacuum").fetchall()

    def close(self) -> None:
        """Closes the file. May be called more than once."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _put_tenant(connection: sqlite3.Connection, who: Identity) -> int:
    connection.execute(
        "INSERT INTO tenant (incarnation, tenant, user, policy, namespace, pod, container) "
        "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET policy = excluded.policy, "
        "namespace = excluded.namespace, pod = excluded.pod, container = excluded.container",
        (who.incarnation, who.tenant, who.user, who.policy, who.namespace, who.pod, who.container),
    )
    found = connection.execute("SELECT id FROM tenant WHERE incarnation = ?", (who.incarnation,))
    return int(found.fetchone()[0])


def told_apart(error: Exception) -> Exception:
    """`error`, or a `StoreDamagedError` if it means that the file itself is damaged."""
    if not isinstance(error, sqlite3.DatabaseError):
        return error
    code = getattr(error, "sqlite_errorcode", None)  # since Python 3.11
    damaged = (
        code & 0xFF in (_SQLITE_CORRUPT, _SQLITE_NOTADB)
        if code is not None
        else "malformed" in str(error) or "not a database" in str(error)
    )
    return StoreDamagedError(str(error)) if damaged else error


def set_aside(path: Path) -> Path:
    """Moves a damaged file aside for later inspection; returns its new path."""
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    for suffix in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


def open_readonly(path: Path) -> sqlite3.Connection:
    """Opens the store read-only, alongside the writer. Raises `PenstockError` if unreadable."""
    if not path.exists():
        raise PenstockError(
            f"there are no meter readings in {path.parent}", f"{path.name} does not exist",
            "start penstock agent, or name the directory that it meters into with --meter-dir",
        )  # fmt: skip
    problem: Exception | None = None
    # A write-ahead log needs an index file beside it, which cannot be created on a read-only file
    # system. But there is no writer on such a file system, so the file can be opened as immutable.
    for mode in ("mode=ro", "mode=ro&immutable=1"):
        if mode != "mode=ro" and path.with_name(f"{path.name}-wal").exists():
            break
        try:
            connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=_BUSY_TIMEOUT_S
            )
        except sqlite3.Error as error:
            problem = error
            continue
        try:
            _check_readable(connection, path)
        except sqlite3.Error as error:
            connection.close()
            problem = error
        except PenstockError:
            connection.close()
            raise
        else:
            return connection
    raise PenstockError(
        f"{path} cannot be read", str(problem), "check its permissions, or run as the agent's user"
    ) from problem


def _check_readable(connection: sqlite3.Connection, path: Path) -> None:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    owner = int(connection.execute("PRAGMA application_id").fetchone()[0])
    if owner != APPLICATION_ID or version != len(MIGRATIONS):
        raise PenstockError(
            f"{path} cannot be read by this release",
            f"it has version {version}, but this release reads version {len(MIGRATIONS)}",
            "use the same release as the agent",
        )
