"""The last events of ended tenants, kept for a while so that users can see why a command ended.

They are in <state>/ended/NAME-TIME.OWNER.jsonl, one file for each tenant; OWNER is a uid, and may
be missing. If there are too many files, the owner with the most files loses the oldest. A tenant
whose only event is its grant leaves no file.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, NamedTuple

from penstock.node.tenants.json_files import read_record
from penstock.node.tenants.tenant_events import read_events

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "ended"
MOST_FILES = 200
MOST_EVENTS = 200  # the number of last events kept for each tenant
KEPT_NS = 7 * 24 * 3600 * 10**9
_PLAIN = {"granted", "adopted"}


def keep_events(directory: Path, name: str, state: Path, owner: int | None = None) -> None:
    """Keeps a tenant's last events; call it before its `directory` is deleted.

    On a full disk only the events are lost. `owner`: the uid of the tenant's owner, None if
    unknown.
    """
    events = read_events(directory)
    if all(one.get("event") in _PLAIN for one in events):
        return
    folder = state / FOLDER
    text = "".join(json.dumps(one) + "\n" for one in events[-MOST_EVENTS:])
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        whose = "" if owner is None else f".{owner if owner >= 0 else 'nobody'}"
        file = folder / f"{name}-{time.time_ns()}{whose}.jsonl"
        file.touch(mode=0o600, exist_ok=False)
        file.write_text(text, encoding="utf-8")
        _make_room(folder)


def read_ended(state: Path, name: str) -> list[dict[str, object]]:
    """Events of the last ended tenant with this name, oldest first; empty if none were kept."""
    found = [(one.at_ns, one.file) for one in _files(state / FOLDER) if one.name == name]
    for _, file in sorted(found, reverse=True)[:1]:
        with contextlib.suppress(OSError, ValueError):
            lines = read_record(file, errors="replace").splitlines()
            return [one for line in lines if isinstance(one := json.loads(line), dict)]
    return []


class _Kept(NamedTuple):
    at_ns: int
    name: str
    owner: str
    file: Path


def _make_room(folder: Path) -> None:
    oldest_ns = time.time_ns() - KEPT_NS
    of_owners: dict[str, list[_Kept]] = {}  # each list has its oldest file last
    for one in sorted(_files(folder), reverse=True):
        if one.at_ns < oldest_ns:
            one.file.unlink(missing_ok=True)
        else:
            of_owners.setdefault(one.owner, []).append(one)
    for _ in range(sum(map(len, of_owners.values())) - MOST_FILES):
        most = max(of_owners.values(), key=len)
        most.pop().file.unlink(missing_ok=True)


def _files(folder: Path) -> list[_Kept]:
    found = []
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            name, _, rest = file.name.removesuffix(".jsonl").rpartition("-")
            at_ns, _, owner = rest.partition(".")
            if at_ns.isdecimal() and file.name.endswith(".jsonl"):
                found.append(_Kept(int(at_ns), name, owner, file))
    return found
