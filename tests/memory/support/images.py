"""Images as compilers write them: cubins of given kernels and variables, fat binaries of them."""

from __future__ import annotations

import struct
from dataclasses import dataclass

MIB = 1 << 20

CUDA = 190
NOTE_PROGBITS, NOTE_SYMTAB, NOTE_STRTAB, NOTE_NOBITS, NOTE_INFO = 1, 2, 3, 8, 0x70000000
WRITE, ALLOC = 1, 2
FRAME_BYTES = 0x11  # attribute of .nv.info: local memory of a thread
PTX_KIND, CUBIN_KIND = 1, 2
PACKED = 0x2000


@dataclass
class Section:
    name: str
    kind: int
    flags: int = 0
    content: bytes = b""
    size: int = -1  # of one without content
    link: int = 0


def _strings(names: list[str]) -> tuple[bytes, list[int]]:
    text, offsets = b"\0", []
    for name in names:
        offsets.append(len(text))
        text += name.encode() + b"\0"
    return text, offsets


def cubin(
    kernels: dict[str, int],
    *,
    sm: int = 90,
    local: dict[str, int] | None = None,
    variables: int = 0,
    initialised: int = 0,
    managed: int = 0,
    table_first: bool = False,
) -> bytes:
    """Kernels by name with the size of their code; `local` says their local memory a thread.

    Compilers put the table of sections last; it may as well come first.
    """
    sections = [Section("", 0)]
    sections += [
        Section(f".text.{name}", NOTE_PROGBITS, ALLOC | 4, bytes(size))
        for name, size in kernels.items()
    ]
    objects = []
    for name, section, size, content in (
        ("blob", ".nv.global", variables, b""),
        ("filled", ".nv.global.init", initialised, bytes(initialised)),
        ("shared", ".nv.managed", managed, b""),
    ):
        if size:
            objects.append((name, len(sections), size))
            kind = NOTE_PROGBITS if content else NOTE_NOBITS
            sections.append(Section(section, kind, WRITE | ALLOC, content, size))
    names = [*kernels, *(name for name, _, _ in objects)]
    strings, at = _strings(names)
    symbols = bytes(24)
    for i in range(len(kernels)):
        symbols += struct.pack("<IBBHQQ", at[i], 0x12, 0, i + 1, 0, 0)
    for i, (_, section, size) in enumerate(objects):
        symbols += struct.pack("<IBBHQQ", at[len(kernels) + i], 0x11, 0, section, 0, size)
    table = len(sections)
    sections.append(Section(".symtab", NOTE_SYMTAB, 0, symbols, link=table + 1))
    sections.append(Section(".strtab", NOTE_STRTAB, 0, strings))
    info = b"".join(
        struct.pack("<BBHII", 4, FRAME_BYTES, 8, 1 + names.index(name), size)
        for name, size in (local or {}).items()
    )
    sections.append(Section(".nv.info", NOTE_INFO, 0, info, link=table))
    return _elf(sections, sm, table_first)


def _elf(sections: list[Section], sm: int, table_first: bool) -> bytes:  # noqa: FBT001
    sections.append(Section(".shstrtab", NOTE_STRTAB))
    sections[-1].content, at = _strings([section.name for section in sections])
    body, headers = b"", b""
    begin = 64 + 64 * len(sections) if table_first else 64
    for name, section in zip(at, sections, strict=True):
        size = section.size if section.size >= 0 else len(section.content)
        headers += struct.pack(
            "<IIQQQQIIQQ",
            *(name, section.kind, section.flags, 0, begin + len(body), size),
            *(section.link, 0, 1, 24 if section.kind == NOTE_SYMTAB else 0),
        )
        body += section.content
    ident = b"\x7fELF\x02\x01\x01\x41\x08" + bytes(7)
    return struct.pack(
        "<16sHHIQQQIHHHHHH",
        *(ident, 2, CUDA, 1, 0, 0, 64 if table_first else 64 + len(body), sm << 8),
        *(64, 56, 0, 64, len(sections), len(sections) - 1),
    ) + (headers + body if table_first else body + headers)


def ptx(
    *declarations: str, kernels: tuple[str, ...] = ("nothing",), local: int = 0, sm: int = 50
) -> bytes:
    body = f"{{ .local .align 16 .b8 depot[{local}]; ret; }}" if local else "{ ret; }"
    return "\n".join(
        (
            f".version 7.0\n.target sm_{sm}\n.address_size 64",
            *declarations,
            *(f".visible .entry {name}() {body}" for name in kernels),
            "\0",
        )
    ).encode()


@dataclass
class Entry:
    """`unpacked` is the size of a compressed payload."""

    architecture: int
    payload: bytes
    kind: int = CUBIN_KIND
    unpacked: int = 0


def fat(*entries: Entry) -> bytes:
    body = b""
    for entry in entries:
        flags, packed = (PACKED, len(entry.payload)) if entry.unpacked else (0, 0)
        body += struct.pack(
            "<HHIQIIHHIIIQQQ",
            *(entry.kind, 0x101, 64, len(entry.payload), packed, 0, 8, 1),
            *(entry.architecture, 0, 0, flags, 0, entry.unpacked),
        )
        body += entry.payload
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
