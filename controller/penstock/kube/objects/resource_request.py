"""Reading of the extended resources that a Pod's spec requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kube.objects.names import (
    GROUP,
    MODEL,
    RESOURCE_CORES,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
    RESOURCE_TFLOPS,
)
from penstock.kube.objects.quantity import parse_quantity
from penstock.model import PenstockError, QuantityError
from penstock.model.quantity import FULL_DEVICE_PERMILLE, MAX_MEMORY_BYTES
from penstock.scheduling.placement.pod_request import Ask, Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.kube.objects.api_client import Object
    from penstock.scheduling.placement.pod_request import Role

PREFIX = f"{GROUP}/"
MOST_DEVICES = 256
MOST_TFLOPS = 1_000_000
LEAST_MEMORY_BYTES = 1 << 20  # a smaller value probably lacks its unit, as in "40" for 40Gi


def containers(pod: Object) -> Iterator[tuple[Object, Role, str]]:
    """Yields a Pod's containers in start order, each with its role and path in the spec."""
    spec = pod.get("spec") or {}
    for at, one in enumerate(spec.get("initContainers") or []):
        role: Role = "sidecar" if one.get("restartPolicy") == "Always" else "init"
        yield one, role, f"/spec/initContainers/{at}"
    for at, one in enumerate(spec.get("containers") or []):
        yield one, "main", f"/spec/containers/{at}"


def roles(pod: Object) -> list[tuple[str, Role]]:
    """The names and roles of a Pod's containers, in start order."""
    return [(one["name"], role) for one, role, _ in containers(pod)]


def asked(container: Object) -> dict[str, object]:
    """Our resources among a container's limits and requests, which the API server keeps equal."""
    resources = container.get("resources") or {}
    return {
        name: value
        for part in ("requests", "limits")
        for name, value in (resources.get(part) or {}).items()
        if name.startswith(PREFIX)
    }


def read_request(pod: Object) -> Request | None:
    """Reads a Pod's request for our resources; None if it requests none of them.

    Raises:
        PenstockError: the request is impossible.
    """
    asks = tuple(
        _ask(one["name"], role, wanted)
        for one, role, _ in containers(pod)
        if (wanted := asked(one))
    )
    if not asks:
        return None
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    return Request(asks, model=annotations.get(MODEL, ""))


def _ask(container: str, role: Role, wanted: Mapping[str, object]) -> Ask:
    figures = {name: whole(container, name, value) for name, value in wanted.items()}
    if RESOURCE_CORES in figures and RESOURCE_TFLOPS in figures:
        raise PenstockError(
            f"container {container} requests both {RESOURCE_CORES} and {RESOURCE_TFLOPS}",
            "both set the amount of compute", "keep one of them",
        )  # fmt: skip
    return Ask(
        container,
        role,
        count=figures.get(RESOURCE_COUNT, 1),
        memory_bytes=figures.get(RESOURCE_MEMORY),
        cores_permille=figures.get(RESOURCE_CORES),
        tflops=figures.get(RESOURCE_TFLOPS),
    )


def whole(container: str, name: str, value: object) -> int:
    """Parses a quantity of one of our resources. Raises `PenstockError` for an invalid one."""
    what = f"container {container} requests {name}: {value}"
    try:
        exact = parse_quantity(value)
    except QuantityError as error:
        raise PenstockError(
            what, str(error), "write a whole number, or for memory one with a unit such as Gi"
        ) from error
    if exact <= 0:
        raise PenstockError(what, "it must be greater than zero", f"request more, or omit {name}")
    if exact.denominator != 1:
        raise PenstockError(
            what, "it must be a whole number",
            f"write cores in permille ({RESOURCE_CORES}: 125 is 12.5 %), and memory in bytes or "
            "with a unit such as Mi",
        )  # fmt: skip
    most, of = _MOST.get(name, (MAX_MEMORY_BYTES, "of anything"))
    if exact > most:
        raise PenstockError(what, f"the maximum is {most} {of}", _fix(name))
    if name == RESOURCE_MEMORY and exact < LEAST_MEMORY_BYTES:
        raise PenstockError(
            what, f"that is only {exact} bytes", f"write it with its unit, such as {exact}Gi"
        )
    return int(exact)


_MOST = {
    RESOURCE_COUNT: (MOST_DEVICES, "devices"),
    RESOURCE_CORES: (FULL_DEVICE_PERMILLE, "permille, a whole device"),
    RESOURCE_TFLOPS: (MOST_TFLOPS, "TFLOPS of one device"),
    RESOURCE_MEMORY: (MAX_MEMORY_BYTES, "bytes"),
}


def _fix(name: str) -> str:
    if name == RESOURCE_CORES:
        return f"for more than one device add {RESOURCE_COUNT}: quantities apply to each device"
    return "request less"
