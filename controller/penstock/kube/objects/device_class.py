"""DeviceClasses: whether a class allocates our devices, another driver's, or any driver's."""

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
    """The parts of a DeviceClass that concern us."""

    whose: Whose
    configs: tuple[Object, ...] = ()  # `source` and opaque parameters, as in an allocation


NO_CLASS = DeviceClass("theirs")  # stands for a missing class, which allocates nothing


def read_class(one: Object) -> DeviceClass:
    """Reads a DeviceClass object."""
    configs = (one.get("spec") or {}).get("config") or []
    return DeviceClass(whose(one), tuple({**config, "source": "FromClass"} for config in configs))


_NAMES_A_DRIVER = re.compile(r"device\.driver\s*==\s*[\"']")


def whose(device_class: Object) -> Whose:
    """Whose devices a class allocates, judged by the text of its selectors.

    A class that names no driver may allocate any driver's devices, including ours. So requests for
    this class count against a namespace's cap until the allocated devices are known. Selectors of
    the claim itself are ignored, because the claim's author is the user whom the cap restricts;
    only administrators write classes.
    """
    selectors = (device_class.get("spec") or {}).get("selectors") or []
    text = " ".join(str((one.get("cel") or {}).get("expression", "")) for one in selectors)
    if device_class["metadata"]["name"] == DRIVER or f'"{DRIVER}"' in text or f"'{DRIVER}'" in text:
        return "ours"
    return "theirs" if _NAMES_A_DRIVER.search(text) else "anybody's"
