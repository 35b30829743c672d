"""Databases for tests of the pool's store."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from tests.containers.support.images import NotToBeHadError
from tests.pool.support.fake_node import FakeNode
from tests.pool.support.manager_process import ManagerProcess, wait_until
from tests.pool.support.postgres import server


@pytest.fixture(scope="package")
def postgres_url():
    """A PostgreSQL server of Debian's, for all tests of this folder."""
    if os.geteuid() != 0:
        pytest.skip("a private PostgreSQL server needs root, to run as its own user")
    with tempfile.TemporaryDirectory(prefix="penstock-postgres-") as folder:
        try:
            with server(Path(folder)) as url:
                yield url
        except NotToBeHadError as error:
            pytest.skip(f"PostgreSQL is not to be had: {error}")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/pool.db"
    return request.getfixturevalue("postgres_database")


@pytest.fixture
def postgres_database(request, postgres_url):
    """An empty database on the PostgreSQL server."""
    import sqlalchemy as sql  # noqa: PLC0415 - where the extra is installed

    engine = sql.create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    name = f"pool_{os.getpid()}_{abs(hash(request.node.nodeid)) % 10**9}"
    with engine.connect() as connection:
        connection.execute(sql.text(f"DROP DATABASE IF EXISTS {name}"))
        connection.execute(sql.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return postgres_url.replace("/postgres?", f"/{name}?")


@pytest.fixture
def make_manager(tmp_path):
    """Makes managers, and ends them after the test."""
    managers = []

    def make(*options, url=None, start=True, **fields):
        folder = tmp_path / f"manager{len(managers)}"
        folder.mkdir()
        url = url or f"sqlite:///{folder}/pool.db"
        managers.append(ManagerProcess(folder, url, *options, **fields))
        return managers[-1].start() if start else managers[-1]

    yield make
    for one in managers:
        one.close()


@pytest.fixture
def manager(make_manager):
    return make_manager()


@pytest.fixture
def make_node():
    """Makes nodes that are in the pool, and ends them after the test."""
    nodes = []

    def make(manager, name="n0", cards=None, joins=True, **fields):
        nodes.append(FakeNode(manager, name, cards, **fields))
        if joins:
            wait_until(lambda: any(one.name == name and one.last for one in manager.state().nodes))
        return nodes[-1]

    yield make
    for one in nodes:
        one.close()
