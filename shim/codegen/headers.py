"""Reads functions and their variants from the vendor's headers, using the C preprocessor.

Nothing about a function is written by hand. Names come from the headers of this build, and the
versions of a name from the ``PFN_<name>_v<version>`` typedefs in the headers beside them.
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

# Names that every driver library exports but no header declares. Of the `cudbg*` family, only the
# names that a debugger calls in its own process are listed. A debugger looks up the others by name
# in all libraries of the debugged program and sets breakpoints there, so that an export of the shim
# would hide the driver's.
CUDA_UNSPELLED = (
    "cuEGLApiInit",
    "cuMemGetAttribute",
    "cuMemGetAttribute_v2",
    "cuProfilerInitialize",
    "cudbgGetAPI",
    "cudbgGetAPIVersion",
)

# The same for NVML. nvidia-smi obtains private tables through the last one.
NVML_UNSPELLED = (
    "nvmlGetBlacklistDeviceCount",
    "nvmlGetBlacklistDeviceInfoByIndex",
    "nvmlInternalGetExportTable",
)

_ATTRIBUTE = re.compile(r"__attribute__\s*\(\(.*?\)\)")


def _preprocess(text: str, include: Path, compiler: str) -> str:
    """Return `text` preprocessed against the vendor's headers in `include`.

    Raises:
        RuntimeError: the compiler failed; the message has its output.
    """
    command = [compiler, "-E", "-P", "-x", "c", f"-I{STUBS}", f"-I{include}", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return _ATTRIBUTE.sub("", done.stdout)


def _prototypes(source: str, result: str, prefix: str) -> list[str]:
    """Return the sorted names of all functions in `source` that return `result`."""
    pattern = re.compile(rf"\b{result}\b\s*\*?\s*({prefix}[A-Z]\w*)\s*\([^;{{}}]*\)\s*(?=;)")
    return sorted(set(pattern.findall(source)))


def cuda_names(include: Path, compiler: str = "gcc") -> list[str]:
    """Return every exported name of the driver API, with old versions and `_ptsz`/`_ptds` forms."""
    present = [h for h in CUDA_HEADERS if (include / h).exists()]
    includes = "".join(f"#include <{h}>\n" for h in ("vdpau/vdpau.h", *present))
    source = _preprocess(f"#define __CUDA_API_VERSION_INTERNAL\n{includes}", include, compiler)
    return sorted({*_prototypes(source, "CUresult", "cu"), *CUDA_UNSPELLED})


def nvml_names(include: Path, compiler: str = "gcc") -> list[str]:
    """Return every exported name of NVML, including names that no header declares."""
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
    """Return the versions of the headers: `cuda` as 13040 for 13.4, `nvml` as 13."""
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
    """The `symbol` that ``cuGetProcAddress`` returns for `base` at `version` or later."""

    base: str
    version: int  # CUDA version that introduced the variant, such as 12020 for 12.2
    per_thread: bool  # requested with CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
    symbol: str  # the exported name


def cuda_variants(include: Path, names: list[str], compiler: str = "gcc") -> list[Variant]:
    """Return the exported name for each base name, CUDA version and per-thread flag.

    The typedef headers declare types such as `PFN_cuMemAlloc_v2000` and `PFN_cuMemAlloc_v3020`. The
    first version of a base name is exported without a suffix, later ones as `_v2`, `_v3` and so on.
    A per-thread variant belongs to the newest plain version that is not newer than itself. A
    version without an export is left out.
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
