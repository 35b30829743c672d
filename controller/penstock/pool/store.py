"""Durable state of a pool in a database: nodes, applications, and which manager leads.

The same code runs on SQLite (one manager, the default) and on PostgreSQL (two managers, of which
one leads). Every change is one transaction that checks the leader's term first, so that a manager
that has been replaced can write nothing more. The term is the fencing token for orders to agents.
"""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from penstock.model import PenstockError
from penstock.pool.event import Event
from penstock.pool.holding import holding_of, plain_of
from penstock.pool.records import application_of, card_of
from penstock.scheduling.blocks.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from penstock.pool.holding import Holding
    from penstock.scheduling.blocks.application import Application
    from penstock.scheduling.blocks.card import Card
    from penstock.scheduling.blocks.rules import Rules
    from penstock.scheduling.blocks.space import Closed

VERSION = 2  # 1 had no is_draining, and was in no release
MOST_EVENTS = 100_000  # the newest are kept
_TRIMMED_EVERY = 1000
_TABLES = sql.MetaData()
_POOL = sql.Table(  # one row
    "pool",
    _TABLES,
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("version", sql.Integer, nullable=False),  # of these tables
    sql.Column("identity", sql.Text, nullable=False),
    sql.Column("term", sql.BigInteger, nullable=False),  # of the manager that leads
    sql.Column("leader", sql.Text, nullable=False),
)
_NODES = sql.Table(
    "nodes",
    _TABLES,
    sql.Column("place", sql.Integer, primary_key=True),  # the order in which they joined
    sql.Column("name", sql.Text, nullable=False),
    sql.Column("cards", sql.Text, nullable=False),
    sql.Column("is_there", sql.Boolean, nullable=False),
    sql.Column("is_draining", sql.Boolean, nullable=False),
)
_APPLICATIONS = sql.Table(
    "applications",
    _TABLES,
    sql.Column("name", sql.Text, primary_key=True),
    sql.Column("record", sql.Text, nullable=False),
)


_HOLDINGS = sql.Table(
    "holdings",
    _TABLES,
    sql.Column("name", sql.Text, primary_key=True),
    sql.Column("record", sql.Text, nullable=False),
)
_EVENTS = sql.Table(
    "events",
    _TABLES,
    sql.Column("number", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("time_ns", sql.BigInteger, nullable=False),
    sql.Column("event", sql.Text, nullable=False),
    sql.Column("application", sql.Text, nullable=False, index=True),
    sql.Column("node", sql.Text, nullable=False),
    sql.Column("reason", sql.Text, nullable=False),
    sql.Column("details", sql.Text, nullable=False),
)


@dataclass(frozen=True)
class Change:
    """What one operation writes in one transaction.

    `applications` and `holdings`: those that changed; None for one that has ended. `draining`:
    nodes that are to be left, or not any more.
    """

    applications: Mapping[str, Application | None] = field(default_factory=dict)
    holdings: Mapping[str, Holding | None] = field(default_factory=dict)
    joined: Sequence[tuple[str, Sequence[Card]]] = ()
    left: Sequence[str] = ()
    draining: Mapping[str, bool] = field(default_factory=dict)
    events: Sequence[Event] = ()


class NotLeadingError(PenstockError):
    """Another manager leads the pool by now."""


class Store:
    """A pool's database. Every method raises `PenstockError` if the database fails."""

    def __init__(self, url: str) -> None:
        """`url`: SQLAlchemy's, such as sqlite:////var/lib/penstock/pool.db."""
        self._where = sql.make_url(url).render_as_string(hide_password=True)
        self.term = 0
        self.identity = ""
        self.leader = ""
        self.newest_event = 0
        self._places = 0
        with self._failing("cannot be opened"):
            self._engine = sql.create_engine(url)
            if self._engine.dialect.name == "sqlite":
                sql.event.listen(self._engine, "connect", _durable)
            with self._engine.begin() as connection:
                _TABLES.create_all(connection)
                row = connection.execute(sql.select(_POOL)).one_or_none()
                if row is None:
                    first = {"id": 1, "version": VERSION, "term": 0, "leader": "",
                             "identity": str(uuid.uuid4())}  # fmt: skip
                    connection.execute(_POOL.insert(), first)
        if row is not None and row.version != VERSION:
            is_newer = row.version > VERSION
            whose = "a newer release" if is_newer else "an older one"
            raise PenstockError(
                f"the pool's database {self._where} cannot be used",
                f"{whose} wrote it (version {row.version}, this one knows {VERSION})",
                "upgrade penstock, or name another database" if is_newer
                else "end its applications with that release, then name a new database",
            )  # fmt: skip

    def lead(self, leader: str) -> int:
        """Makes this manager the leader and returns its term, which no manager had before."""
        with self._failing("cannot be written"), self._engine.begin() as connection:
            raised = _POOL.update().values(term=_POOL.c.term + 1, leader=leader)
            row = connection.execute(raised.returning(_POOL.c.term, _POOL.c.identity)).one()
            self.term, self.identity, self.leader = row.term, row.identity, leader
        return self.term

    def leads(self) -> tuple[str, int]:
        """Who leads by now, and the term."""
        with self._failing("cannot be read"), self._engine.connect() as connection:
            row = connection.execute(sql.select(_POOL)).one()
        return row.leader, row.term

    def load(self, rules: Rules, away: Collection[str] = ()) -> Pool:
        """The pool as it was written last. `away`: names of nodes that cannot be reached."""
        with self._failing("cannot be read"), self._engine.connect() as connection:
            nodes = connection.execute(sql.select(_NODES).order_by(_NODES.c.place)).all()
            records = connection.execute(sql.select(_APPLICATIONS.c.record)).scalars().all()
        self._places = len(nodes)
        there = [row for row in nodes if row.is_there]
        closed: list[tuple[str, Closed]] = [
            (row.name, "drains") for row in there if row.is_draining
        ]
        closed += [(row.name, "is away") for row in there if row.name in away]
        return Pool.restored(
            rules,
            [
                (row.name, [card_of(card) for card in json.loads(row.cards)], row.is_there)
                for row in nodes
            ],
            [application_of(json.loads(record)) for record in records],
            closed,
        )

    def load_holdings(self) -> tuple[list[Holding], set[str], int]:
        """The holdings, the nodes that drain, and the newest time that was written."""
        with self._failing("cannot be read"), self._engine.connect() as connection:
            records = connection.execute(sql.select(_HOLDINGS.c.record)).scalars().all()
            drains = sql.select(_NODES.c.name).where(_NODES.c.is_draining, _NODES.c.is_there)
            draining = set(connection.execute(drains).scalars())
            newest = sql.select(sql.func.max(_EVENTS.c.number), sql.func.max(_EVENTS.c.time_ns))
            number, time_ns = connection.execute(newest).one()
        self.newest_event = number or 0
        return [holding_of(json.loads(record)) for record in records], draining, time_ns or 0

    def write(
        self,
        applications: Mapping[str, Application | None],
        *,
        joined: Sequence[tuple[str, Sequence[Card]]] = (),
        left: Sequence[str] = (),
    ) -> None:
        """Writes applications and nodes alone; see `commit`.

        Raises:
            NotLeadingError: another manager leads by now. Nothing was written.
        """
        self.commit(Change(applications, joined=joined, left=left))

    def commit(self, change: Change) -> None:
        """Writes changes in one transaction; when it returns, they outlast a power loss.

        Raises:
            NotLeadingError: another manager leads by now. Nothing was written.
        """
        with self._failing("cannot be written"), self._engine.begin() as connection:
            self._check_leads(connection)
            if change.left:
                gone = _NODES.update().where(_NODES.c.name.in_(change.left))
                connection.execute(gone.values(is_there=False, is_draining=False))
            for place, (name, cards) in enumerate(change.joined, self._places):
                plain = json.dumps([asdict(card) for card in cards])
                row = {"place": place, "name": name, "cards": plain, "is_there": True,
                       "is_draining": False}  # fmt: skip
                connection.execute(_NODES.insert(), row)
            for name, drains in change.draining.items():
                there = _NODES.update().where(_NODES.c.name == name, _NODES.c.is_there)
                connection.execute(there.values(is_draining=drains))
            _put(connection, _APPLICATIONS, {
                name: None if one is None else json.dumps(asdict(one), default=sorted)
                for name, one in change.applications.items()
            })  # fmt: skip
            _put(connection, _HOLDINGS, {
                name: None if one is None else json.dumps(plain_of(one))
                for name, one in change.holdings.items()
            })  # fmt: skip
            newest = self._append(connection, change.events)
        self._places += len(change.joined)
        self.newest_event = newest

    def events(self, after: int, most: int, names: Sequence[str] = ()) -> list[Event]:
        """At most `most` events after number `after`, oldest first; of `names` alone, if any."""
        wanted = sql.select(_EVENTS).where(_EVENTS.c.number > after)
        if names:
            wanted = wanted.where(_EVENTS.c.application.in_(names))
        with self._failing("cannot be read"), self._engine.connect() as connection:
            rows = connection.execute(wanted.order_by(_EVENTS.c.number).limit(most)).all()
        return [
            Event(row.time_ns, row.event, row.application, row.node, row.reason,
                  json.loads(row.details), row.number)
            for row in rows
        ]  # fmt: skip

    def close(self) -> None:
        """Closes the connections."""
        self._engine.dispose()

    def _append(self, connection: sql.Connection, events: Sequence[Event]) -> int:
        """Adds events, and now and then drops the oldest; the number of the newest."""
        if not events:
            return self.newest_event
        rows = [
            {"number": number, "time_ns": one.time_ns, "event": one.event,
             "application": one.application, "node": one.node, "reason": one.reason,
             "details": json.dumps(one.details, default=str)}
            for number, one in enumerate(events, self.newest_event + 1)
        ]  # fmt: skip
        connection.execute(_EVENTS.insert(), rows)
        newest = self.newest_event + len(rows)
        if newest // _TRIMMED_EVERY != self.newest_event // _TRIMMED_EVERY:
            old = _EVENTS.delete().where(_EVENTS.c.number <= newest - MOST_EVENTS)
            connection.execute(old)
        return newest

    def _check_leads(self, connection: sql.Connection) -> None:
        """Locks the leader's row until the transaction ends, and compares its term."""
        row = connection.execute(sql.select(_POOL).with_for_update()).one()
        if row.term != self.term:
            raise NotLeadingError(
                "this manager does not lead the pool any more",
                f"{row.leader or 'another manager'} took over (term {row.term}, ours {self.term})",
                "do nothing: applications are served by the other one", reason="not-now",
            )  # fmt: skip

    @contextmanager
    def _failing(self, how: str) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            why = " ".join(str(getattr(error, "orig", None) or error).split())
            raise PenstockError(
                f"the pool's database {self._where} {how}", why,
                "check that its server or its disk has room and is reachable",
                reason="unavailable",
            ) from error  # fmt: skip


def _put(connection: sql.Connection, table: sql.Table, records: Mapping[str, str | None]) -> None:
    """Replaces the records of these names; None deletes one."""
    if not records:
        return
    gone = table.delete().where(table.c.name == sql.bindparam("gone"))
    connection.execute(gone, [{"gone": name} for name in records])
    rows = [{"name": name, "record": one} for name, one in records.items() if one is not None]
    if rows:
        connection.execute(table.insert(), rows)


def _durable(connection: Any, _: object) -> None:  # noqa: ANN401 - the driver's connection
    """Makes SQLite's transactions outlast a power loss, and lets others read meanwhile."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA busy_timeout=5000")
    cursor.close()
