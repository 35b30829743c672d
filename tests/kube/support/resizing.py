"""A running Pod of one device, and what it asks for."""

from __future__ import annotations

import json
from typing import Any

from penstock.kube.objects.placement import write_placement
from penstock.model.share import Share

GIB = 1 << 30


UUID = "n-0"


def resize(gib: int | None = None, cores: int | None = None, container: str = "main") -> str:
    wish: dict[str, Any] = {}
    if gib is not None:
        wish["memory"] = f"{gib}Gi"
    if cores is not None:
        wish["cores-permille"] = cores
    return json.dumps({container: wish})


def placed(gib: int, cores: int) -> str:
    return write_placement({"main": {UUID: Share(gib * GIB, cores)}})
