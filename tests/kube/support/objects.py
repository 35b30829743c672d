"""An API server in this process with objects that a test gives it: list, watch, get, replace.

For what is decided by objects alone. What an API server itself makes of them is tried on clusters.
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from typing import TYPE_CHECKING, Any

from penstock.kube.objects.api_client import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.kube.objects.api_client import Kind, Object


class Objects:
    """Stands in for `Api`; `asked` counts requests by verb and plural."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str, str], Object] = {}
        self.asked: Counter[str] = Counter()
        self._version = 1

    def put(self, plural: str, name: str, namespace: str = "", **rest: Any) -> Object:
        self._version += 1
        metadata = {
            "name": name, "namespace": namespace, "uid": f"uid-{name}",
            "resourceVersion": str(self._version), **rest.pop("metadata", {}),
        }  # fmt: skip
        self.kept[plural, namespace, name] = {"metadata": metadata, **rest}
        return self.kept[plural, namespace, name]

    async def get(
        self, kind: Kind, name: str, namespace: str = "", subresource: str = ""
    ) -> Object:
        self.asked[f"get {kind.plural}"] += 1
        found = self.kept.get((kind.plural, namespace, name))
        if found is None:
            raise ApiError(f"no {kind.plural} {name}", "", "", 404, "NotFound")
        return copy.deepcopy(found)

    async def list(self, kind: Kind, namespace: str = "", **_: object) -> tuple[list[Object], str]:
        self.asked[f"list {kind.plural}"] += 1
        found = [
            copy.deepcopy(one)
            for (plural, where, _), one in self.kept.items()
            if plural == kind.plural and namespace in {"", where}
        ]
        return found, str(self._version)

    async def watch(
        self, *_: object, whole: bool = False, **__: object
    ) -> AsyncIterator[tuple[str, Object]]:
        if whole:
            raise ApiError("no watch begins with a list here", "", "", 422, "Invalid")
        await asyncio.Event().wait()
        yield "", {}

    async def create(self, kind: Kind, body: Object, namespace: str = "") -> Object:
        return self.put(kind.plural, body["metadata"]["name"], namespace, **{
            key: value for key, value in body.items() if key != "metadata"
        })  # fmt: skip

    async def replace(
        self, kind: Kind, body: Object, namespace: str = "", subresource: str = ""
    ) -> Object:
        self.asked[f"replace {kind.plural}"] += 1
        name = body["metadata"]["name"]
        before = self.kept[kind.plural, namespace, name]["metadata"]["resourceVersion"]
        if body["metadata"].get("resourceVersion", before) != before:
            raise ApiError("it was changed", "", "", 409, "Conflict")
        self._version += 1
        kept = copy.deepcopy(body)
        kept["metadata"]["resourceVersion"] = str(self._version)
        self.kept[kind.plural, namespace, name] = kept
        return kept
