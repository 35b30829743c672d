"""What a user who is no administrator may ask for tenants of his own: he does not judge himself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from penstock.model import PenstockError, format_cores, human_memory
from penstock.model.quantity import FULL_DEVICE_PERMILLE
from penstock.node.grant import Step

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.caller import Caller
    from penstock.node.admit import Request
    from penstock.node.grant import Grant

STEPS: tuple[Step, ...] = get_args(Step)  # from the mildest
# Metrics are labelled with them: they say that a tenant is somebody's, on the node's word.
PLACE_LABELS = frozenset({"namespace", "pod", "container"})


@dataclass(frozen=True)
class Bounds:
    """The node's, `penstock agent --measured … --longest-grace … --user-limit …`."""

    least_step: Step = "terminate"  # of `onExceed.measured`: nothing milder
    longest_grace_ns: int = 60 * 10**9  # of `onExceed.grace`
    user_permille: int = FULL_DEVICE_PERMILLE  # of each device, for all tenants of one user

    def check(self, request: Request, caller: Caller) -> None:
        """Raises `PenstockError` for what only an administrator may ask."""
        if caller.is_admin:
            return
        if STEPS.index(request.measured) < STEPS.index(self.least_step):
            raise _refusal(
                f"onExceed.measured: {request.measured} is milder than this node allows",
                f"for users its least step is {self.least_step} (penstock agent --measured)",
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
                "they may take memory or device time that nobody counts",
                "leave it out",
            )
        if forged := sorted(PLACE_LABELS & request.labels.keys()):
            raise _refusal(
                f"{caller.name} may not set the labels {', '.join(forged)}",
                "metrics carry them, as the word of whoever runs the node",
                "choose other names for labels of your own",
            )

    def check_total(self, grant: Grant, others: Iterable[Grant], caller: Caller) -> None:
        """Raises `PenstockError` when a user would hold more of a device than users may."""
        if caller.is_admin or self.user_permille >= FULL_DEVICE_PERMILLE:
            return
        held = [
            share
            for other in others
            if other.uid == grant.uid and other.machine == grant.machine
            for share in other.devices
        ]
        for share in grant.devices:
            same = [one for one in held if one.uuid == share.uuid]
            memory_bytes = sum(one.memory_bytes for one in same)
            cores_permille = sum(one.cores_permille for one in same)
            most_bytes = share.device_memory_bytes * self.user_permille // FULL_DEVICE_PERMILLE
            if (
                memory_bytes + share.memory_bytes > most_bytes
                or cores_permille + share.cores_permille > self.user_permille
            ):
                raise PenstockError(
                    f"{caller.name} may hold at most {format_cores(self.user_permille)} % of a "
                    "device (penstock agent --user-limit)",
                    f"{share.name} {share.index}: {human_memory(memory_bytes)} and "
                    f"{format_cores(cores_permille)} % are held already, and "
                    f"{human_memory(share.memory_bytes)} and "
                    f"{format_cores(share.cores_permille)} % were asked for",
                    "ask for less, revoke another tenant of yours, or ask an administrator",
                    reason="not-allowed",
                )


def _refusal(what: str, why: str, fix: str) -> PenstockError:
    return PenstockError(what, why, f"{fix}, or ask an administrator", reason="not-allowed")


def _seconds(time_ns: int) -> str:
    return f"{time_ns / 1e9:g}s"
