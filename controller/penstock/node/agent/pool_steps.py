"""Steps that bring a tenant to what a compute pool wants: grant, resize, suspend, resume, end."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.model.terms import DEFAULT_GRACE_NS
from penstock.node.admission.admit import Request
from penstock.node.admission.resize import Resize
from penstock.node.agent.pool_comparison import There
from penstock.node.agent.pool_tenants import CLAIMED_LABEL, POOL_LABEL, REVISION_LABEL
from penstock.node.agent.principal import Principal
from penstock.node.tenants.grant import write_grant
from penstock.node.tenants.tenant import open_quota
from penstock_shim.pages import PageError

if TYPE_CHECKING:
    from penstock.node.agent.card_workers import CardWorkers
    from penstock.node.agent.grant_order import GrantOrder
    from penstock.node.agent.managed_tenant import ManagedTenant
    from penstock.node.agent.orders import Orders
    from penstock.node.agent.pool_comparison import Need
    from penstock.node.agent.pool_orders import Part
    from penstock.node.agent.tenant_registry import TenantRegistry

POOL = Principal.pool()
ENDED = "its application has ended or has left this node"


def close_gate(managed: ManagedTenant) -> None:
    """Stops the tenant's launches at once, ahead of the suspension, which has more to write.

    If the suspension is refused, the tenant's supervisor opens the gate again, as its grant says.
    """
    with contextlib.suppress(PageError, PenstockError), open_quota(managed.tenant) as page:
        page.change(lambda limits: dataclasses.replace(limits, suspended=True))


def there_of(managed: ManagedTenant) -> There:
    """What is there of a tenant."""
    suspension = managed.suspension
    return There(
        managed.grant,
        suspension.state,
        suspension.problem,
        suspension.host_bytes,
        managed.revocation is not None,
    )


@dataclass(frozen=True)
class PoolSteps:
    """Carries out one step for one tenant, in any thread; each step takes milliseconds."""

    registry: TenantRegistry
    grant_order: GrantOrder
    orders: Orders
    cards: CardWorkers

    def carry_out(
        self, need: Need, name: str, part: Part | None, pool: str, grace_ns: int | None = None
    ) -> None:
        """Carries out the step. `grace_ns`: of an end, between SIGTERM and SIGKILL.

        Raises:
            PenstockError: the step is not possible, or not now.
            OSError: a file of the tenant cannot be written.
        """
        if need == "end":
            if part is not None and part.is_spread:  # it is to have other devices
                self.cards.wait_until_left(self.registry.managed(name))
            grace_ns = DEFAULT_GRACE_NS if grace_ns is None else grace_ns
            self.orders.begin_revocation(name, grace_ns, POOL, ENDED)
        if part is None:
            return
        if need == "grant":
            self.grant_order.grant(_request(part, pool), POOL)
        elif need in {"shrink", "grow"}:
            self._resize(part)
        elif need == "suspend":
            if part.is_spread:
                self.cards.wait_until_left(self.registry.managed(name))
            reason = "more urgent work needs its blocks"
            self.orders.suspend(name, POOL, reason, release_memory=True)
        elif need == "resume":
            self._resume(part)
        elif need == "note":
            self._note(part)

    def _resume(self, part: Part) -> None:
        """Resumes it where it was, or on the devices that the pool has chosen now."""
        has = [one.uuid for one in self.registry.managed(part.application).grant.devices]
        wanted = [share.uuid for share in part.shares]
        self.orders.resume(part.application, POOL, () if wanted == has else wanted)

    def _resize(self, part: Part) -> None:
        """Resizes each device whose share differs, those that shrink first."""
        before = {one.uuid: one for one in self.registry.managed(part.application).grant.devices}

        def growth(uuid: str, memory_bytes: int, cores_permille: int) -> bool:
            old = before[uuid]
            return memory_bytes > old.memory_bytes or cores_permille > old.cores_permille

        shares = [(one.uuid, one.memory_bytes, one.cores_permille) for one in part.shares]
        for uuid, memory_bytes, cores_permille in sorted(shares, key=lambda one: growth(*one)):
            change = Resize(memory_bytes, cores_permille, part.mode, uuid)
            self.orders.resize(part.application, change, POOL)

    def _note(self, part: Part) -> None:
        """Writes the revision that was carried out into the grant, for an agent after this one."""
        with self.registry.lock:
            managed = self.registry.managed(part.application)
            labels = {**managed.grant.labels, REVISION_LABEL: str(part.revision)}
            after = dataclasses.replace(managed.grant, labels=labels)
            write_grant(managed.tenant.directory, after)
            self.registry.changed(managed, after)


def _request(part: Part, pool: str) -> Request:
    labels = {**part.labels, POOL_LABEL: pool, REVISION_LABEL: str(part.revision)}
    if part.claimed_ns:
        labels[CLAIMED_LABEL] = str(part.claimed_ns)
    return Request(
        name=part.application,
        command=part.command,
        devices=tuple(share.uuid for share in part.shares),
        memory_bytes=[share.memory_bytes for share in part.shares],
        cores_permille=[share.cores_permille for share in part.shares],
        mode=part.mode,
        user=part.user,
        uid=part.process_uid,
        lifetime="until-revoked",
        labels=labels,
        request_id=f"pool:{pool}:{part.application}:{part.claimed_ns}",
    )
