"""Writes the generated sources of one library: forwarders, stubs, symbol indices, name tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from .headers import Variant

BANNER = "/* Generated from the vendor's headers by shim/codegen; do not edit. */\n"


def _write(path: Path, lines: Iterable[str]) -> None:
    write_changed(path, "\n".join(lines) + "\n")


def write_changed(path: Path, text: str) -> None:
    """Write a file only if its text has changed, so that a rebuild stays small."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def emit_indices(out: Path, prefix: str, names: list[str]) -> None:
    """Write `<prefix>_symbols.h`: an index for each symbol, and the number of symbols."""
    lines = [BANNER, "#pragma once", "enum {"]
    lines += [f"  PENSTOCK_IX_{name} = {index}," for index, name in enumerate(names)]
    lines += [f"  PENSTOCK_{prefix.upper()}_SYMBOLS = {len(names)}", "};"]
    _write(out / f"{prefix}_symbols.h", lines)


def emit_names(out: Path, prefix: str, names: list[str], hooks: Collection[str]) -> None:
    """Write `<prefix>_names.c`: the exported names by index, and whether each is hooked."""
    lines = [BANNER, f"const char *const penstock_{prefix}_names[] = {{"]
    lines += [f'    "{name}",' for name in names]
    lines += ["};", f"const unsigned char penstock_{prefix}_is_hooked[] = {{"]
    lines += [f"    {int(name in hooks)}," for name in names]
    lines += ["};"]
    _write(out / f"{prefix}_names.c", lines)


def emit_forwarders(out: Path, prefix: str, names: list[str], hooks: Collection[str]) -> None:
    """Write `<prefix>_forwarders.S`, in which every exported name is one jump.

    A hooked name jumps to `hook_<name>`. Any other name jumps to the driver through
    `penstock_<prefix>_real[index]`. Each entry of that table first points to a thunk that looks up
    the driver's function at the first call and preserves all argument registers, so that a
    forwarder does not depend on the function's prototype. `penstock_<prefix>_exports` lists the
    exports by index.

    Raises:
        ValueError: the hook table names a symbol that the headers lack.
    """
    unknown = sorted(set(hooks) - set(names))
    if unknown:
        raise ValueError(f"hooks.def names symbols that the headers lack: {', '.join(unknown)}")
    lines = [BANNER, '#include "common/forward.h"', "", f"PENSTOCK_FORWARD_BEGIN({prefix})"]
    for index, name in enumerate(names):
        if name in hooks:
            lines.append(f"PENSTOCK_HOOKED({prefix}, {name}, {index})")
        else:
            lines.append(f"PENSTOCK_FORWARD({prefix}, {name}, {index})")
    lines += [f"PENSTOCK_FORWARD_TABLE({prefix})"]
    lines += [f"PENSTOCK_FORWARD_ENTRY({prefix}, {index})" for index in range(len(names))]
    lines += [f"PENSTOCK_FORWARD_EXPORTS({prefix})"]
    lines += [f"PENSTOCK_FORWARD_EXPORT({name})" for name in names]
    lines += [f"PENSTOCK_FORWARD_END({prefix})"]
    _write(out / f"{prefix}_forwarders.S", lines)


def emit_hook_prototypes(out: Path, prefix: str, hooks: Collection[str]) -> None:
    """Write `<prefix>_hooks.h`, which declares each hook with the vendor's own prototype."""
    lines = [BANNER, "#pragma once"]
    lines += [f"extern __typeof__({name}) hook_{name};" for name in sorted(hooks)]
    _write(out / f"{prefix}_hooks.h", lines)


def emit_stubs(out: Path, prefix: str, names: list[str], result: int) -> None:
    """Write `<prefix>_stubs.S`, in which every name is a weak function that returns `result`.

    The simulated GPU links these functions in addition to its own code, so that functions that are
    not simulated return an error.
    """
    lines = [BANNER, '#include "common/forward.h"', ""]
    lines += [f"PENSTOCK_STUB({name}, {result})" for name in names]
    lines += ["PENSTOCK_STUB_END"]
    _write(out / f"{prefix}_stubs.S", lines)


def emit_variants(out: Path, variants: list[Variant]) -> None:
    """Write `cuda_variants.c`, the simulated driver's table for `cuGetProcAddress`."""
    lines = [BANNER, '#include "cuda_variants.h"', ""]
    symbols = sorted({v.symbol for v in variants})
    lines += [f"extern char {symbol}[];" for symbol in symbols]
    lines += ["const penstock_variant penstock_cuda_variants[] = {"]
    for v in sorted(variants, key=lambda v: (v.base, v.per_thread, v.version)):
        lines.append(f'    {{"{v.base}", {v.version}, {int(v.per_thread)}, {v.symbol}}},')
    lines += ["};", f"const unsigned penstock_cuda_variant_count = {len(variants)};"]
    _write(out / "cuda_variants.c", lines)
