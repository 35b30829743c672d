"""Tenant registry: what follows from adding, offering and dropping a tenant, and in which order."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest

from penstock.model import PenstockError
from penstock.node.agent.tenant_registry import TenantRegistry

MADE = [
    "table.granted", "handshakes.listen", "turns.add",
]  # fmt: skip
GONE = [
    "close_tenant", "shut", "remove", "table.granted", "turns.remove", "handshakes.forget",
    "offers.withdraw", "close",
]  # fmt: skip


class World:
    """A registry whose parts record what it calls."""

    def __init__(self, folder):
        self.calls = mock.Mock()
        parts = (self.calls.table, self.calls.handshakes, self.calls.turns, self.calls.offers)
        self.registry = TenantRegistry(SimpleNamespace(name="node"), *parts)
        self.registry.at_end = (self.calls.close_tenant, self.calls.shut)
        tenant = SimpleNamespace(name="t", directory=folder, remove=self.calls.remove)
        self.managed = SimpleNamespace(
            tenant=tenant, grant=SimpleNamespace(uid=None), revocation=None, close=self.calls.close
        )
        self.registry.add(self.managed)

    def done(self):
        """The calls since the last time."""
        names = [name for name, _, _ in self.calls.mock_calls]
        self.calls.reset_mock()
        return names


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_what_a_tenant_needs_follows_when_it_is_added_and_goes_when_it_is_dropped(world):
    assert world.done() == MADE
    assert world.registry.managed_tenants() == (world.managed,)
    world.registry.drop(world.managed)
    assert world.done() == GONE
    assert world.registry.managed_tenants() == ()
    world.registry.drop(world.managed)
    assert world.done() == ["close_tenant", "shut"], "as two threads may end it"


def test_a_tenant_whose_directory_stays_keeps_all_that_it_has(world):
    world.done()
    world.calls.remove.side_effect = OSError
    with pytest.raises(OSError):  # noqa: PT011 - of any kind
        world.registry.drop(world.managed)
    assert world.done() == ["close_tenant", "shut", "remove"]
    assert world.registry.has(world.managed)
    world.calls.remove.side_effect = None
    world.registry.drop(world.managed)
    assert world.done() == GONE


def test_an_offer_of_a_tenant_that_was_revoked_meanwhile_is_withdrawn_and_refused(world):
    world.registry.drop(world.managed)
    world.done()
    with pytest.raises(PenstockError, match="was revoked while it was being created"):
        world.registry.offered(world.managed)
    assert world.done() == ["handshakes.listen", "handshakes.forget", "offers.withdraw"]


def test_an_offer_is_refused_but_stays_until_the_end_of_a_tenant_that_is_being_ended(world):
    world.done()
    world.managed.revocation = object()
    with pytest.raises(PenstockError, match="was revoked while it was being created"):
        world.registry.offered(world.managed)
    assert world.done() == ["handshakes.listen"]


def test_a_tenant_without_time_slices_is_managed_all_the_same(world):
    world.registry.drop(world.managed)
    world.calls.turns.add.side_effect = OSError("no device thread")
    world.registry.add(world.managed)
    assert world.registry.find("t") is world.managed
    assert "no-turns" in (world.managed.tenant.directory / "events.jsonl").read_text()
