"""Event feed: reads new events from the tenants' event files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.model import PenstockError
from penstock.node.tenants.tenant_events import FILE, read_events
from penstock.node.tenants.tombstones import read_ended

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from penstock.node.agent.tenant_registry import TenantRegistry
    from penstock.node.tenants.state import State


class EventTail:
    """Returns the events recorded since the last `read`; the first `read` returns all of them."""

    def __init__(
        self, state: State, registry: TenantRegistry, tenants: Collection[str] = ()
    ) -> None:
        """`tenants`: the tenants to follow, all if empty."""
        self._state = state
        self._registry = registry
        self._tenants = set(tenants)
        self._ended: list[tuple[str, dict[str, Any]]] = []  # of ended tenants, for the next read
        self._places: dict[Path, tuple[int, int]] = {}  # inode, and number of bytes read so far

    def check(self) -> None:
        """Raises `PenstockError` if a tenant does not exist and left no events."""
        for name in sorted(self._tenants):
            self._ended += [(name, event) for event in self._left_by(name)]

    def is_over(self) -> bool:
        """Whether all requested tenants have ended."""
        return bool(self._tenants) and not any(
            managed.tenant.name in self._tenants for managed in self._registry.managed_tenants()
        )

    def read(self) -> list[tuple[str, dict[str, Any]]]:
        """The tenant and the fields of each new event, ordered by time."""
        found, self._ended = self._ended, []
        managed_tenants = self._registry.managed_tenants()
        if len(self._places) > len(managed_tenants):  # tenants have ended
            files = {managed.tenant.directory / FILE for managed in managed_tenants}
            self._places = {file: place for file, place in self._places.items() if file in files}
        for managed in managed_tenants:
            name = managed.tenant.name
            if not self._tenants or name in self._tenants:
                found += [(name, event) for event in self._new(managed.tenant.directory)]
        return sorted(found, key=lambda one: str(one[1].get("time", "")))

    def _left_by(self, name: str) -> list[dict[str, Any]]:
        """The events of an ended tenant, none of a live one. Raises `PenstockError` if unknown."""
        try:
            self._registry.managed(name)
        except PenstockError:
            ended = read_ended(self._state.directory, name)
            if not ended:
                raise
            return ended
        return []

    def _new(self, directory: Path) -> list[dict[str, Any]]:
        file = directory / FILE
        try:
            found = file.stat()
            inode, length = self._places.get(file, (0, 0))
            if inode == 0:
                self._places[file] = (found.st_ino, found.st_size)
                return read_events(directory)
            if inode != found.st_ino:  # the file was replaced; the old file's rest is lost
                length = 0
            if found.st_size <= length:
                return []
            with file.open("rb") as stream:
                stream.seek(length)
                raw = stream.read(found.st_size - length)
        except OSError:
            return []  # the tenant has ended meanwhile
        whole, _, _ = raw.rpartition(b"\n")
        self._places[file] = (found.st_ino, length + len(whole) + 1 if whole else length)
        return [event for line in whole.splitlines() if (event := _parsed(line)) is not None]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
