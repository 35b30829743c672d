"""``python -m codegen --out DIR``: generate the C and assembly of shim and simulated GPU."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from . import emit, headers


def find_headers() -> Path:
    """The folder of `cuda.h` and `nvml.h` from the vendor's PyPI packages.

    Raises:
        SystemExit: no installed package holds them.
    """
    spec = find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        for folder in sorted(Path(root).glob("*/include"), reverse=True):
            if (folder / "cuda.h").exists() and (folder / "nvml.h").exists():
                return folder
    raise SystemExit(
        "codegen: no cuda.h and nvml.h found; install nvidia-cuda-runtime, "
        "nvidia-cuda-profiler-api and nvidia-nvml-dev in the Python that runs the build"
    )


def main() -> None:
    """Parse the command line and write the files."""
    parser = argparse.ArgumentParser(prog="codegen", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the generated files")
    parser.add_argument("--include", type=Path, help="folder of cuda.h (default: from PyPI)")
    parser.add_argument("--native", type=Path, required=True, help="folder of the hook tables")
    parser.add_argument("--cc", default="gcc", help="C compiler, used as preprocessor")
    parser.add_argument("--print-include", action="store_true", help="print the folder and stop")
    args = parser.parse_args()
    include = args.include or find_headers()
    if args.print_include:
        print(include, end="")
        return
    args.out.mkdir(parents=True, exist_ok=True)
    cuda = headers.cuda_names(include, args.cc)
    nvml = headers.nvml_names(include, args.cc)
    for prefix, names, table, not_supported in (
        ("cuda", cuda, args.native / "hooks.def", 801),
        ("nvml", nvml, args.native / "nvml" / "hooks.def", 3),
    ):
        emit.emit_indices(args.out, prefix, names)
        emit.emit_names(args.out, prefix, names)
        hooks = emit.read_hooks(table)
        emit.emit_forwarders(args.out, prefix, names, hooks)
        emit.emit_hook_prototypes(args.out, prefix, hooks)
        emit.emit_stubs(args.out, prefix, names, not_supported)
    emit.emit_variants(args.out, headers.cuda_variants(include, cuda, args.cc))
    counts = f"{len(cuda)} driver names, {len(nvml)} NVML names"
    print(f"codegen: {counts} from {include}", file=sys.stderr)


if __name__ == "__main__":
    main()
