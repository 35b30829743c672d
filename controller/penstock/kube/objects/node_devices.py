"""Devices annotation of a Node, written by `penstock kube node` there and read by schedulers.

It holds a JSON list in the order of device indices, without unknown and default values:

    [{"uuid": "GPU-…", "index": 0, "model": "NVIDIA H200", "memory_bytes": 150754820096,
      "cores_permille": 1000, "tflops": 989.5, "healthy": false, "reason": "XID 79 …",
      "simulated": true, "driver": "580.65.06", "cuda": "13.0", "architecture": "9.0",
      "profile": "1g.18gb"}]

`healthy` and `reason` appear only for a device that must get no new shares, and `tflops` only if it
is known. Quantities are those of whole devices; Pods' shares are recorded in the Pods' objects.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.model.quantity import FULL_DEVICE_PERMILLE, MAX_MEMORY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_DEVICES = 256  # a machine of 16 GPUs in seven instances each has 112
MOST_CHARACTERS = 128 << 10  # annotations of an object may have 256 KiB in all
MOST_WORD = 253
MOST_TFLOPS = 1e9


@dataclass(frozen=True)
class NodeDevice:
    """A device whose shares can be granted."""

    uuid: str
    index: int
    model: str
    memory_bytes: int
    cores_permille: int = FULL_DEVICE_PERMILLE
    tflops: float | None = None  # rated, dense half precision; None if not known
    healthy: bool = True  # whether new shares of it may be granted
    reason: str = ""  # why it is not healthy
    simulated: bool = False
    driver: str = ""  # version of the driver, "580.65.06"
    cuda: str = ""  # newest CUDA that the driver supports, "13.0"
    architecture: str = ""  # compute capability, "9.0"
    profile: str = ""  # of a MIG instance, "1g.18gb"


def write_devices(devices: Iterable[NodeDevice]) -> str:
    """Writes the annotation."""
    usual = {one.name: one.default for one in fields(NodeDevice) if one.name != "cores_permille"}
    plain = [
        {key: value for key, value in asdict(one).items() if value != usual.get(key)}
        for one in sorted(devices, key=lambda one: one.index)
    ]
    return json.dumps(plain, separators=(",", ":"))


def read_devices(text: str) -> tuple[NodeDevice, ...]:
    """Reads the annotation. Raises `PenstockError` if it is malformed."""
    if len(text) > MOST_CHARACTERS:
        raise _nonsense(f"it has {len(text)} characters, more than {MOST_CHARACTERS}")
    try:
        plain = json.loads(text)
        if not isinstance(plain, list) or len(plain) > MOST_DEVICES:
            raise _nonsense(f"it is not a list of at most {MOST_DEVICES} devices")
        found = tuple(_device(one) for one in plain)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _nonsense(f"{type(error).__name__}: {error}") from error
    if len({one.uuid for one in found}) != len(found):
        raise _nonsense("it lists a device twice")
    return found


def _device(plain: dict[str, object]) -> NodeDevice:
    # Unknown keys are ignored: a newer node may write them.
    tflops = plain.get("tflops")
    return NodeDevice(
        uuid=_word(plain["uuid"], least=1),
        index=_amount(plain["index"], 0, 1 << 16),
        model=_word(plain["model"]),
        memory_bytes=_amount(plain["memory_bytes"], 1, MAX_MEMORY_BYTES),
        cores_permille=_amount(plain["cores_permille"], 1, FULL_DEVICE_PERMILLE),
        tflops=None if tflops is None else _rate(tflops),
        healthy=_truth(plain.get("healthy", True)),
        reason=_word(plain.get("reason", "")),
        simulated=_truth(plain.get("simulated", False)),
        driver=_word(plain.get("driver", "")),
        cuda=_word(plain.get("cuda", "")),
        architecture=_word(plain.get("architecture", "")),
        profile=_word(plain.get("profile", "")),
    )


def _word(text: object, least: int = 0) -> str:
    if not isinstance(text, str) or not least <= len(text) <= MOST_WORD:
        raise ValueError(f"{text!r} is not a text of {least} to {MOST_WORD} characters")
    return text


def _amount(figure: object, least: int, most: int) -> int:
    if not isinstance(figure, int) or isinstance(figure, bool) or not least <= figure <= most:
        raise ValueError(f"{figure!r} is not an integer from {least} to {most}")
    return figure


def _rate(figure: object) -> float:
    if not isinstance(figure, (int, float)) or isinstance(figure, bool):
        raise ValueError(f"{figure!r} is not a number")  # noqa: TRY004 - one error for all malformed values
    if not 0 < figure <= MOST_TFLOPS:
        raise ValueError(f"{figure!r} is not a rate up to {MOST_TFLOPS:g}")
    return float(figure)


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")  # noqa: TRY004 - as above
    return value


def _nonsense(why: str) -> PenstockError:
    return PenstockError(
        "the node's devices cannot be read", why[:500],
        "check the Pod of penstock kube node on that node: only this process writes them",
    )  # fmt: skip
