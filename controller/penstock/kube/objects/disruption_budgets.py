"""PodDisruptionBudgets: how many of which Pods may be evicted at the moment."""

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
    """One, as its controller reckoned it last. The API server has the last word at an eviction."""

    namespace: str
    name: str
    selector: Mapping[str, object] | None  # None selects nothing, an empty one all
    allowed: int

    @property
    def key(self) -> str:
        """As people write it."""
        return f"{self.namespace}/{self.name}"


def read_budget(one: Object) -> Budget:
    """What one that nobody has reckoned yet allows is nothing."""
    metadata, status = one["metadata"], one.get("status") or {}
    stale = int(status.get("observedGeneration") or 0) < int(metadata.get("generation") or 0)
    allowed = 0 if stale else int(status.get("disruptionsAllowed") or 0)
    selector = (one.get("spec") or {}).get("selector")
    return Budget(metadata["namespace"], metadata["name"], selector, allowed)


async def all_budgets(api: Api) -> list[Budget]:
    """Of all namespaces. Raises `ApiError`."""
    return [read_budget(one) for one in (await api.list(BUDGETS, fresh=False))[0]]


def budgets_of(
    namespace: str, labels: Mapping[str, str], budgets: Iterable[Budget]
) -> tuple[str, ...]:
    """The keys of those that a running Pod is in."""
    return tuple(
        one.key
        for one in budgets
        if one.namespace == namespace and one.selector is not None and selects(one.selector, labels)
    )
