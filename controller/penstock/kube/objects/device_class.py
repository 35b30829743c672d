"""A DeviceClass: whose devices it may give, ours, another driver's, or anybody's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.kube.objects.names import DRIVER

if TYPE_CHECKING:
    from penstock.kube.objects.api_client import Object

Whose = Literal["ours", "theirs", "anybody's"]


@dataclass(frozen=True)
class DeviceClass:
    """As far as it concerns us."""

    whose: Whose
    configs: tuple[Object, ...] = ()  # as an allocation has them: `source` and opaque parameters


NO_CLASS = DeviceClass("theirs")  # that of a name which does not exist: nothing is given by it


def read_class(one: Object) -> DeviceClass:
    """As an API server has it."""
    configs = (one.get("spec") or {}).get("config") or []
    return DeviceClass(whose(one), tuple({**config, "source": "FromClass"} for config in configs))


_NAMES_A_DRIVER = re.compile(r"device\.driver\s*==\s*[\"']")


def whose(device_class: Object) -> Whose:
    """By the text of its selectors, which are administrators' to write.

    A class that names no driver gives devices of any, also ours: what is asked for by it counts
    against a namespace's cap until it is known what was allocated. What a claim selects beside its
    class is not looked at: its author is whom a cap holds against.
    """
    selectors = (device_class.get("spec") or {}).get("selectors") or []
    text = " ".join(str((one.get("cel") or {}).get("expression", "")) for one in selectors)
    if device_class["metadata"]["name"] == DRIVER or f'"{DRIVER}"' in text or f"'{DRIVER}'" in text:
        return "ours"
    return "theirs" if _NAMES_A_DRIVER.search(text) else "anybody's"
