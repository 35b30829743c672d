"""PodDisruptionBudgets: the Pods that they cover, and how many of them may be evicted now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kube.objects.api_client import Api, Kind
from penstock.kube.objects.workloads import selects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.kube.objects.api_client import Object

BUDGETS = Kind("policy/v1", "poddisruptionbudgets")


@dataclass(frozen=True)
class Budget:
    """A budget as its controller last computed it. The API server itself decides each eviction."""

    namespace: str
    name: str
    selector: Mapping[str, object] | None  # None selects no Pod, an empty selector all Pods
    allowed: int

    @property
    def key(self) -> str:
        """The budget's `namespace/name`."""
        return f"{self.namespace}/{self.name}"


def read_budget(one: Object) -> Budget:
    """Reads a budget. Until its controller has computed it, it allows no eviction."""
    metadata, status = one["metadata"], one.get("status") or {}
    stale = int(status.get("observedGeneration") or 0) < int(metadata.get("generation") or 0)
    allowed = 0 if stale else int(status.get("disruptionsAllowed") or 0)
    selector = (one.get("spec") or {}).get("selector")
    return Budget(metadata["namespace"], metadata["name"], selector, allowed)


async def all_budgets(api: Api) -> list[Budget]:
    """Lists the budgets of all namespaces. Raises `ApiError`."""
    return [read_budget(one) for one in (await api.list(BUDGETS, fresh=False))[0]]


def budgets_of(
    namespace: str, labels: Mapping[str, str], budgets: Iterable[Budget]
) -> tuple[str, ...]:
    """The keys of the budgets that cover a running Pod with these labels."""
    return tuple(
        one.key
        for one in budgets
        if one.namespace == namespace and one.selector is not None and selects(one.selector, labels)
    )
