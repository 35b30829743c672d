"""Release of a suspended tenant's device memory: a thread that moves it to the host and back.

`Grant.memory` says on disk where the memory is to be: "releasing" and "restoring" are on the way,
and a restarted agent goes on from there, as far as the driver says that each process is. A tenant
that is "released" has no share of its devices: others may be granted it, and the tenant gets it
back at its resume if it is free then.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.devices import DeviceLostError
from penstock.model import PenstockError, human_memory
from penstock.node.agent.resume_place import mapping_of, moved
from penstock.node.agent.suspension import put_suspension
from penstock.node.checkpoint.driver_helper import RefusedError, check_installed
from penstock.node.checkpoint.host_memory import check_host_memory
from penstock.node.checkpoint.process_memory import Took
from penstock.node.enforcement.process import is_alive
from penstock.node.tenants.tenant_events import record_event
from penstock_shim.pages import PageError, read_usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.node.agent.device_task import DeviceTask
    from penstock.node.agent.handshake_sockets import Handshakes
    from penstock.node.agent.managed_tenant import ManagedTenant
    from penstock.node.agent.node import Node
    from penstock.node.agent.tenant_registry import TenantRegistry
    from penstock.node.checkpoint.process_memory import ProcessMemory
    from penstock.node.enforcement import Enforcer, Process
    from penstock.node.tenants.grant import Grant

AGAIN_S = 1.0  # between looks for new processes, and after failures
KNOWN_S = 0.05  # between questions whether the processes are known yet, after a start
SLOTS_KNOWN_S = 3.0  # slots of ended processes are reclaimed within two seconds
STOPPED_WITHIN_S = 2.0
MOST_FAILURES = 5  # of a release, for example because the helper hangs; it is given up then
DEVICE_SLACK_BYTES = 1 << 20  # what a device may still show of a process whose memory was moved


@dataclass(eq=False)
class MemoryReleases:
    """Starts the threads that release and restore memory. Callers hold the registry's lock."""

    node: Node
    registry: TenantRegistry
    handshakes: Handshakes
    enforcer: Enforcer
    devices: DeviceTask
    memory: ProcessMemory
    bound_bytes: int | None  # of host memory for all tenants; None: what the machine can spare

    def check(self, managed: ManagedTenant) -> None:
        """Raises `PenstockError` if the driver cannot do it, or the host has too little memory."""
        check_installed()
        uuids = {share.uuid for share in managed.grant.devices}
        for device in self.node.devices:
            report = self.devices.report_of(device.uuid)
            if device.uuid in uuids and report and report.attributes.get("checkpoint") == "no":
                raise PenstockError(
                    f"the device memory of tenant {managed.tenant.name!r} cannot be released",
                    f"the driver of {device} cannot checkpoint processes",
                    "install driver 570 or later on a whole GPU, or suspend without "
                    "--release-memory",
                    reason="not-allowed",
                )
        others = [one.grant for one in self.registry.managed_tenants() if one is not managed]
        check_host_memory(
            managed.tenant.name, self.charged_bytes(managed), others, self.bound_bytes
        )

    def go_on(self, managed: ManagedTenant, *, is_adopted: bool = False) -> None:
        """Lets the tenant's thread follow its grant; starts it if there is none."""
        if managed.memory_release is None or not managed.memory_release.follow():
            managed.memory_release = MemoryRelease(self, managed, is_adopted=is_adopted)
            managed.memory_release.start()

    def resume_earlier(self, managed: ManagedTenant) -> None:
        """Goes on with what an earlier agent began."""
        if managed.grant.memory != "device":
            self.go_on(managed, is_adopted=True)

    def stop(self) -> None:
        """Stops all threads and the helper; the memory stays where it is."""
        threads = [one.memory_release for one in self.registry.managed_tenants()]
        running = [one for one in threads if one is not None]
        for one in running:
            one.stop()
        self.memory.helper.close()  # what waits for it ends
        for one in running:
            one.join()

    def processes(self, managed: ManagedTenant) -> list[Process]:
        """The tenant's processes, by handshakes and the kernel."""
        name = managed.tenant.name
        known = [*self.handshakes.processes(name), *self.enforcer.members(name)]
        return list(dict.fromkeys(known))

    def knows_processes(self, managed: ManagedTenant) -> bool:
        """Whether as many live processes are known as hold a slot of the usage page.

        A process that has just begun to use the driver holds one before the agent knows it.
        """
        usage = managed.last_usage()
        slots = len(usage.slots) if usage is not None else 0
        return slots <= sum(map(is_alive, self.processes(managed)))

    def charged_bytes(self, managed: ManagedTenant) -> int:
        """The tenant's memory by its usage page or, if that is more, by its devices."""
        told = {
            one.device_uuid: one.memory_bytes or 0
            for one in self.enforcer.figures(managed.tenant.directory)
        }
        try:
            charged = [one.total_bytes for one in read_usage(managed.tenant.usage_page).devices]
        except PageError:  # enforcement handles unreadable pages
            charged = []
        shares = managed.grant.devices
        charged += [0] * len(shares)
        return sum(
            max(page, told.get(one.uuid, 0)) for one, page in zip(shares, charged, strict=False)
        )

    def device_bytes(self, managed: ManagedTenant) -> int:
        """Memory of the tenant's processes on its devices, as the devices tell it now."""
        pids = {one.pid for one in self.processes(managed)}
        uuids = {share.uuid for share in managed.grant.devices}
        found = 0
        for device in self.node.devices:
            if device.uuid in uuids:
                try:
                    seen = self.node.source.processes(device)
                except DeviceLostError:
                    continue
                found += sum(one.memory_bytes or 0 for one in seen if one.alive and one.pid in pids)
        return found


class MemoryRelease:
    """The thread of one tenant whose memory is, or is to be, on the host."""

    def __init__(
        self, releases: MemoryReleases, managed: ManagedTenant, *, is_adopted: bool
    ) -> None:
        """`is_adopted`: an earlier agent has begun, so that processes may be locked already."""
        self._of, self._managed = releases, managed
        self._is_begun = is_adopted
        self.problem = ""
        self._failures = 0
        self._asked_s = time.monotonic()  # when the last order came
        self._wake = threading.Event()
        self._is_stopped = self._is_over = False
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def follow(self) -> bool:
        """Makes the thread look at the grant again; False: it has ended."""
        self.problem, self._failures, self._asked_s = "", 0, time.monotonic()
        self._wake.set()
        return not self._is_over

    def stop(self) -> None:
        """Makes the thread end after its current step; the memory stays where it is."""
        self._is_stopped = True
        self._wake.set()

    def join(self) -> None:
        """Waits for the thread's end, but not for a driver that hangs."""
        self._thread.join(STOPPED_WITHIN_S)

    def _run(self) -> None:
        while not self._is_stopped:
            self._wake.clear()
            with self._of.registry.lock:
                if not self._goes_on():
                    self._is_over = True
                    return
                memory = self._managed.grant.memory
            try:
                if memory == "releasing":
                    self._release()
                elif memory == "restoring":
                    self._restore()
                else:
                    self._keep_released()
                    self._wake.wait(AGAIN_S)
            except Exception as error:  # noqa: BLE001 - it is tried again, and shown meanwhile
                self.problem = str(error)
                self._failures += 1
                self._wake.wait(AGAIN_S)

    def _goes_on(self) -> bool:
        managed = self._managed
        return (
            self._of.registry.has(managed)
            and managed.revocation is None
            and managed.grant.memory != "device"
        )

    def _release(self) -> None:
        if not self._knows_processes():
            return
        took, before_bytes = Took(), self._of.device_bytes(self._managed)
        host_bytes = max(before_bytes, self._managed.grant.host_bytes)
        try:
            self._check_failures()
            self._of.memory.release(
                lambda: self._of.processes(self._managed), self._note_idle, took
            )
            if not took.is_begun:  # no process uses the driver, but the shim of the next one asks
                self._note_idle()
            self._check_gone(before_bytes)
        except RefusedError as error:
            # If the driver could not even be asked, there is nothing to take back.
            self._is_begun |= took.is_begun
            if self._change("releasing", _to_restoring if self._is_begun else _to_device):
                self.problem, self._failures = str(error), 0
                self._record("memory-not-released", reason=self.problem)
                if not self._managed.grant.suspended:
                    self._record("resumed", by="penstock", reason=self.problem)
            return
        if self._change("releasing", lambda now: _to_released(now, host_bytes)):
            self.problem, self._failures = "", 0
            self._record("memory-released", bytes=host_bytes, seconds=took.seconds)

    def _check_failures(self) -> None:
        """Raises `RefusedError` if the release has failed again and again."""
        if self._failures >= MOST_FAILURES:
            raise RefusedError("device memory was not released", self.problem, "try again")

    def _check_gone(self, before_bytes: int) -> None:
        """Raises `RefusedError` if the devices still show memory of the tenant's processes."""
        left = self._of.device_bytes(self._managed)
        if left > DEVICE_SLACK_BYTES * max(1, len(self._of.processes(self._managed))):
            raise RefusedError(
                "device memory was not released",
                f"after the driver's checkpoint the devices still show {human_memory(left)} of "
                f"{human_memory(max(left, before_bytes))}: the agent may not checkpoint all of its "
                "processes",
                "suspend the tenant without --release-memory",
            )

    def _note_idle(self) -> None:
        """Tells the tenant's shim that none of its work is on a device now."""
        with self._of.registry.lock:
            if self._of.registry.has(self._managed):
                put_suspension(
                    self._of.registry, self._managed, self._managed.grant,
                    idle_since_ns=time.monotonic_ns(),
                )  # fmt: skip

    def _restore(self) -> None:
        if not self._knows_processes():
            return
        took, grant = Took(), self._managed.grant
        processes = self._of.processes(self._managed)
        uuids = [device.uuid for device in self._of.node.devices]
        mapping: dict[str, str] = {}
        if grant.former_devices:
            mapping = mapping_of(uuids, grant.former_devices, [one.uuid for one in grant.devices])
        try:
            self._of.memory.restore(
                processes, lambda one: {} if _key(one) in grant.moved else mapping, took
            )
        except RefusedError as error:
            self._take_back(grant, processes)
            self.problem = str(error)
            self._record("memory-not-restored", reason=self.problem)
            return
        self._of.memory.unlock(processes, took)
        if self._change("restoring", _to_device):
            self._record("memory-restored", bytes=grant.host_bytes, seconds=took.seconds)
            if not self._managed.grant.suspended:
                self._record("resumed", by="penstock", reason=self.problem)

    def _take_back(self, grant: Grant, processes: list[Process]) -> None:
        """Moves memory that was restored to the host again, because the rest could not follow."""
        if grant.former_devices:
            done = {*grant.moved, *map(_key, self._of.memory.locked(processes))}
            self._change("restoring", lambda now: dataclasses.replace(now, moved=tuple(done)))
        self._of.memory.release_again(processes)
        self._change("restoring", lambda now: self._back(_to_released(now, grant.host_bytes)))

    def _back(self, grant: Grant) -> Grant:
        """The grant on its former devices, unless some of its processes have left them."""
        if grant.moved or not grant.former_devices:
            return grant
        known = {device.uuid: device for device in self._of.node.devices}
        if not known.keys() >= set(grant.former_devices):
            return grant
        chosen = [known[uuid] for uuid in grant.former_devices]
        return dataclasses.replace(moved(grant, chosen, grant.moved_at_ns), former_devices=())

    def _keep_released(self) -> None:
        """Moves the memory of processes that were started since."""
        processes = self._of.processes(self._managed)
        if not all(map(self._of.memory.is_released, processes)):
            self._of.memory.release(
                lambda: self._of.processes(self._managed), self._note_idle, Took()
            )

    def _knows_processes(self) -> bool:
        """Whether the processes are known: the agent may have to find new ones first.

        It waits for slots of the usage page for a while only, as the tenant can forge them.
        """
        is_late = time.monotonic() - self._asked_s > SLOTS_KNOWN_S
        is_scanned = self._of.enforcer.count(self._managed.tenant.name) is not None
        if is_scanned and (is_late or self._of.knows_processes(self._managed)):
            return True
        self._wake.wait(KNOWN_S)
        return False

    def _change(self, before: str, edit: Callable[[Grant], Grant]) -> bool:
        """Writes the edited grant, unless an order has changed its course meanwhile.

        Raises:
            PenstockError: the quota page is damaged.
            OSError: the grant cannot be written now.
        """
        with self._of.registry.lock:
            grant = self._managed.grant
            if not self._goes_on() or grant.memory != before:
                return False
            put_suspension(self._of.registry, self._managed, edit(grant))
            return True

    def _record(self, event: str, **fields: object) -> None:
        record_event(self._managed.tenant.directory, event, **fields)


def _to_released(grant: Grant, host_bytes: int) -> Grant:
    return dataclasses.replace(grant, memory="released", host_bytes=host_bytes)


def _to_restoring(grant: Grant) -> Grant:
    return dataclasses.replace(grant, memory="restoring")


def _to_device(grant: Grant) -> Grant:
    """The grant once its memory is back: suspended only if it is to stay that."""
    suspended = grant.suspended_before
    return dataclasses.replace(
        grant,
        memory="device",
        host_bytes=0,
        suspended=suspended,
        suspended_by=grant.suspended_by if suspended else "",
        suspended_before=False,
        former_devices=(),
        moved=(),
    )


def _key(process: Process) -> str:
    return f"{process.pid}/{process.start_ticks}"
