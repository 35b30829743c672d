"""A tenant's directory: grant.yaml, quota and usage pages, events and the supervisor's lock."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import secrets
import shutil
import time
from typing import TYPE_CHECKING

from penstock.devices.aside import FILES
from penstock.model import PenstockError, listing
from penstock.node.tenants.grant import FILE as GRANT_FILE
from penstock.node.tenants.grant import Grant, read_grant, write_grant
from penstock.node.tenants.state import State, is_locked
from penstock.node.tenants.tenant_events import record_event
from penstock.node.tenants.tenant_processes import (
    TENANT_VARIABLE,
    environments,
    members_of,
    of_user,
)
from penstock.node.tenants.tombstones import keep_events
from penstock_shim.pages import (
    DeviceLimit,
    Limits,
    PageError,
    QuotaWriter,
    UsagePage,
    read_quota,
    read_usage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from penstock.devices import DriverLibraries

SUPERVISOR_LOCK = "supervisor.lock"
# The mode of a directory that other users may enter but not list. A user who could list it into
# memory backed by a stalled file system would block all changes of the directory.
ENTERED = 0o711
AWAITED_NS = 24 * 3600 * 10**9  # how long a tenant waits for a stopped agent to return


@dataclasses.dataclass(frozen=True)
class Tenant:
    """A tenant that exists on disk."""

    directory: Path

    @property
    def name(self) -> str:
        """The tenant's name, which is the name of its directory."""
        return self.directory.name

    def grant(self) -> Grant:
        """Reads the tenant's grant. Raises `PenstockError` if it cannot be read."""
        return read_grant(self.directory)

    @property
    def quota_page(self) -> Path:
        """The quota page, which the shim reads."""
        return self.directory / "quota"

    @property
    def usage_page(self) -> Path:
        """The usage page, which the shim writes."""
        return self.directory / "usage"

    def is_supervised(self) -> bool:
        """Whether a `penstock run` or an agent supervises the tenant."""
        return is_locked(self.directory / SUPERVISOR_LOCK)

    def remove(self) -> None:
        """Deletes the tenant's directory, which frees its name at once; its last events are kept.

        Raises:
            OSError: the directory cannot be renamed; the tenant is unchanged.
        """
        owner = None
        with contextlib.suppress(PenstockError):
            grant = self.grant()
            owner = grant.uid if grant.owner_uid is None else grant.owner_uid
        aside = self.directory.with_name(f".gone-{self.name}-{secrets.token_hex(8)}")
        try:
            self.directory.rename(aside)
        except FileNotFoundError:
            return
        keep_events(aside, self.name, self.directory.parent.parent, owner)
        _remove(aside)


def _remove(folder: Path) -> None:
    """Deletes `folder`, possibly later if a user currently blocks access to its usage page."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            FILES.remove(folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def limits_of(grant: Grant) -> Limits:
    """The limits in the grant, before a supervisor takes co-tenants into account."""
    return Limits(
        devices=tuple(
            DeviceLimit(
                uuid=device.uuid,
                memory_bytes=device.memory_bytes,
                cores_permille=device.cores_permille,
                context_reserve_bytes=device.context_bytes,
            )
            for device in grant.devices
        ),
        mode=grant.mode,
        allow_unknown=grant.allow_unknown,
        record=grant.record,
    )


def create_tenant(state: State, grant: Grant, libraries: DriverLibraries) -> tuple[Tenant, int]:
    """Builds the tenant's directory aside, then renames it. Callers hold `state.lock()`.

    If the grant is for another user, that user may enter the directory and owns the usage page.

    Returns:
        The tenant, and a descriptor that holds the supervisor's lock until every process that
        inherited it has closed it.

    Raises:
        PenstockError: a tenant with that name exists.
    """
    directory = state.tenants / grant.tenant
    if os.path.lexists(directory):
        raise PenstockError(
            f"tenant {grant.tenant!r} already exists",
            f"its directory {directory} exists",
            "choose another name",
            reason="exists",
        )
    aside = state.tenants / f".new-{grant.tenant}-{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(mode=0o700)
    lock = -1
    try:
        lock = os.open(aside / SUPERVISOR_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_grant(aside, grant)
        QuotaWriter.create(
            aside / "quota",
            limits_of(grant),
            tenant=grant.tenant,
            driver_path=libraries.driver,
            nvml_path=libraries.management,
        ).close()
        UsagePage.create(aside / "usage").close()
        if grant.uid is not None and grant.uid != os.geteuid():
            os.chown(aside / "usage", grant.uid, -1)
        if grant.uid is not None:
            aside.chmod(ENTERED)
        record_event(
            aside, "granted", command=list(grant.command), oversubscribed=grant.oversubscribed
        )
        aside.rename(directory)
    except BaseException as error:
        shutil.rmtree(aside, ignore_errors=True)
        if lock >= 0:
            os.close(lock)
        told = _cause(error, state, directory)
        if told is error:
            raise
        raise told from error
    return Tenant(directory), lock


def _cause(error: BaseException, state: State, directory: Path) -> BaseException:
    """Why a tenant could not be created, in the user's terms; `error` itself if it is clear."""
    if isinstance(error, UnicodeEncodeError):
        return PenstockError(
            f"cannot make a tenant in {state.directory!a}",
            "the path, or the path of the driver, is not UTF-8, which records and messages need",
            "name another directory with --state-dir",
        )
    if isinstance(error, ValueError):  # a path is longer than its field in the page
        return PenstockError("cannot write the quota page", str(error), "use a shorter path")
    if isinstance(error, PageError) and isinstance(error.__context__, OSError):
        error = error.__context__  # the page is not damaged; the disk is full
    if isinstance(error, OSError):
        # A failed call on a descriptor does not name a file.
        error.filename = error.filename or str(directory)
    return error


def tenants_of(state: State) -> list[Tenant]:
    """All tenants on disk by name, live or not. Other files and links are ignored."""
    try:
        entries = sorted(state.tenants.iterdir())
    except FileNotFoundError:  # no tenant was ever started here
        return []
    return [
        Tenant(found) for found in entries if not found.name.startswith(".") and _is_folder(found)
    ]


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def find_tenant(state: State, name: str) -> Tenant:
    """The tenant with this name. Raises `PenstockError` if it does not exist."""
    tenants = {tenant.name: tenant for tenant in tenants_of(state)}
    if name in tenants:
        return tenants[name]
    only = listing(list(tenants))
    raise PenstockError(
        f"no tenant {name!r} in {state.directory}",
        f"it has only {only}" if only else "it has no tenants",
        "use the name of an existing tenant (see penstock ps)",
        reason="no-such-tenant",
    )


def collect(state: State) -> list[Tenant]:
    """Removes tenants whose processes and supervisor are gone; returns the live tenants.

    Callers hold `state.lock()`. The tenants of a killed `penstock run` are removed here. An agent's
    tenants wait a day for the agent to restart and meter their last use.
    """
    tenants = tenants_of(state)
    unsupervised = [tenant for tenant in tenants if not tenant.is_supervised()]
    if unsupervised:
        found = environments(TENANT_VARIABLE)
        for tenant in unsupervised:
            if not _stays(tenant) and not has_processes(tenant, found):
                if not _is_awaited(tenant):
                    tenant.remove()
                tenants.remove(tenant)
    remove_leftovers(state)
    return tenants


def remove_leftovers(state: State) -> None:
    """Removes tenants that a killed process was creating or removing.

    Callers hold `state.lock()`.
    """
    for leftover in [*state.tenants.glob(".new-*"), *state.tenants.glob(".gone-*")]:
        if _is_folder(leftover) and not is_locked(leftover / SUPERVISOR_LOCK):
            _remove(leftover)


def _stays(tenant: Tenant) -> bool:
    """Whether the tenant stays, even without processes, until its agent is restarted."""
    try:
        return tenant.grant().lifetime == "until-revoked"
    except PenstockError:
        # The lifetime is unknown, but a damaged record is no reason to remove a tenant.
        return any(os.path.lexists(tenant.directory / page) for page in (GRANT_FILE, "quota"))


def _is_awaited(tenant: Tenant) -> bool:
    """Whether an agent may still be restarted and meter the tenant's last use."""
    try:
        since_ns = time.monotonic_ns() - read_quota(tenant.quota_page).heartbeat_ns
        return tenant.grant().lifetime == "processes" and since_ns < AWAITED_NS
    except (PenstockError, PageError):
        return False


def collect_if_writable(state: State) -> None:
    """Calls `collect` for a command that only reads, which a read-only directory does not stop."""
    if not state.tenants.is_dir():
        return
    try:
        with state.lock():
            collect(state)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise


def has_processes(
    tenant: Tenant,
    found: Mapping[int, Mapping[str, str]] | None = None,
    uid: int | None = None,
) -> bool:
    """Whether any process runs under the tenant, according to environments or live slots.

    `uid`: the user whose environments count; None for all users.
    """
    found = environments(TENANT_VARIABLE) if found is None else found
    if of_user(members_of(found, tenant.directory), uid):
        return True
    try:
        with UsagePage.open(tenant.usage_page) as usage:
            usage.reap()
            return bool(usage.snapshot().slots)
    except PageError:
        return False  # the page is damaged, so only environments count


def live_grants(tenants: list[Tenant]) -> list[Grant]:
    """The grants of `tenants`. Raises `PenstockError` if one is unreadable, as it must count."""
    grants = []
    for tenant in tenants:
        try:
            grants.append(tenant.grant())
        except PenstockError as error:  # noqa: PERF203 - each tenant has its own error
            if not tenant.directory.exists():
                continue  # the tenant has ended meanwhile
            raise PenstockError(error.what, error.why, _how_to_end(tenant)) from error
    return grants


def _how_to_end(tenant: Tenant) -> str:
    """How to end a tenant whose grant is unreadable, with the pids of its processes."""
    pids = set(members_of(environments(TENANT_VARIABLE), tenant.directory))
    with contextlib.suppress(PageError):
        pids |= {slot.pid for slot in read_usage(tenant.usage_page).slots}
    if not pids:
        return f"end its penstock run, then remove {tenant.directory}"
    return f"end its processes (pid {', '.join(map(str, sorted(pids)))}), then try again"


def open_quota(tenant: Tenant) -> QuotaWriter:
    """Opens the quota page for writing. Raises `PenstockError` if it is damaged or gone."""
    try:
        return QuotaWriter.open(tenant.quota_page)
    except PageError as error:
        raise PenstockError(
            f"tenant {tenant.name!r} cannot be changed", f"{error.path} {error.what}",
            "end the tenant (end its penstock run, or use penstock revoke if there is an agent), "
            "and start it again; nothing was changed",
            reason="not-now",
        ) from error  # fmt: skip


def change_grant(tenant: Tenant, grant: Grant) -> list[str]:
    """Puts `grant` in force for a running tenant; returns notes for the user.

    Callers hold `state.lock()` and have checked admission. The grant is written first: if this
    process is killed before it writes the page, the tenant's supervisor finishes the change.

    Raises:
        PenstockError: the quota page or the grant cannot be written; the old quota stays in force.
    """
    notes = []
    try:
        used_bytes = [device.total_bytes for device in read_usage(tenant.usage_page).devices]
    except PageError as error:
        used_bytes = []
        notes.append(f"cannot read the usage of {tenant.name}: {error}")
    for device, used in zip(grant.devices, used_bytes, strict=False):
        if used > device.memory_bytes:
            notes.append(
                f"device {device.index}: {used} bytes are in use, more than the new "
                f"{device.memory_bytes}; new allocations are refused until enough memory is freed"
            )
    with open_quota(tenant) as writer:
        _change_to(grant)(writer.limits)  # check first that the page can be changed
        try:
            write_grant(tenant.directory, grant)
        except OSError as error:
            raise PenstockError(
                f"the quota of {tenant.name!r} was not changed, and stays in force",
                f"{tenant.directory / GRANT_FILE} cannot be written: {error.strerror or error}",
                "free space on that file system, or name a --state-dir on another file system",
                reason="unavailable",
            ) from error
        try:
            writer.change(_change_to(grant))
        except PageError as error:  # the supervisor will write the page from the grant
            notes.append(f"the quota of {tenant.name} takes effect once its page can be "
                         f"written: {error}")  # fmt: skip
    shares = [
        {"device": d.uuid, "memory_bytes": d.memory_bytes, "cores_permille": d.cores_permille}
        for d in grant.devices
    ]
    record_event(tenant.directory, "resized", mode=grant.mode, shares=shares)
    return notes


def _change_to(grant: Grant) -> Callable[[Limits], Limits]:
    """A function that sets a page's limits to `grant` but keeps what the supervisor maintains."""

    def edit(limits: Limits) -> Limits:
        devices = tuple(
            dataclasses.replace(
                limit,
                memory_bytes=device.memory_bytes,
                cores_permille=device.cores_permille,
                allowance_permille=None,
            )
            for limit, device in zip(limits.devices, grant.devices, strict=True)
        )
        return dataclasses.replace(limits, devices=devices, mode=grant.mode)

    return edit
