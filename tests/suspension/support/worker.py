"""A program that works on its device memory step by step; its result depends on every byte of it.

    worker.py STEPS MIB [fork] [managed | exported] [slowly] [hold]

Prints "ready" once all memory is filled, then "step N" for each step, then "result HEX". Each step
reads a part of the device memory, changes it depending on what was read before, and writes it back;
a kernel runs in between.
`fork`: a child process does the same beside it. `managed`, `exported`: it has memory that drivers
refuse to checkpoint. `slowly`: its steps take ten times as long. `hold`: once it is done it waits
for its end.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import sys
import time

PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 ns) { ret; }
"""
KERNEL_NS = 100_000
PART = 64 << 10
PAUSE_S = 0.002


class Device:
    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.function = ctypes.c_void_p()
        context, module, device = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        self.do("cuInit", 0)
        self.do("cuDeviceGet", ctypes.byref(device), 0)
        self.do("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.do("cuCtxSetCurrent", context)
        self.do("cuModuleLoadData", ctypes.byref(module), PTX)
        self.do("cuModuleGetFunction", ctypes.byref(self.function), module, b"spin")

    def do(self, name: str, *arguments: object) -> None:
        result = getattr(self.driver, name)(*arguments)
        if result:
            print(f"{name} answered {result}", flush=True)
            os._exit(3)

    def allocate(self, size: int, *, managed: bool = False) -> int:
        pointer = ctypes.c_uint64()
        if managed:
            self.do("cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(size), 1)
        else:
            self.do("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def write(self, address: int, content: bytes) -> None:
        size = ctypes.c_size_t(len(content))
        self.do("cuMemcpyHtoD_v2", ctypes.c_uint64(address), content, size)

    def read(self, address: int, size: int) -> bytes:
        content = ctypes.create_string_buffer(size)
        self.do("cuMemcpyDtoH_v2", content, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return content.raw

    def launch(self) -> None:
        duration = ctypes.c_uint64(KERNEL_NS)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(duration))
        self.do("cuLaunchKernel", self.function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
        self.do("cuCtxSynchronize")


def changed(content: bytes, state: bytes) -> bytes:
    key = hashlib.shake_128(state).digest(len(content))
    number = int.from_bytes(content, "big") ^ int.from_bytes(key, "big")
    return number.to_bytes(len(content), "big")


def await_child(filled: int, fill: int, child: int, *, is_child: bool) -> None:
    """Lets a parent wait until its child has filled its memory too."""
    if is_child:
        os.write(fill, b".")
    elif child:
        os.read(filled, 1)


def work(steps: int, mib: int, words: list[str]) -> None:
    told, tell = os.pipe()
    filled, fill = os.pipe()  # the child's memory
    child = os.fork() if "fork" in words else 0
    is_child = "fork" in words and child == 0
    device = Device()
    size = mib << 20
    address = device.allocate(size)
    if "managed" in words:
        device.allocate(1 << 20, managed=True)
    if "exported" in words:
        device.do("cuIpcGetMemHandle", ctypes.create_string_buffer(64), ctypes.c_uint64(address))
    state = b"child" if is_child else b"parent"
    for at in range(0, size, PART):
        device.write(address + at, hashlib.shake_128(state + at.to_bytes(8, "big")).digest(PART))
    say = (lambda _: None) if is_child else (lambda line: print(line, flush=True))
    await_child(filled, fill, child, is_child=is_child)
    say("ready")
    for step in range(steps):
        at = address + int.from_bytes(state[:4], "big") % (size // PART) * PART
        content = device.read(at, PART)
        state = hashlib.sha256(state + content).digest()
        device.launch()
        device.write(at, changed(content, state))
        say(f"step {step}")
        time.sleep(PAUSE_S * (10 if "slowly" in words else 1))
    for at in range(0, size, PART):
        state = hashlib.sha256(state + device.read(address + at, PART)).digest()
    if is_child:
        os.write(tell, state.hex().encode())
        os._exit(0)
    os.close(tell)
    if child and (result := os.read(told, 100)):  # nothing if it was killed
        say(f"child {result.decode()}")
    say(f"result {state.hex()}")
    if "hold" in words:
        time.sleep(600)


with contextlib.suppress(OSError):  # its group is ended with it
    os.setsid()
work(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
