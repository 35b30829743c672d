"""A user's own file system: one file, and a server that leaves some requests unanswered.

A process that waits for such an answer waits as long as the server lives, and holds the locks that
the kernel took before. The programs beside this one use that to hold locks that others need.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import struct
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
CLONE_NEWNS, CLONE_NEWUSER, PR_SET_DUMPABLE = 0x20000, 0x10000000, 4
PROT_READ_WRITE, MAP_SHARED, MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS = 3, 1, 2, 0x10, 0x20
PAGE_BYTES = 4096
FILE_BYTES = 16 * PAGE_BYTES

# include/uapi/linux/fuse.h
LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE = (
    1,
    2,
    3,
    4,
    14,
    15,
    16,
    17,
    18,
)
FLUSH, INIT, OPENDIR, BATCH_FORGET = 25, 26, 27, 42
WRITEBACK_CACHE = 1 << 16
HEADER, ANSWER = struct.Struct("=IIQQIIII"), struct.Struct("=IiQ")
ATTRIBUTES = struct.Struct("=QQQQQQIIIIIIIIII")
ENOSYS = 38
FILE, FOLDER = 2, 1  # node ids


def attributes(node: int) -> bytes:
    times, owner = (0,) * 6, (1, 0, 0, 0)  # links, uid, gid, device
    mode = stat.S_IFREG | 0o644 if node == FILE else stat.S_IFDIR | 0o755
    size_bytes = FILE_BYTES if node == FILE else 0
    return ATTRIBUTES.pack(node, size_bytes, 0, *times, mode, *owner, PAGE_BYTES, 0)


def answer_to(operation: int, node: int, body: bytes, flags: int) -> bytes:
    """The answer to a request; b"": not implemented."""
    opened = struct.pack("=QII", 1, 0, 0)
    size_bytes = struct.unpack_from("=QQI", body)[2] if operation in {READ, WRITE} else 0
    found = struct.pack("=QII", 1000, 0, 0) + attributes(node)
    return {
        INIT: struct.pack("=IIIIHHIIHHI28x", 7, 31, 1 << 17, flags, 12, 9, 1 << 17, 1, 0, 0, 0),
        LOOKUP: struct.pack("=QQQQII", FILE, 0, 1000, 1000, 0, 0) + attributes(FILE),
        GETATTR: found,
        SETATTR: found,
        OPEN: opened,
        OPENDIR: opened,
        READ: bytes(size_bytes),
        WRITE: struct.pack("=II", size_bytes, 0),
        STATFS: struct.pack("=QQQQQIIII24x", 1, 1, 1, 1, 1, PAGE_BYTES, 255, PAGE_BYTES, 0),
    }.get(operation, b"")


LONGEST_S = 45  # should a test hang: `ps` of all the machine would hang with it


def serve(device: int, unanswered: int, flags: int) -> None:
    signal.alarm(LONGEST_S)
    while True:
        request = os.read(device, 1 << 20)
        _, operation, unique, node, *_ = HEADER.unpack_from(request)
        if operation in {unanswered, FORGET, BATCH_FORGET}:
            continue
        body = answer_to(operation, node, request[HEADER.size :], flags)
        error = 0 if body or operation == RELEASE else -ENOSYS
        os.write(device, ANSWER.pack(ANSWER.size + len(body), error, unique) + body)


def become(uid: int) -> None:
    """Becomes that user, in namespaces as `unshare --user --map-root-user --mount` makes them."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # or its own maps are root's
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    for kind in ("uid", "gid"):
        Path(f"/proc/self/{kind}_map").write_text(f"0 {uid} 1")


def mount(uid: int, device_file: str, folder: Path, unanswered: int, flags: int = 0) -> Path:
    """Becomes the user `uid` and mounts the file system; returns the path of its file.

    `unanswered`: the operation to leave unanswered. The server is a separate process: it must not
    need the locks that the others hold.
    """
    become(uid)
    device = os.open(device_file, os.O_RDWR)
    where = folder / str(os.getpid())
    where.mkdir()
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    words = (b"x", str(where).encode(), b"fuse", ctypes.c_ulong(0), options)
    if libc.mount(*words):
        raise OSError(ctypes.get_errno(), "mount")
    if os.fork() == 0:
        serve(device, unanswered, flags)
    os.close(device)
    return where / "file"


def mapped(file: int, at: int | None = None) -> int:
    """Maps the file and returns the address; a page is read when it is first touched."""
    place = libc.mmap(at, FILE_BYTES, PROT_READ_WRITE, MAP_SHARED, file, 0)
    if place == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    return place
