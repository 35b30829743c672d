"""Holds a lock of the kernel for ever, as an ordinary user.

Started by root, it becomes the user and holds the lock of:

    lock_holder.py UID memory FUSE-DEVICE FOLDER          its own memory map
    lock_holder.py UID exec FUSE-DEVICE FOLDER            its own execve, half done
    lock_holder.py UID folder FUSE-DEVICE FOLDER PATH     a folder that it may list
    lock_holder.py UID file FUSE-DEVICE FOLDER PATH       a file that it may write
    lock_holder.py UID sends FUSE-DEVICE FOLDER PATH      nothing: sends such a file to a socket

It prints "ready" when it holds the lock.
"""

from __future__ import annotations

import array
import ctypes
import os
import socket
import sys
import threading
import time
from pathlib import Path

import user_file_system
from user_file_system import libc

SYS_GETDENTS64 = 217  # x86-64


def hold_memory(file: Path) -> None:
    """Replaces a mapping whose pages must be written back first."""
    descriptor = os.open(file, os.O_RDWR)
    place = user_file_system.mapped(descriptor)
    ctypes.memset(place, 1, user_file_system.PAGE_BYTES)
    kind = (
        user_file_system.MAP_PRIVATE | user_file_system.MAP_ANONYMOUS | user_file_system.MAP_FIXED
    )
    in_other_thread(
        lambda: libc.mmap(
            place, user_file_system.FILE_BYTES, user_file_system.PROT_READ_WRITE, kind, -1, 0
        )
    )


def hold_exec(file: Path, processes: str = "1") -> None:
    """Calls execve, which flushes the files that it closes."""
    for _ in range(int(processes)):
        if os.fork():
            continue
        os.open(file, os.O_RDWR | os.O_CLOEXEC)
        os.execv("/bin/true", ["true"])  # noqa: S606


def hold_folder(file: Path, path: str) -> None:
    """Lists the folder into a page that never arrives."""
    place = user_file_system.mapped(os.open(file, os.O_RDWR))
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        print(error.strerror, end="; ")
        return
    in_other_thread(
        lambda: libc.syscall(
            SYS_GETDENTS64, folder, ctypes.c_void_p(place), user_file_system.FILE_BYTES
        )
    )


def hold_file(file: Path, path: str) -> None:
    """Writes from a page that never arrives."""
    place = user_file_system.mapped(os.open(file, os.O_RDWR))
    target = os.open(path, os.O_WRONLY)
    in_other_thread(lambda: libc.pwrite(target, ctypes.c_void_p(place), 1, ctypes.c_long(0)))


def send(file: Path, path: str) -> None:
    """Sends the file: the holder of the last reference writes back what others wrote to it."""
    descriptor = os.open(file, os.O_RDWR)
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        one = socket.socket(socket.AF_UNIX, kind)
        try:
            one.connect(path)
            ours = array.array("i", [descriptor])
            one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, ours)])
            print("sent", end="; ")
        except OSError as error:
            print(error.strerror, end="; ")
        kept.append(one)


kept: list[socket.socket] = []


def in_other_thread(work) -> None:
    threading.Thread(target=work, daemon=True).start()
    time.sleep(0.3)


WAYS = {
    "memory": (hold_memory, user_file_system.WRITE, 0),
    "exec": (hold_exec, user_file_system.FLUSH, 0),
    "folder": (hold_folder, user_file_system.READ, 0),
    "file": (hold_file, user_file_system.READ, 0),
    "sends": (send, user_file_system.WRITE, user_file_system.WRITEBACK_CACHE),
}


def main() -> None:
    uid, way, device, folder, *path = sys.argv[1:]
    hold, unanswered, flags = WAYS[way]
    file = user_file_system.mount(int(uid), device, Path(folder), unanswered, flags)
    hold(file, *path)
    print("ready", flush=True)
    threading.Event().wait()


main()
