"""Mounts a /run that never answers a lookup: overlayfs over a user's own FUSE file system.

Run by root as `python unanswered_lookups.py UID FUSE-DEVICE FOLDER`, it becomes that user. FUSE
alone refuses other users, root included; overlayfs accesses it with the mounter's rights. The
program prints "ready" when both are mounted. From then on any lookup below its /run blocks.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
import threading
from pathlib import Path

from user_file_system import become, libc

# include/uapi/linux/fuse.h
LOOKUP, FORGET, GETATTR, STATFS, INIT, OPENDIR, BATCH_FORGET = 1, 2, 3, 17, 26, 27, 42
HEADER, ANSWER = struct.Struct("=IIQQIIII"), struct.Struct("=IiQ")
ATTRIBUTES = struct.Struct("=QQQQQQIIIIIIIIII")
ENOSYS = 38


def mount(source: str, target: Path, kind: str, options: str) -> None:
    words = (source.encode(), str(target).encode(), kind.encode())
    if libc.mount(*words, ctypes.c_ulong(0), options.encode()):
        raise OSError(ctypes.get_errno(), f"{kind} on {target}")


def attributes() -> bytes:
    times, owner = (0,) * 6, (2, 0, 0, 0)  # links, uid, gid, device
    return ATTRIBUTES.pack(1, 0, 0, *times, stat.S_IFDIR | 0o755, *owner, 4096, 0)


def answer_to(operation: int) -> bytes | None:
    """The answer to a request; None: no answer at all."""
    if operation == INIT:
        return struct.pack("=IIIIHHIIHHI28x", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, 0)
    if operation == GETATTR:
        return struct.pack("=QII", 1000, 0, 0) + attributes()
    if operation == STATFS:
        return struct.pack("=QQQQQIIII24x", 1, 1, 1, 1, 1, 4096, 255, 4096, 0)
    if operation == OPENDIR:
        return struct.pack("=QII", 0, 0, 0)
    return b""


def serve(device: int) -> None:
    while True:
        request = os.read(device, 1 << 20)
        _, operation, unique, *_ = HEADER.unpack_from(request)
        if operation in {LOOKUP, FORGET, BATCH_FORGET}:
            continue
        body = answer_to(operation) or b""
        os.write(
            device, ANSWER.pack(ANSWER.size + len(body), 0 if body else -ENOSYS, unique) + body
        )


def main() -> None:
    become(int(sys.argv[1]))
    device = os.open(sys.argv[2], os.O_RDWR)
    folder = Path(sys.argv[3])
    for name in ("fuse", "other"):
        (folder / name).mkdir()
    mount("x", folder / "fuse", "fuse", f"fd={device},rootmode=40000,user_id=0,group_id=0")
    threading.Thread(target=serve, args=[device], daemon=True).start()
    mount("x", Path("/run"), "overlay", f"lowerdir={folder}/fuse:{folder}/other")
    print("ready", flush=True)
    threading.Event().wait()


main()
