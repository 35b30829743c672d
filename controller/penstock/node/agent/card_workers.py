"""Card workers: processes on this node that are the cards of a program with a virtual card.

An agent starts them as tenants, with the application's quota. They belong to the program, which may
run on another node: a worker ends when its program leaves it, and does not end with the agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.model import PenstockError
from penstock.node.agent.pool_tenants import claimed_of, is_pools
from penstock.node.enforcement.process import find, is_alive
from penstock.node.tenants.environment import tenant_variables
from penstock.node.tenants.tenant_events import record_event
from penstock.node.tenants.tenant_processes import (
    MACHINE_VARIABLE,
    TENANT_VARIABLE,
    environments,
    members_of,
    of_user,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.node.agent.managed_tenant import ManagedTenant
    from penstock.node.agent.node import Node
    from penstock.node.agent.tenant_registry import TenantRegistry
    from penstock.node.tenants.grant import DeviceGrant

CARD_VARIABLE = "PENSTOCK_CARD_DEVICE"  # of a worker: its device
STARTS_WITHIN_S = 90.0  # torch is loaded, on a busy machine
LEAVES_WITHIN_S = 60.0  # when its application is to be suspended: the program takes its data back
LOOKS_S = 0.1
_MOST_ANSWER_BYTES = 4096
_MOST_ENDS = 100  # of workers of one card, that are recorded
_MOST_OF_A_DEVICE = 2  # a program that moves has its new card beside its former one
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")


@dataclass(frozen=True)
class Wanted:
    """A card that a program asks for. `secrets`: what only the program and its worker know."""

    application: str
    claimed_ns: int
    device_uuid: str
    is_local: bool  # whether the program is on this node
    secrets: Mapping[str, str]


@dataclass(frozen=True)
class StartedWorker:
    """A worker that waits for its program at `address`."""

    address: str
    host: str
    pid: int
    is_stand_in: bool


class CardWorkers:
    """Starts workers. Thread-safe. `python`: an interpreter that has torch."""

    def __init__(self, node: Node, registry: TenantRegistry, python: str = sys.executable) -> None:
        self._node = node
        self._registry = registry
        self._python = python
        self.host = ""  # the address of this node for others; empty: they do not reach it

    def start(self, wanted: Wanted) -> StartedWorker:
        """Starts a worker; returns when it listens.

        Raises:
            PenstockError: the application does not run here, has no such device, or its worker
                could not be started.
        """
        managed = self._managed(wanted)
        device = _device(managed, wanted.device_uuid)
        if not wanted.is_local and not self.host:
            raise PenstockError(
                f"node {self._node.name} starts no cards for programs on other nodes",
                "its agent does not listen for other nodes",
                "start it with penstock agent --listen HOST:PORT and its certificates",
                reason="unavailable",
            )  # fmt: skip
        self._check_count(managed, device)
        variables = tenant_variables(
            self._node.state, managed.tenant, managed.grant, self._node.source
        )
        is_stand_in = MACHINE_VARIABLE in variables
        order = {
            **wanted.secrets,
            "application": wanted.application,
            "host": "" if wanted.is_local else self.host,
            "kind": "cpu" if is_stand_in else "cuda:0",
            "memory_bytes": device.memory_bytes if is_stand_in else None,
        }
        # A worker sees its own device alone.
        environment = {
            **kept_variables(), **variables, "CUDA_VISIBLE_DEVICES": device.uuid,
            CARD_VARIABLE: device.uuid, "PYTHONSAFEPATH": "1",
        }  # fmt: skip
        process, address = self._spawn(order, environment, managed.grant.uid)
        threading.Thread(
            target=_record_ends, args=(process, managed.tenant.directory, device.uuid),
            name="card-worker", daemon=True,
        ).start()  # fmt: skip
        return StartedWorker(address, self.host, process.pid, is_stand_in)

    def devices(self, managed: ManagedTenant) -> dict[int, str]:
        """The processes of a tenant's workers with their devices, by pid.

        Those of an earlier agent are among them. Of a worker's processes one leads their session.
        """
        found = environments(TENANT_VARIABLE, CARD_VARIABLE)
        members = of_user(members_of(found, managed.tenant.directory), managed.grant.uid)
        return {pid: found[pid][CARD_VARIABLE] for pid in members if CARD_VARIABLE in found[pid]}

    def wait_until_left(self, managed: ManagedTenant) -> None:
        """Waits until the program has left its workers, which are to give their memory back.

        A program that does not answer is suspended like any other, which its cards outlive if the
        driver can release their memory.
        """
        deadline_s = time.monotonic() + LEAVES_WITHIN_S
        while (pids := self.devices(managed)) and time.monotonic() < deadline_s:
            # A look at these is cheap, one at all processes of the machine is not.
            living = [one for pid in pids if (one := find(pid)) is not None]
            while any(map(is_alive, living)) and time.monotonic() < deadline_s:
                time.sleep(LOOKS_S)

    def _managed(self, wanted: Wanted) -> ManagedTenant:
        managed = self._registry.find(wanted.application)
        if (
            managed is None
            or not is_pools(managed.grant)
            or claimed_of(managed.grant) != wanted.claimed_ns
            or managed.revocation is not None
        ):
            raise PenstockError(
                f"application {wanted.application} has no card on node {self._node.name}",
                "it is not there, or not any more", "see penstock pool status", reason="not-now",
            )  # fmt: skip
        if managed.grant.suspended:
            raise PenstockError(
                f"application {wanted.application} cannot start a card",
                "it is suspended", "wait until it is resumed", reason="not-now",
            )  # fmt: skip
        return managed

    def _check_count(self, managed: ManagedTenant, device: DeviceGrant) -> None:
        leaders = [uuid for pid, uuid in self.devices(managed).items() if _leads_session(pid)]
        count = leaders.count(device.uuid)
        if count >= _MOST_OF_A_DEVICE:
            raise PenstockError(
                f"application {managed.tenant.name} has {count} cards on {device.uuid} already",
                "a program has one, and another one while it moves", "leave one of them first",
                reason="not-now",
            )  # fmt: skip

    def _spawn(
        self, order: Mapping[str, Any], environment: Mapping[str, str], uid: int | None
    ) -> tuple[subprocess.Popen[bytes], str]:
        command = [self._python, "-m", "penstock.card.worker", "--listen"]
        with tempfile.TemporaryFile() as said:
            try:
                process = subprocess.Popen(
                    command, env=environment, cwd="/", stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, stderr=said, start_new_session=True,
                    **as_user(uid),
                )  # fmt: skip
            except (OSError, subprocess.SubprocessError) as error:
                raise PenstockError(
                    "a card's worker could not be started", f"{self._python}: {error}",
                    "see the option --card-python of penstock agent", reason="unavailable",
                ) from error  # fmt: skip
            try:
                answer = _asked(process, json.dumps(order).encode())
                if "address" in answer:
                    return process, str(answer["address"])
                process.kill()
                process.wait()
                said.seek(max(0, os.fstat(said.fileno()).st_size - _MOST_ANSWER_BYTES))
                last = said.read().decode(errors="replace").strip().rpartition("\n")[2]
            except BaseException:
                process.kill()
                process.wait()
                raise
        raise PenstockError(
            "a card's worker could not be started", str(answer.get("error") or last or "it ended"),
            f"install penstock[torch] for {self._python}, or name another interpreter with "
            "penstock agent --card-python", reason="unavailable",
        )  # fmt: skip


def _record_ends(process: subprocess.Popen[bytes], tenant: Path, device_uuid: str) -> None:
    """Records how a card's processes end. The program sees only a connection that ended."""
    if process.stdout is None:
        raise AssertionError("it is a pipe")
    with process.stdout as told:
        lines = iter(partial(told.readline, _MOST_ANSWER_BYTES), b"")
        for line in islice(lines, _MOST_ENDS):  # who writes may be anybody
            with contextlib.suppress(ValueError, TypeError, KeyError):
                said = json.loads(line)
                _record_end(tenant, device_uuid, int(said["pid"]), int(said["status"]))
    _record_end(tenant, device_uuid, process.pid, process.wait())


def _record_end(tenant: Path, device_uuid: str, pid: int, status: int) -> None:
    if status:
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        reason = f"the worker of its card ended ({how})"
        record_event(tenant, "card-ended", reason=reason, device=device_uuid, pid=pid)


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def _device(managed: ManagedTenant, uuid: str) -> DeviceGrant:
    for one in managed.grant.devices:
        if one.uuid == uuid:
            return one
    raise PenstockError(
        f"application {managed.tenant.name} has no device {uuid}",
        f"it has {', '.join(one.uuid for one in managed.grant.devices)}", "choose one of these",
    )  # fmt: skip


def kept_variables() -> dict[str, str]:
    """What a worker keeps of the agent's environment."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


def as_user(uid: int | None) -> dict[str, Any]:
    """How a child gets another user, with that user's groups."""
    if uid is None or uid == os.geteuid() or os.geteuid() != 0:
        return {}
    try:
        account = pwd.getpwuid(uid)
    except KeyError:  # a user of a container
        return {"user": uid, "group": uid, "extra_groups": []}
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    return {"user": uid, "group": account.pw_gid, "extra_groups": groups}


def _asked(process: subprocess.Popen[bytes], order: bytes) -> dict[str, Any]:
    """What a new worker answers to its order; empty if it does not answer."""
    stdin, stdout = process.stdin, process.stdout
    if stdin is None or stdout is None:
        raise AssertionError("they are pipes")
    with stdin:
        try:
            stdin.write(order + b"\n")
            stdin.flush()
            line = _line(stdout.fileno())
            found = json.loads(line)
        except (OSError, ValueError):
            return {}
    return found if isinstance(found, dict) else {}


def _line(descriptor: int) -> bytes:
    deadline_s = time.monotonic() + STARTS_WITHIN_S
    line = b""
    while b"\n" not in line and len(line) < _MOST_ANSWER_BYTES:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
            return b""
        part = os.read(descriptor, _MOST_ANSWER_BYTES)
        if not part:
            return line
        line += part
    return line
