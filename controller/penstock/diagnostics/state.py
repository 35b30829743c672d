"""Doctor checks of the state directory and of its tenants' pages."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from penstock.diagnostics.finding import Finding, failure, ok, warning
from penstock.model import PenstockError
from penstock.node.containers.container_folder import FOLDER
from penstock.node.tenants.state import State, default_directory
from penstock.node.tenants.tenant import Tenant, tenants_of
from penstock_shim.pages import PageError, page_bytes, read_quota, read_usage

ELSEWHERE = "name another one with --state-dir or $PENSTOCK_STATE_DIR"
TENANTS_THAT_MUST_FIT = 4
_OVER_A_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "lustre")


def look_at_state(directory: Path | None, agents: Path | None = None) -> list[Finding]:
    """Checks the state directory's ownership and free space, then every tenant's pages.

    `agents` is the state directory of the responding agent, which may belong to another user.
    """
    named = (directory or default_directory()).absolute()
    if agents is not None and named == agents.absolute() and not _is_ours(named):
        return [ok("state directory", f"{named}, of the agent that runs there")]
    found = [_folder(named)]
    if found[0].status == "failure" or not named.is_dir():
        return found
    found.append(_room(named))
    state = State(named)
    if state.tenants.is_dir():
        for tenant in tenants_of(state):
            found += _pages(tenant)
    return found


def _is_ours(named: Path) -> bool:
    return named.stat().st_uid == os.geteuid()


def _folder(named: Path) -> Finding:
    """Makes the same checks as `State.open`, without creating the directory."""
    if not named.exists():
        parent = next(folder for folder in named.parents if folder.exists())
        if os.access(parent, os.W_OK):
            return ok("state directory", f"{named} does not exist yet, and can be created")
        return failure(
            "state directory", f"{named} cannot be created: no access to {parent}", ELSEWHERE
        )
    try:
        State.read(named)
    except PenstockError as error:
        return failure("state directory", f"{error.what}: {error.why}", error.fix)
    except OSError as error:
        return failure("state directory", str(error), ELSEWHERE)
    return ok("state directory", f"{named}, only this user can write it")


def _room(named: Path) -> Finding:
    kind = _file_system(named)
    room = os.statvfs(named)
    free = room.f_bavail * room.f_frsize
    seen = f"{kind}, {free >> 20} MiB free"
    if free < TENANTS_THAT_MUST_FIT * page_bytes():
        return failure("room for pages", seen, f"free up disk space, or {ELSEWHERE}")
    if kind in _OVER_A_NETWORK:
        return warning(
            "room for pages",
            seen,
            f"{ELSEWHERE}: pages are shared memory and belong on a local disk",
        )
    return ok("room for pages", seen)


def _file_system(named: Path) -> str:
    """The type of the file system that holds `named`."""
    best, kind = "", "unknown file system"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return kind
    for line in lines:
        before, _, after = line.partition(" - ")
        point = before.split()[4]
        if named.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind


def _pages(tenant: Tenant) -> list[Finding]:
    check = f"tenant {tenant.name}"
    found = []
    for page, read in ((tenant.quota_page, read_quota), (tenant.usage_page, read_usage)):
        try:
            read(page)
            info = page.lstat()
        except PageError as error:
            found.append(failure(check, f"{error.path} {error.what}", error.advice))
            continue
        except OSError as error:
            found.append(failure(check, f"{page}: {error.strerror}", "see penstock ps"))
            continue
        if not _is_in_order(tenant, page, info):
            found.append(
                failure(
                    check,
                    f"{page} may be written by others (mode {stat.S_IMODE(info.st_mode):o}, owner "
                    f"{info.st_uid})",
                    f"chmod 600 {page}; any user who can write it sets the quota",
                )
            )
    if not tenant.is_supervised() and not found:
        found.append(
            warning(
                check,
                "neither a penstock run nor an agent supervises it: its elastic share and its "
                "events are not updated",
                "it ends with its processes; penstock ps removes it",
            )
        )
    return found or [ok(check, "both pages are valid")]


def _is_in_order(tenant: Tenant, page: Path, info: os.stat_result) -> bool:
    """Whether only the intended users can write the page."""
    ours = info.st_uid == os.geteuid()
    if page == tenant.usage_page:
        # Users write to their tenants' usage pages. Programs in a container may run as any user,
        # so its usage page is writable for all, in a directory that only its owner can enter.
        if (tenant.directory / FOLDER).is_dir() and not tenant.directory.stat().st_mode & 0o077:
            return ours
        ours = ours or info.st_uid == _user_of(tenant)
    return ours and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _user_of(tenant: Tenant) -> int | None:
    """The uid in the tenant's grant; None if not known."""
    try:
        return tenant.grant().uid
    except PenstockError:
        return None
