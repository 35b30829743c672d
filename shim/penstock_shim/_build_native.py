"""Generator of the C source of `penstock_shim._native`, the cffi bindings of the shim's C code.

CMake runs ``python _build_native.py <shim/native> <output.c>``. The declarations are the headers
that the C code itself includes, so layout and prototypes have a single source.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import cffi

HEADERS = (
    "abi/quota.h",
    "abi/ledger.h",
    "abi/gate.h",
    "abi/asked.h",
    "abi/usage.h",
    "abi/handshake.h",
    "mechanism/gate.h",
    "mechanism/cost.h",
    "mechanism/recent.h",
    "mechanism/watch.h",
    "mechanism/survey.h",
    "mechanism/binding.h",
    "slices/account.h",
    "slices/scheduler.h",
    "sim/machine/binding.h",
)


def declarations(text: str) -> str:
    """Converts a header to cffi's cdef syntax, without comments, includes and string constants."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"//[^\n]*", "", text)
    kept = []
    for line in text.splitlines():
        if line.startswith("#") and not re.match(r"#define \w+ -?(0x[0-9a-fA-F]+|\d+)\s*$", line):
            continue
        kept.append(line)
    return "\n".join(kept)


def main() -> None:
    native, output = Path(sys.argv[1]), Path(sys.argv[2])
    ffi = cffi.FFI()
    for header in HEADERS:
        ffi.cdef(declarations((native / header).read_text()))
    includes = "".join(f'#include "{header}"\n' for header in HEADERS)
    ffi.set_source("penstock_shim._native", f"#include <stdint.h>\n#include <stddef.h>\n{includes}")
    ffi.emit_c_code(str(output))


if __name__ == "__main__":
    main()
