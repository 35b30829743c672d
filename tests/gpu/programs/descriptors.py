"""Finds out what file descriptors of device memory are, and what they keep.

python descriptors.py NAME      prints what was found as JSON
"""

import array
import ctypes
import errno
import fcntl
import os
import platform
import socket
import stat
import sys
from pathlib import Path

import driver
from driver import U64, call, code, has, leave
from say import say
from used import MIB, Used

POSIX_FD, PINNED, DEVICE = 1, 1, 1
FD_SUPPORTED, DMA_BUF_SUPPORTED = 103, 124  # attributes
DMA_BUF_FD = 1
BYTES = 256 * MIB
KCMP_FILE = 0
KCMP = {"x86_64": 312, "aarch64": 272}


class Property(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("place", ctypes.c_int),
                ("id", ctypes.c_int), ("meta", ctypes.c_void_p),
                ("flags", ctypes.c_char * 8)]  # fmt: skip


def create(count):
    """Device memory that can be exported."""
    handle, prop = U64(), Property(PINNED, POSIX_FD, DEVICE, 0)
    call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(count), ctypes.byref(prop), U64(0))
    return handle


def export(handle):
    fd = ctypes.c_int(-1)
    call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, POSIX_FD, U64(0))
    return fd.value


def kcmp(one_pid, other_pid, one_fd, other_fd):
    """0: both are one description; 1 to 3: they are not; below 0: an error number."""
    number = KCMP.get(platform.machine())
    if number is None:
        return -errno.ENOSYS
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(number, one_pid, other_pid, KCMP_FILE,
                          ctypes.c_ulong(one_fd), ctypes.c_ulong(other_fd))  # fmt: skip
    return -ctypes.get_errno() if result < 0 else result


def peer(link):
    """Another process: gets a descriptor and says what it sees of it. Knows no driver."""
    message, ancillary, *_ = link.recvmsg(64, socket.CMSG_SPACE(4))
    pid, theirs = (int(word) for word in message.split())
    fd = array.array("i", ancillary[0][2])[0]
    seen = os.fstat(fd)
    owner = fcntl.fcntl(fd, fcntl.F_GETOWN)
    link.sendall(f"{fd} {seen.st_rdev} {seen.st_ino} {owner} {kcmp(pid, os.getpid(), theirs, fd)}"
                 .encode())  # fmt: skip
    link.recv(1)
    os._exit(0)


def exported():
    """An exported descriptor: its kind, and by what another process knows it again."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        peer(theirs)
    driver.enter()
    if not driver.attribute(FD_SUPPORTED):
        leave("descriptors of device memory (attribute 103)")
    one, other = export(create(2 * MIB)), export(create(2 * MIB))
    seen, beside = os.fstat(one), os.fstat(other)
    fcntl.fcntl(one, fcntl.F_SETOWN, os.getpid())
    words = array.array("i", [one]).tobytes()
    ours.sendmsg([f"{os.getpid()} {one}".encode()],
                 [(socket.SOL_SOCKET, socket.SCM_RIGHTS, words)])  # fmt: skip
    fd, rdev, inode, owner, from_child = (int(word) for word in ours.recv(256).split())
    say(
        char_device=stat.S_ISCHR(seen.st_mode),
        major=os.major(seen.st_rdev),
        minor=os.minor(seen.st_rdev),
        path=str(Path(f"/proc/self/fd/{one}").readlink()),
        same_inode_for_both=seen.st_ino == beside.st_ino,
        same_device_there=rdev == seen.st_rdev and inode == seen.st_ino,
        owner_seen=owner == os.getpid(),
        kcmp_same=kcmp(os.getpid(), child, one, fd),
        kcmp_other=kcmp(os.getpid(), child, other, fd),
        kcmp_from_child=from_child,
    )
    ours.sendall(b".")
    os.waitpid(child, 0)


def held_by_export():
    """Memory whose handle was released while its exported descriptor is open."""
    driver.enter()
    if not driver.attribute(FD_SUPPORTED):
        leave("descriptors of device memory (attribute 103)")
    used = Used()
    handle = create(BYTES)
    taken = used.more()
    fd = export(handle)
    call("cuMemRelease", handle)
    released = used.more()
    os.close(fd)
    say(taken_mib=taken / MIB, given_back_at_release_mib=-released / MIB,
        given_back_at_close_mib=-used.more() / MIB)  # fmt: skip


def held_by_dma_buf():
    """Memory that was freed while a dma-buf of it is open."""
    driver.enter()
    if not has("cuMemGetHandleForAddressRange") or not driver.attribute(DMA_BUF_SUPPORTED):
        leave("dma-buf of device memory (attribute 124)")
    used = Used()
    address = driver.alloc(BYTES)
    taken = used.more()
    fd = ctypes.c_int(-1)
    result = code("cuMemGetHandleForAddressRange", ctypes.byref(fd), address,
                  ctypes.c_size_t(BYTES), DMA_BUF_FD, U64(0))  # fmt: skip
    if result:
        leave(f"dma-buf of device memory: cuMemGetHandleForAddressRange says {result}")
    driver.free(address)
    freed = used.more()
    os.close(fd.value)
    say(taken_mib=taken / MIB, given_back_at_free_mib=-freed / MIB,
        given_back_at_close_mib=-used.more() / MIB)  # fmt: skip


PROBES = (exported, held_by_export, held_by_dma_buf)

if __name__ == "__main__":
    {probe.__name__: probe for probe in PROBES}[sys.argv[1]]()
