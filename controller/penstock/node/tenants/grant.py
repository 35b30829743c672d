"""grant.yaml, the persistent record of a grant: devices, quotas, policy and lifetime."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from penstock.model import (
    PenstockError,
    format_cores,
    format_duration,
    format_memory,
    parse_cores,
    parse_duration_ns,
    parse_memory,
)
from penstock.model.terms import DEFAULT_GRACE, DEFAULT_STEP, MODES, STEPS, Terms
from penstock.node.tenants.json_files import read_record

if TYPE_CHECKING:
    from pathlib import Path

FILE = "grant.yaml"
API_VERSION = "penstock.io/v1alpha1"
# When a tenant ends: once its command and all processes that the command left behind have ended;
# once its caller and its last process have ended; or when it is revoked.
Lifetime = Literal["command", "processes", "until-revoked"]
# Where the device memory of a suspended tenant is: on its devices, on the way to the host, there,
# or on the way back.
Memory = Literal["device", "releasing", "released", "restoring"]
# Errors that a malformed file may raise, apart from the parser's own errors.
_MALFORMED = (ValueError, KeyError, TypeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class DeviceGrant:
    """A share of one device."""

    uuid: str
    index: int
    name: str
    memory_bytes: int
    cores_permille: int
    device_memory_bytes: int
    context_bytes: int


@dataclass(frozen=True)
class Grant(Terms):
    """Everything granted to one tenant."""

    tenant: str
    devices: tuple[DeviceGrant, ...]
    command: tuple[str, ...]
    user: str
    created: str  # UTC, ISO 8601
    machine: str | None = None  # the simulated machine's file; None for real devices
    oversubscribed: bool = False
    record: bool = False  # the shim also counts functions that it only forwards
    uid: int | None = None  # the user whose processes may use it, if an agent granted it to a user
    # The person whose limits the grant counts towards, if not `uid`: the owner of a user namespace
    # or of a subordinate uid.
    owner_uid: int | None = None
    lifetime: Lifetime = "command"
    labels: dict[str, str] = field(default_factory=dict)
    suspended: bool = False  # by an order; launches wait
    # The administrator who suspended it, in which case only an administrator may resume it; empty
    # if the tenant's own user did.
    suspended_by: str = ""
    memory: Memory = "device"
    host_bytes: int = 0  # of device memory that is, or will be, in host memory
    suspended_before: bool = False  # whether it stays suspended once its memory is back
    # While it is restored on other devices: where its memory was, in the order of `devices`, and
    # the processes ("pid/start") that have been moved from there.
    former_devices: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    # The usage page counts on when the tenant moves. Device time that was charged on each device,
    # by UUID, as of the last move; and the page's time at that move, by index.
    charged_ns: dict[str, int] = field(default_factory=dict)
    moved_at_ns: tuple[int, ...] = ()
    request_id: str = ""  # the requester's idempotency key, so that a repeated request grants once

    @property
    def holds_devices(self) -> bool:
        """Whether its shares count on its devices: not while its memory is released."""
        return self.memory != "released"

    def spent_on_device_ns(self, index: int, spent_ns: int) -> int:
        """The part of the page's device time at `index` that was spent on the device of now."""
        before_ns = self.moved_at_ns[index] if self.moved_at_ns else 0
        return self.charged_ns.get(self.devices[index].uuid, 0) + max(0, spent_ns - before_ns)

    @property
    def suspension(self) -> str:
        """Its suspension by an order: "launches" or where its memory is; empty if it runs."""
        if self.memory != "device":
            return self.memory
        return "launches" if self.suspended else ""

    def to_yaml(self) -> str:
        """The text of the file; its quantities are exact."""
        import yaml

        document = {
            "apiVersion": API_VERSION,
            "kind": "Grant",
            "metadata": {"name": self.tenant, "created": self.created, "user": self.user},
            "spec": {
                "command": list(self.command),
                "policy": self.policy,
                "mode": self.mode,
                "machine": self.machine,
                "oversubscribed": self.oversubscribed,
                "allowUnknown": self.allow_unknown,
                "record": self.record,
                "uid": self.uid,
                "ownerUid": self.owner_uid,
                "lifetime": self.lifetime,
                "onExceed": {"measured": self.measured, "grace": format_duration(self.grace_ns)},
                "labels": self.labels,
                "suspended": self.suspended,
                "suspendedBy": self.suspended_by,
                "memory": self.memory,
                "hostMemory": self.host_bytes,
                "suspendedBefore": self.suspended_before,
                "formerDevices": list(self.former_devices),
                "moved": list(self.moved),
                "chargedNs": self.charged_ns,
                "movedAtNs": list(self.moved_at_ns),
                "requestId": self.request_id,
                "devices": [_device_to_plain(device) for device in self.devices],
            },
        }
        return str(yaml.dump(document, Dumper=_dumper(), sort_keys=False, allow_unicode=True))


def read_grant(directory: Path) -> Grant:
    """The grant of the tenant in `directory`. Raises `PenstockError` if it cannot be read."""
    import yaml

    file = directory / FILE
    try:
        document = yaml.load(read_record(file), Loader=_loader())  # noqa: S506 - safe
        return _from_plain(document)
    except FileNotFoundError as error:
        why = "grant.yaml was removed" if directory.exists() else "the tenant has ended"
        raise PenstockError(
            f"no grant in {directory}", why, "see penstock ps", reason="not-now"
        ) from error
    except (OSError, yaml.YAMLError, *_MALFORMED) as error:
        raise PenstockError(
            f"{file} cannot be used", _why(error), "repair the file, or end the tenant's processes",
            reason="unavailable" if isinstance(error, OSError) else "not-now",
        ) from error  # fmt: skip


def _why(error: Exception) -> str:
    """What is wrong with a grant, in one line and without Python's exception jargon."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return " ".join(str(error).split())


def write_grant(directory: Path, grant: Grant) -> None:
    """Replaces grant.yaml atomically; the replacement survives a power loss.

    Raises:
        OSError: the file cannot be written; the old file is intact.
    """
    file = directory / FILE
    aside = directory / f".{FILE}.{os.getpid()}"
    try:
        with aside.open("w", encoding="utf-8") as stream:
            stream.write(grant.to_yaml())
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # the grant is in force; only a power loss could undo it
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _loader() -> Any:  # noqa: ANN401 - one of two loader classes
    """PyYAML's C parser if it was built, because `penstock ps` reads many grants."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _dumper() -> Any:  # noqa: ANN401 - one of two dumper classes
    import yaml

    return getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def _device_to_plain(device: DeviceGrant) -> dict[str, object]:
    return {
        "uuid": device.uuid,
        "index": device.index,
        "name": device.name,
        "memory": format_memory(device.memory_bytes),
        "cores": format_cores(device.cores_permille),
        "deviceMemory": format_memory(device.device_memory_bytes),
        "contextReserve": format_memory(device.context_bytes) if device.context_bytes else "0",
    }


def _from_plain(document: Any) -> Grant:  # noqa: ANN401 - parsed YAML
    if (
        not isinstance(document, dict)
        or document.get("apiVersion") != API_VERSION
        or document.get("kind") != "Grant"
    ):
        raise ValueError(f"it does not contain a Grant of {API_VERSION}")
    metadata, spec = document["metadata"], document["spec"]
    exceed = spec.get("onExceed", {})
    return Grant(
        tenant=str(metadata["name"]),
        mode=_word(spec["mode"], MODES),
        devices=tuple(
            DeviceGrant(
                uuid=str(device["uuid"]),
                index=int(device["index"]),
                name=str(device["name"]),
                memory_bytes=parse_memory(device["memory"]),
                cores_permille=parse_cores(device["cores"]),
                device_memory_bytes=parse_memory(device["deviceMemory"]),
                context_bytes=0
                if str(device["contextReserve"]) == "0"
                else parse_memory(device["contextReserve"]),
            )
            for device in spec["devices"]
        ),
        command=tuple(map(str, spec["command"])),
        user=str(metadata["user"]),
        created=str(metadata["created"]),
        policy=spec["policy"],
        machine=spec["machine"],
        oversubscribed=bool(spec["oversubscribed"]),
        allow_unknown=bool(spec.get("allowUnknown", False)),
        record=bool(spec.get("record", False)),
        uid=None if spec.get("uid") is None else int(spec["uid"]),
        owner_uid=None if spec.get("ownerUid") is None else int(spec["ownerUid"]),
        lifetime=_word(spec.get("lifetime", "command"), get_args(Lifetime)),
        measured=_word(exceed.get("measured", DEFAULT_STEP), STEPS),
        grace_ns=parse_duration_ns(exceed.get("grace", DEFAULT_GRACE), or_none=True),
        labels={str(key): str(value) for key, value in spec.get("labels", {}).items()},
        suspended=bool(spec.get("suspended", False)),
        suspended_by=str(spec.get("suspendedBy", "")),
        memory=_word(spec.get("memory", "device"), get_args(Memory)),
        host_bytes=int(spec.get("hostMemory", 0)),
        suspended_before=bool(spec.get("suspendedBefore", False)),
        former_devices=tuple(map(str, spec.get("formerDevices", ()))),
        moved=tuple(map(str, spec.get("moved", ()))),
        charged_ns={str(uuid): int(ns) for uuid, ns in spec.get("chargedNs", {}).items()},
        moved_at_ns=tuple(map(int, spec.get("movedAtNs", ()))),
        request_id=str(spec.get("requestId", "")),
    )


def _word(value: object, words: tuple[str, ...]) -> Any:  # noqa: ANN401 - one of a Literal's words
    if value not in words:
        raise ValueError(f"{value!r} is not one of {', '.join(words)}")
    return value
