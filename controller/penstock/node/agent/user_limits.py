"""Per-user limits: what a user who is not an administrator may request for own tenants."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model import PenstockError, format_cores, human_memory, listing
from penstock.model.limits import DEFAULT_STEP, STEPS, Step
from penstock.model.quantity import FULL_DEVICE_PERMILLE
from penstock.node.admission.checks import Free, free_shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.devices import Device
    from penstock.node.admission.admit import Request
    from penstock.node.agent.principal import Principal
    from penstock.node.tenants.grant import Grant

# Metrics carry these labels as the node's own statement of whose a tenant is.
PLACE_LABELS = frozenset({"namespace", "pod", "container"})


@dataclass(frozen=True)
class Bounds:
    """A node's limits: `penstock agent --measured --longest-grace --user-limit --user-tenants`.

    They hold for a person, under whichever uid the person calls.
    """

    least_step: Step = DEFAULT_STEP  # of `onExceed.measured`: nothing milder
    longest_grace_ns: int = 60 * 10**9  # of `onExceed.grace`
    user_permille: int = FULL_DEVICE_PERMILLE  # of each device, for all tenants of one user
    user_tenants: int = 64  # of one user, including tenants that cannot end yet

    def check(self, request: Request, caller: Principal) -> None:
        """Raises `PenstockError` for a request that only an administrator may make."""
        if caller.is_admin:
            return
        if STEPS.index(request.measured) < STEPS.index(self.least_step):
            raise _refusal(
                f"onExceed.measured: {request.measured} is milder than this node allows",
                f"for users the least step is {self.least_step} (penstock agent --measured)",
                f"ask for {self.least_step}",
            )
        if request.grace_ns > self.longest_grace_ns:
            raise _refusal(
                f"onExceed.grace: {_seconds(request.grace_ns)} is longer than this node allows",
                f"for users it is at most {_seconds(self.longest_grace_ns)} "
                "(penstock agent --longest-grace)",
                "ask for less",
            )
        if request.allow_unknown:
            raise _refusal(
                f"{caller.name} may not let unknown driver functions pass (allowUnknown)",
                "they may take memory or device time that is not accounted",
                "leave it out",
            )
        if forged := sorted(PLACE_LABELS & request.labels.keys()):
            raise _refusal(
                f"{caller.name} may not set the labels {', '.join(forged)}",
                "metrics carry them as the node's own statement",
                "choose other names for your own labels",
            )

    def check_number(self, caller: Principal, grants: Iterable[Grant], held: int) -> None:
        """Raises `PenstockError` when a user has reached the number of tenants per user.

        `held`: pages of the user's ended tenants that are still open in a process.
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
        """The request with `onExceed` clamped to what users may request.

        A node's driver calls as an administrator; `bound_…` marks the fields that a user wrote.
        """
        if request.bound_measured:
            measured = max(request.measured, self.least_step, key=STEPS.index)
            request = dataclasses.replace(request, measured=measured)
        if request.bound_grace:
            grace_ns = min(request.grace_ns, self.longest_grace_ns)
            request = dataclasses.replace(request, grace_ns=grace_ns)
        return request

    def left_to(
        self,
        caller: Principal,
        devices: Sequence[Device],
        machine: str | None,
        grants: Iterable[Grant],
    ) -> dict[str, Free] | None:
        """What the caller may still get of each device, by UUID; None: unlimited."""
        if caller.is_admin or self.user_permille >= FULL_DEVICE_PERMILLE:
            return None
        own = [one for one in grants if person_of(one) == caller.person]
        beside = free_shares(devices, machine, own)
        withheld = FULL_DEVICE_PERMILLE - self.user_permille
        left = {}
        for device in devices:
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
        """Raises `PenstockError` when a user would hold more of a device than users may.

        `left`: from `left_to`, without this grant; `before`: the grant that this one replaces,
        whose size is always allowed.
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
                    f"ask for less{', revoke one of these' if others else ''}, or ask an "
                    "administrator",
                    reason="not-allowed",
                )


def person_of(grant: Grant) -> int | None:
    """The person whose limits it counts to, as `Principal.person`; None: no local user."""
    return grant.uid if grant.owner_uid is None else grant.owner_uid


def _refusal(what: str, why: str, fix: str) -> PenstockError:
    return PenstockError(what, why, f"{fix}, or ask an administrator", reason="not-allowed")


def _seconds(time_ns: int) -> str:
    return f"{time_ns / 1e9:g}s"
