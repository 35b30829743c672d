"""Inspection of an executable: whether the shim can be preloaded into it."""

from __future__ import annotations

import os
import re
import shutil
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"\x7fELF"
_HEAD_BYTES = 4096
_LONGEST_SCRIPT_CHAIN = 4
_PT_DYNAMIC, _PT_INTERP = 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ = 1, 5, 10
_SHT_DYNSYM = 11
_MACHINE_X86_64 = 62


class NotElfError(Exception):
    """The file is not a readable ELF file; the message gives the reason."""


@dataclass(frozen=True)
class Elf:
    """The headers of an ELF file."""

    path: Path
    bits: int
    machine: int
    interpreter: str | None  # None if static, or a library
    needed: tuple[str, ...]
    is_dynamic: bool


@dataclass(frozen=True)
class Obstacle:
    """A reason why a program would run without the shim, or would not start."""

    what: str
    advice: str
    fatal: bool  # the quota would not be enforced, or the program could not start


def read_elf(path: Path) -> Elf:
    """Reads the headers of a file. Raises `NotElfError` if it is not a readable ELF file."""
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
            if head[:4] != _MAGIC or len(head) < 64:
                raise NotElfError(f"{path} is not an ELF file")
            bits = 64 if head[4] == 2 else 32
            (machine,) = struct.unpack_from("<H", head, 18)
            if bits == 32:
                return Elf(path, bits, machine, None, (), is_dynamic=True)
            headers = _program_headers(stream.fileno(), head)
            interpreter = _interpreter(stream.fileno(), headers)
            needed = _needed(stream.fileno(), headers)
            dynamic = any(kind == _PT_DYNAMIC for kind, *_ in headers)
            return Elf(path, bits, machine, interpreter, needed, dynamic)
    except (OSError, struct.error, IndexError) as error:
        raise NotElfError(f"{path} cannot be read: {error}") from error


def exported_names(path: Path) -> set[str]:
    """Functions that a 64-bit library exports. Raises `NotElfError` if it is not a readable one."""
    try:
        data = path.read_bytes()
        if data[:4] != _MAGIC or data[4] != 2:
            raise NotElfError(f"{path} is not a 64-bit ELF library")
        offset, size, count = (
            struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
        )  # fmt: skip
        sections = [
            struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)
        ]
        names: set[str] = set()
        for section in sections:
            if section[1] != _SHT_DYNSYM:
                continue
            strings = sections[section[6]][4]
            for at in range(section[4], section[4] + section[5], 24):
                name, _, _, home = struct.unpack_from("<IBBH", data, at)
                if home != 0:
                    end = data.index(b"\0", strings + name)
                    names.add(data[strings + name : end].decode("ascii", "replace"))
    except (OSError, struct.error, IndexError, ValueError) as error:
        raise NotElfError(f"{path} cannot be read: {error}") from error
    return names


def _program_headers(fd: int, head: bytes) -> list[tuple[int, int, int, int]]:
    """The type, file offset, address and file size of each segment."""
    (offset,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    raw = os.pread(fd, size * count, offset)
    found = []
    for i in range(count):
        kind, _, at, address, _, length = struct.unpack_from("<IIQQQQ", raw, i * size)
        found.append((kind, at, address, length))
    return found


def _interpreter(fd: int, headers: list[tuple[int, int, int, int]]) -> str | None:
    for kind, at, _, length in headers:
        if kind == _PT_INTERP:
            return os.pread(fd, min(length, 4096), at).rstrip(b"\0").decode("utf-8", "replace")
    return None


def _needed(fd: int, headers: list[tuple[int, int, int, int]]) -> tuple[str, ...]:
    entries: list[tuple[int, int]] = []
    for kind, at, _, length in headers:
        if kind == _PT_DYNAMIC:
            raw = os.pread(fd, min(length, 1 << 16), at)
            entries = list(struct.iter_unpack("<QQ", raw[: len(raw) // 16 * 16]))
    table = dict(entries)
    for _, at, address, length in headers:
        if _DT_STRTAB in table and address <= table[_DT_STRTAB] < address + length:
            strings = os.pread(fd, table.get(_DT_STRSZ, 0), at + table[_DT_STRTAB] - address)
            return tuple(
                strings[value : strings.index(b"\0", value)].decode("utf-8", "replace")
                for tag, value in entries
                if tag == _DT_NEEDED
            )
    return ()


def find_program(command: str) -> Path | None:
    """The file that running `command` would execute, or the interpreter on its `#!` line."""
    found = shutil.which(command)
    for _ in range(_LONGEST_SCRIPT_CHAIN):
        if found is None:
            return None
        path = Path(found)
        try:
            with path.open("rb") as stream:
                first = stream.readline(256)
        except OSError:
            return path  # the file may be executable but not readable
        words = first[2:].split() if first.startswith(b"#!") else []
        if not words:
            return path
        name = os.fsdecode(words[0])
        if Path(name).name == "env":
            rest = [w for w in words[1:] if not w.startswith(b"-") and b"=" not in w]
            name = os.fsdecode(rest[0]) if rest else name
        found = shutil.which(name)
    return None


def obstacles(path: Path) -> list[Obstacle]:
    """Why the shim cannot be loaded into the program at `path`, or why it would not start."""
    try:
        elf = read_elf(path)
    except NotElfError:
        return []  # nothing is known of a script without `#!` or an unreadable file
    found = []
    if elf.bits != 64 or elf.machine != _MACHINE_X86_64:
        found.append(
            Obstacle(
                f"{path} is a {elf.bits}-bit program for a processor other than x86-64",
                "use an x86-64 build: the loader cannot load the 64-bit shim into any other",
                fatal=True,
            )
        )
    elif elf.interpreter is None:
        found.append(
            Obstacle(
                f"{path} is statically linked: nothing can be preloaded, so no quota would hold",
                "use a dynamically linked build",
                fatal=True,
            )
        )
    elif re.search(r"/ld-musl", elf.interpreter):
        found.append(
            Obstacle(
                f"{path} is built for musl ({elf.interpreter}): the shim needs glibc, and the "
                "program would not start with it",
                "use a build for glibc, which the CUDA driver itself needs",
                fatal=True,
            )
        )
    found += _privileges(path)
    if any(re.match(r"lib(a|t|hwa)san\.so", name) for name in elf.needed):
        found.append(
            Obstacle(
                f"{path} is built with a sanitizer, which must be loaded first",
                "set ASAN_OPTIONS=verify_asan_link_order=0 for it",
                fatal=False,
            )
        )
    return found


def _privileges(path: Path) -> list[Obstacle]:
    info = path.stat()
    gains = [
        w for bit, w in ((stat.S_ISUID, "setuid"), (stat.S_ISGID, "setgid")) if info.st_mode & bit
    ]
    if info.st_uid == os.geteuid() and "setuid" in gains:
        gains.remove("setuid")  # setuid to ourselves grants nothing, so the loader still preloads
    try:
        os.getxattr(path, "security.capability")
        gains.append("file capabilities")
    except OSError:
        pass
    if not gains:
        return []
    return [
        Obstacle(
            f"{path} has {' and '.join(gains)}, so the loader ignores preloads",
            "run a copy of the program without them",
            fatal=True,
        )
    ]
