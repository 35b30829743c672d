"""Leadership of a pool: of the managers with one database, which one may lead.

On SQLite there is one manager: a lock on a file beside the database. On PostgreSQL others wait for
an advisory lock, which the server frees when the leader's connection ends. The lock decides who
tries to lead; that a manager which was replaced changes nothing is up to the term (`store`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from penstock.model import PenstockError

_KEY = 0x70656E73746F636B  # "penstock": one pool in one database
# A leader whose machine has lost its power leaves a connection behind: the server finds out within
# about 10 s. On a unix socket these settings do nothing.
_NOTICES = ("tcp_keepalives_idle = 4", "tcp_keepalives_interval = 2", "tcp_keepalives_count = 3")


class Leadership:
    """The right to lead the pool in one database."""

    def __init__(self, url: str) -> None:
        self._url = sql.make_url(url)
        self._file: int | None = None
        self._database: tuple[int, int] | None = None  # SQLite: the device and inode of its file
        self._connection: sql.Connection | None = None
        self._engine = None if self.is_alone else sql.create_engine(url, pool_size=1)

    @property
    def is_alone(self) -> bool:
        """Whether only one manager may serve the database."""
        return self._url.get_backend_name() == "sqlite"

    def take(self) -> bool:
        """Takes the right to lead; False: another manager has it.

        Raises:
            PenstockError: the database allows one manager only, and it runs.
        """
        if self.is_alone:
            self._lock_file()
            self._check_database()
            return True
        try:
            return self._lock_server()
        except SQLAlchemyError:
            self.give_back()
            return False

    def holds(self) -> bool:
        """Whether the right is still there: its connection may have ended, or its file be gone."""
        if self.is_alone:
            with contextlib.suppress(PenstockError):
                self._check_database()  # gives the right back if it is not the same file
            return self._file is not None
        if self._connection is None:
            return False
        try:
            self._connection.execute(sql.text("SELECT 1"))
        except SQLAlchemyError:
            self.give_back()
            return False
        return True

    def give_back(self) -> None:
        """Lets another manager lead."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._connection is not None:
            with contextlib.suppress(SQLAlchemyError):
                self._connection.invalidate()
                self._connection.close()
            self._connection = None

    def _lock_file(self) -> None:
        database = self._url.database
        if not database or database == ":memory:":
            raise PenstockError(
                "the pool needs a database in a file", "one in memory would lose the pool",
                "name a file: --database sqlite:////var/lib/penstock/pool.db",
            )  # fmt: skip
        path = Path(f"{database}.lock")
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise PenstockError(
                f"the pool's database {database} cannot be used",
                f"{path}: {error.strerror}", "create its directory, or name another --database",
            ) from error  # fmt: skip
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            raise PenstockError(
                f"the pool's database {database} is in use",
                "another manager runs with it, and SQLite allows one",
                "stop that one, or use PostgreSQL, where a second one waits", reason="not-now",
            ) from error  # fmt: skip
        self._file = file

    def _check_database(self) -> None:
        """Checks that SQLite's file is the one that was there at first.

        What is written to a removed file is lost with this process.

        Raises:
            PenstockError: it was removed or replaced.
        """
        database = self._url.database or ""
        try:
            found = Path(database).stat()
        except OSError:
            is_same = self._database is None  # it is made by and by
        else:
            self._database = self._database or (found.st_dev, found.st_ino)
            is_same = self._database == (found.st_dev, found.st_ino)
        if not is_same:
            self.give_back()
            raise PenstockError(
                f"the pool's database {database} is not there any more",
                "it was removed or replaced while this manager ran",
                "put the file back, or stop this manager and start it with the one that is to be "
                "used: applications go on meanwhile", reason="unavailable",
            )  # fmt: skip

    def _lock_server(self) -> bool:
        if self._engine is None:
            return False
        if self._connection is None:
            engine = self._engine.execution_options(isolation_level="AUTOCOMMIT")
            self._connection = engine.connect()
            for setting in _NOTICES:
                self._connection.execute(sql.text(f"SET {setting}"))
        locked = self._connection.execute(sql.text(f"SELECT pg_try_advisory_lock({_KEY})"))
        return bool(locked.scalar_one())
