"""Pod index: the unfinished Pods of the cluster, by namespace and label."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from penstock.kube.objects.workloads import selects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.kube.objects.cache import Key
    from penstock.kube.objects.workloads import Pod


class Pods:
    """An index of a `Cache` of Pods, to whose `changed` the method `changed` must be appended."""

    def __init__(self) -> None:
        self.by_namespace: dict[str, dict[str, Pod]] = defaultdict(dict)
        self.unplaced: dict[Key, Pod] = {}
        self._by_label: dict[tuple[str, str, str], dict[str, Pod]] = defaultdict(dict)
        self.dirty: set[str] = set()
        """Namespaces whose Pods changed since the set was last emptied."""

    def changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        """Updates the index with a Pod's old and new state."""
        namespace, name = key
        self.dirty.add(namespace)
        if old is not None:
            del self.by_namespace[namespace][name]
            for label in old.labels.items():
                del self._by_label[(namespace, *label)][name]
            self.unplaced.pop(key, None)
        if new is not None:
            self.by_namespace[namespace][name] = new
            for label in new.labels.items():
                self._by_label[(namespace, *label)][name] = new
            if not new.node:
                self.unplaced[key] = new

    def selected(self, namespace: str, selector: Mapping[str, object]) -> Iterable[Pod]:
        """The Pods that a workload's selector matches; an empty selector matches none."""
        wanted = selector.get("matchLabels") or {}
        if not isinstance(wanted, dict):
            return []
        some = min(
            (self._by_label.get((namespace, *label), {}) for label in wanted.items()),
            key=len,
            default=self.by_namespace.get(namespace, {})
            if selector.get("matchExpressions")
            else {},
        )
        return [pod for pod in some.values() if selects(selector, pod.labels)]
