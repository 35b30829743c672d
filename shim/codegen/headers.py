"""Reads the vendor's headers with the C preprocessor: which functions exist, in which variants.

Nothing about a function is written by hand: names come from the headers of this build, the
versions of a name from the ``PFN_<name>_v<version>`` typedefs that lie beside them.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

STUBS = Path(__file__).parent / "stubs"

CUDA_HEADERS = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h")
CUDA_TYPEDEFS = (
    "cudaTypedefs.h",
    "cudaGLTypedefs.h",
    "cudaEGLTypedefs.h",
    "cudaVDPAUTypedefs.h",
    "cudaProfilerTypedefs.h",
)

# Exported by every driver library, spelled in no header. Of the `cudbg*` family only what a
# debugger calls in its own process: the rest is looked up by name in the program that is debugged,
# among all its libraries, and breakpoints are put there. An export of the shim would hide the
# driver's.
CUDA_UNSPELLED = (
    "cuEGLApiInit",
    "cuMemGetAttribute",
    "cuMemGetAttribute_v2",
    "cuProfilerInitialize",
    "cudbgGetAPI",
    "cudbgGetAPIVersion",
)

# The same of NVML. nvidia-smi asks for private tables by the last.
NVML_UNSPELLED = (
    "nvmlGetBlacklistDeviceCount",
    "nvmlGetBlacklistDeviceInfoByIndex",
    "nvmlInternalGetExportTable",
)

_ATTRIBUTE = re.compile(r"__attribute__\s*\(\(.*?\)\)")


def _preprocess(text: str, include: Path, compiler: str) -> str:
    """Return `text` preprocessed against the vendor's headers in `include`.

    Raises:
        RuntimeError: the compiler refused, with its own words.
    """
    command = [compiler, "-E", "-P", "-x", "c", f"-I{STUBS}", f"-I{include}", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return _ATTRIBUTE.sub("", done.stdout)


def _prototypes(source: str, result: str, prefix: str) -> list[str]:
    """Names of all functions declared in `source` that return `result`, sorted."""
    pattern = re.compile(rf"\b{result}\b\s*\*?\s*({prefix}[A-Z]\w*)\s*\([^;{{}}]*\)\s*(?=;)")
    return sorted(set(pattern.findall(source)))


def cuda_names(include: Path, compiler: str = "gcc") -> list[str]:
    """Every exported name of the driver API: 700-odd, old versions and `_ptsz`/`_ptds` included."""
    present = [h for h in CUDA_HEADERS if (include / h).exists()]
    includes = "".join(f"#include <{h}>\n" for h in ("vdpau/vdpau.h", *present))
    source = _preprocess(f"#define __CUDA_API_VERSION_INTERNAL\n{includes}", include, compiler)
    return sorted({*_prototypes(source, "CUresult", "cu"), *CUDA_UNSPELLED})


def nvml_names(include: Path, compiler: str = "gcc") -> list[str]:
    """Every exported name of NVML, versioned and unversioned, and those that no header spells."""
    source = _preprocess(
        "#define NVML_NO_UNVERSIONED_FUNC_DEFS\n#include <nvml.h>\n", include, compiler
    )
    return sorted(
        {
            *_prototypes(source, "nvmlReturn_t", "nvml"),
            *_prototypes(source, "char", "nvml"),
            *NVML_UNSPELLED,
        }
    )


def versions(include: Path) -> dict[str, int]:
    """What the headers are of: `cuda` as 13040 for 13.4, `nvml` as 13."""
    found = {}
    for library, header, macro in (
        ("cuda", "cuda.h", "CUDA_VERSION"),
        ("nvml", "nvml.h", "NVML_API_VERSION"),
    ):
        text = (include / header).read_text() if (include / header).exists() else ""
        match = re.search(rf"^#define {macro}\s+(\d+)", text, re.MULTILINE)
        found[library] = int(match[1]) if match else 0
    return found


@dataclass(frozen=True)
class Variant:
    """One answer of ``cuGetProcAddress``: ask for `base` at `version` or later, get `symbol`."""

    base: str
    version: int  # CUDA version that introduced it, as 12020 for 12.2
    per_thread: bool  # asked with CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
    symbol: str  # the exported name


def cuda_variants(include: Path, names: list[str], compiler: str = "gcc") -> list[Variant]:
    """Which exported name answers for (base name, CUDA version, per-thread flag).

    The typedef headers carry `PFN_cuMemAlloc_v2000` and `PFN_cuMemAlloc_v3020`; the n-th version of
    a base name is the export without suffix, `_v2`, `_v3`, … in order. A per-thread variant is the
    one of the newest plain version that is not younger. A version without an export is left out.
    """
    present = [h for h in CUDA_TYPEDEFS if (include / h).exists()]
    includes = "".join(f"#include <{h}>\n" for h in ("vdpau/vdpau.h", *present))
    source = _preprocess(f"#define __CUDA_API_VERSION_INTERNAL\n{includes}", include, compiler)
    known = set(names)
    versions: dict[tuple[str, str], set[int]] = {}
    for base, version, suffix in re.findall(
        r"\bPFN_(cu[A-Z]\w*?)_v(\d{4,5})(_ptsz|_ptds)?\s*\)", source
    ):
        versions.setdefault((base, suffix), set()).add(int(version))
    variants = []
    for (base, suffix), found in sorted(versions.items()):
        plain = versions.get((base, ""), set()) or found
        for version in sorted(found):
            rank = sum(1 for other in plain if other <= version)
            symbol = (base if rank == 1 else f"{base}_v{rank}") + suffix
            if symbol in known:
                variants.append(Variant(base, version, bool(suffix), symbol))
    return variants
