"""Per-user limits: what users other than administrators may request for their tenants."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model import PenstockError, format_cores, human_memory, listing
from penstock.model.quantity import FULL_DEVICE_PERMILLE
from penstock.model.terms import DEFAULT_STEP, STEPS, Step
from penstock.node.admission.checks import Free, free_shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.node.admission.admit import Request
    from penstock.node.agent.node import Node
    from penstock.node.agent.principal import Principal
    from penstock.node.tenants.grant import Grant

# Metrics carry these labels as the node's own statement of who owns a tenant.
PLACE_LABELS = frozenset({"namespace", "pod", "container"})


@dataclass(frozen=True)
class Bounds:
    """A node's limits: `penstock agent --measured --longest-grace --user-limit --user-tenants`.

    They apply to a person, whichever of the person's uids makes the call.
    """

    least_step: Step = DEFAULT_STEP  # the mildest step allowed for `onExceed.measured`
    longest_grace_ns: int = 60 * 10**9  # the most allowed for `onExceed.grace`
    user_permille: int = FULL_DEVICE_PERMILLE  # of each device, for all tenants of a user together
    user_tenants: int = 64  # per user, including tenants that have not ended yet

    def check(self, request: Request, caller: Principal) -> None:
        """Raises `PenstockError` if only an administrator may make this request."""
        if caller.is_admin:
            return
        if STEPS.index(request.measured) < STEPS.index(self.least_step):
            raise _refusal(
                f"onExceed.measured: {request.measured} is milder than this node allows",
                f"users may set {self.least_step} or stricter (penstock agent --measured)",
                f"request {self.least_step}",
            )
        if request.grace_ns > self.longest_grace_ns:
            raise _refusal(
                f"onExceed.grace: {_seconds(request.grace_ns)} is longer than this node allows",
                f"users may set at most {_seconds(self.longest_grace_ns)} "
                "(penstock agent --longest-grace)",
                "request a shorter time",
            )
        if request.allow_unknown:
            raise _refusal(
                f"{caller.name} may not allow unknown driver functions (allowUnknown)",
                "they may take memory or device time that is not accounted",
                "leave allowUnknown out",
            )
        if forged := sorted(PLACE_LABELS & request.labels.keys()):
            raise _refusal(
                f"{caller.name} may not set the labels {', '.join(forged)}",
                "only the node sets these labels, which metrics carry",
                "choose other names for your own labels",
            )

    def check_number(self, caller: Principal, grants: Iterable[Grant], held: int) -> None:
        """Checks that a user may have another tenant.

        `held`: the number of pages of the user's ended tenants that a process still has open.

        Raises:
            PenstockError: the user already has the maximum number of tenants.
        """
        if caller.is_admin:
            return
        names = [one.tenant for one in grants if person_of(one) == caller.person]
        if len(names) + held >= self.user_tenants:
            also = f", and {held} that have ended but are held open" if held else ""
            raise PenstockError(
                f"{caller.name} may have at most {self.user_tenants} tenants on this node "
                "(penstock agent --user-tenants)",
                f"there are {len(names)}: {listing(names)}{also}",
                "revoke one of these, or ask an administrator", reason="not-allowed",
            )  # fmt: skip

    def bounded(self, request: Request) -> Request:
        """The request with `onExceed` limited to what users may request.

        The DRA driver of a node calls as an administrator; `bound_…` marks the fields that a user
        wrote.
        """
        if request.bound_measured:
            measured = max(request.measured, self.least_step, key=STEPS.index)
            request = dataclasses.replace(request, measured=measured)
        if request.bound_grace:
            grace_ns = min(request.grace_ns, self.longest_grace_ns)
            request = dataclasses.replace(request, grace_ns=grace_ns)
        return request

    def left_to(
        self, caller: Principal, node: Node, grants: Iterable[Grant]
    ) -> dict[str, Free] | None:
        """The share of each device that is left to the caller, by UUID; None if unlimited."""
        if caller.is_admin or self.user_permille >= FULL_DEVICE_PERMILLE:
            return None
        own = [one for one in grants if person_of(one) == caller.person]
        beside = free_shares(node.devices, node.machine, own)
        withheld = FULL_DEVICE_PERMILLE - self.user_permille
        left = {}
        for device in node.devices:
            free = beside[device.uuid]
            withheld_bytes = -(-device.memory_bytes * withheld // FULL_DEVICE_PERMILLE)
            left[device.uuid] = Free(
                max(0, free.memory_bytes - withheld_bytes),
                max(0, free.cores_permille - withheld),
                free.holders,
            )
        return left

    def check_total(
        self,
        caller: Principal,
        grant: Grant,
        left: Mapping[str, Free] | None,
        before: Grant | None = None,
    ) -> None:
        """Checks that the user's tenants together take no more of a device than users may have.

        `left`: the result of `left_to`, computed without this grant. `before`: the grant that this
        grant replaces, whose size is always allowed.

        Raises:
            PenstockError: the grant would take the user beyond the limit.
        """
        if left is None:
            return
        for at, share in enumerate(grant.devices):
            room, had = left[share.uuid], before.devices[at] if before else None
            short = []
            if share.memory_bytes > max(room.memory_bytes, had.memory_bytes if had else 0):
                asked, most = human_memory(share.memory_bytes), human_memory(room.memory_bytes)
                short.append(f"{asked} of memory requested, at most {most} left")
            if share.cores_permille > max(room.cores_permille, had.cores_permille if had else 0):
                asked, most = format_cores(share.cores_permille), format_cores(room.cores_permille)
                short.append(f"{asked} % of cores requested, at most {most} % left")
            if short:
                others = listing([one.tenant for one in room.holders])
                raise PenstockError(
                    f"{caller.name} may hold at most {format_cores(self.user_permille)} % of a "
                    "device (penstock agent --user-limit)",
                    f"{share.name} {share.index}: {'; '.join(short)}"
                    f"{f' beside {others}' if others else ''}",
                    f"request less{', revoke one of these' if others else ''}, or ask an "
                    "administrator",
                    reason="not-allowed",
                )


def person_of(grant: Grant) -> int | None:
    """The person whose limits the grant counts towards, None if that is no local user."""
    return grant.uid if grant.owner_uid is None else grant.owner_uid


def _refusal(what: str, why: str, fix: str) -> PenstockError:
    return PenstockError(what, why, f"{fix}, or ask an administrator", reason="not-allowed")


def _seconds(time_ns: int) -> str:
    return f"{time_ns / 1e9:g}s"
