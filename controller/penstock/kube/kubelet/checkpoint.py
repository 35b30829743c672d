"""Kubelet checkpoint: the kubelet's record of which containers have which plugin devices.

The podresources socket omits init containers and the plugin's responses, and it identifies Pods by
names that other Pods may have by now. The checkpoint file has all of these. The kubelet writes the
whole file before it completes an allocation. But a snapshot that was begun earlier may overwrite
it, and then stays until the kubelet writes the next one.
"""

from __future__ import annotations

import base64
import json
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from penstock.kube.objects.names import RESOURCE_COUNT
from penstock.model import PenstockError
from penstock_api.kubelet import deviceplugin_v1beta1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

NAME = "kubelet_internal_checkpoint"
MOST_BYTES = 64 << 20
MOST_WORD = 253


@dataclass(frozen=True)
class Holder:
    """A container that holds our slots."""

    pod_uid: str
    container: str
    ids: frozenset[str]
    cdi_devices: tuple[str, ...]  # qualified names from the plugin's response


def read_record(folder: Path) -> tuple[Holder, ...]:
    """All containers that hold our slots. Raises `PenstockError` if the file is malformed."""
    file = folder / NAME
    try:
        text = _text(file)
    except FileNotFoundError:  # before the kubelet's first allocation
        return ()
    except (OSError, ValueError) as error:
        raise _nonsense(file, str(error)) from error
    try:
        entries = json.loads(text)["Data"]["PodDeviceEntries"] or []
        return tuple(_holder(one) for one in entries if one["ResourceName"] == RESOURCE_COUNT)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, DecodeError) as error:
        raise _nonsense(file, f"{type(error).__name__}: {error}") from error


def holders_of(ids: Iterable[str], record: Iterable[Holder]) -> tuple[Holder, ...]:
    """The containers that hold exactly these slots, all of one Pod, which use them in turn."""
    wanted = frozenset(ids)
    return tuple(one for one in record if one.ids == wanted)


def _text(file: Path) -> bytes:
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:  # noqa: PTH123 - a descriptor
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_uid not in {0, os.geteuid()}:
            raise ValueError("it is not a regular file owned by root")
        if about.st_size > MOST_BYTES:
            raise ValueError(f"it has {about.st_size} bytes, more than {MOST_BYTES}")
        return stream.read(MOST_BYTES + 1)


def _holder(plain: dict[str, Any]) -> Holder:
    # The ids are grouped by NUMA node. Kubelets before 1.20 wrote a plain list.
    ids = frozenset(_word(one) for group in plain["DeviceIDs"].values() for one in group)
    answer = pb.ContainerAllocateResponse.FromString(
        base64.b64decode(plain["AllocResp"] or "", validate=True)
    )
    names = tuple(one.name for one in answer.cdi_devices)
    return Holder(_word(plain["PodUID"]), _word(plain["ContainerName"]), ids, names)


def _word(text: object) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= MOST_WORD:
        raise ValueError(f"{str(text)[:80]!r} is not a name")
    return text


def _nonsense(file: Path, why: str) -> PenstockError:
    return PenstockError(
        f"the kubelet's record {file} cannot be read", why[:500],
        "if this Kubernetes release uses another format, use the other allocation mode "
        "(--way dra) or a newer Penstock",
    )  # fmt: skip
