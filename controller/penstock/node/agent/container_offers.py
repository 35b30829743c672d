"""Container offers: publishes tenants as CDI devices if the agent runs as root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.containers import container_libraries

if TYPE_CHECKING:
    from collections.abc import Container

    from penstock.devices import DeviceBackend, DriverLibraries
    from penstock.node.containers import Containers
    from penstock.node.tenants.tenant import Tenant


@dataclass(eq=False)
class ContainerOffers:
    """Offers tenants to containers, withdraws the offers, and retries failed withdrawals."""

    source: DeviceBackend
    containers: Containers | None  # None if tenants are not offered

    def __post_init__(self) -> None:
        self._withdraw_again: set[str] = set()  # ended tenants whose withdrawal failed

    def adopt(self) -> None:
        """Renews the offers from before the agent's start. Raises like `Containers.adopt`."""
        if self.containers is not None:
            self.containers.adopt()

    def libraries(self) -> DriverLibraries:
        """The driver's libraries in containers. Raises `PenstockError` if there are none."""
        if self.containers is None:
            raise PenstockError(
                "this agent cannot offer devices to containers", "it does not run as root",
                "start it as root, or run the program on the machine itself", reason="not-now",
            )  # fmt: skip
        return container_libraries(self.source)

    def offer(self, tenant: Tenant) -> str | None:
        """Offers the tenant as a CDI device; returns the device's name, None without containers."""
        return self.containers.offer(tenant) if self.containers is not None else None

    def withdraw(self, name: str) -> None:
        """Stops offering the tenant to containers; a failure is retried later."""
        if self.containers is None:
            return
        try:
            self.containers.withdraw(name)
            self._withdraw_again.discard(name)
        except (PenstockError, OSError):
            self._withdraw_again.add(name)

    def withdraw_again(self, managed: Container[str]) -> None:
        """Retries failed withdrawals, except for names that new tenants in `managed` have taken."""
        for name in [one for one in self._withdraw_again if one not in managed]:
            self.withdraw(name)
