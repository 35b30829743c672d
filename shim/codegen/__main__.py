"""``python -m codegen --out DIR`` generates C and assembly for the shim and the simulated GPU."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from . import coverage, emit, headers

NOT_SUPPORTED = {"cuda": 801, "nvml": 3}  # result of a function that is not implemented


def find_headers() -> Path:
    """Return the folder of `cuda.h` and `nvml.h` from the vendor's PyPI packages.

    Raises:
        SystemExit: no installed package contains them.
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
    parser.add_argument("--out", type=Path, help="folder for the generated files")
    parser.add_argument("--page", type=Path, help="write only the coverage page, to this file")
    parser.add_argument("--include", type=Path, help="folder of cuda.h (default: from PyPI)")
    parser.add_argument("--native", type=Path, required=True, help="folder of the hook tables")
    parser.add_argument("--cc", default="gcc", help="C compiler, used as preprocessor")
    parser.add_argument("--print-include", action="store_true", help="print the folder and stop")
    args = parser.parse_args()
    include = args.include or find_headers()
    if args.print_include:
        print(include, end="")
        return
    if (args.out is None) == (args.page is None):
        parser.error("exactly one of --out and --page is required")
    libraries = (
        Library("cuda", headers.cuda_names(include, args.cc), coverage.cuda_tables(args.native)),
        Library("nvml", headers.nvml_names(include, args.cc), coverage.nvml_tables(args.native)),
    )
    cuda, nvml = (_rows(library) for library in libraries)
    versions = headers.versions(include)
    if args.page:
        args.page.write_text(coverage.as_page(cuda, nvml, versions))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for library, known in zip(libraries, (cuda, nvml), strict=True):
        _emit(args.out, library, [row.symbol for row in known])
    variants = headers.cuda_variants(include, libraries[0].names, args.cc)
    emit.emit_variants(args.out, variants)
    table = coverage.as_json(cuda, nvml, versions, libraries[0].tables.risky)
    emit.write_changed(args.out / "coverage.json", table)
    counts = f"{len(cuda)} driver names, {len(nvml)} NVML names"
    print(f"codegen: {counts} from {include}", file=sys.stderr)


class Library(NamedTuple):
    """A vendor's library: the names that its headers declare, and the shim's tables for it."""

    prefix: str
    names: list[str]
    tables: coverage.Tables


def _rows(library: Library) -> list[coverage.Row]:
    """Return the rows of all names that the shim may export, and print the names left out."""
    rows, unknown = coverage.known_and_unknown(library.names, library.tables)
    if unknown:
        print(
            f"codegen: the headers are newer than the tables, so {', '.join(unknown)} stay out of "
            "the shim (a symbol that may take memory or time is reported as not found); "
            "add each to hooks.def or forwarded.def",
            file=sys.stderr,
        )
    return rows


def _emit(out: Path, library: Library, exported: list[str]) -> None:
    """Write the sources of one library.

    The shim exports the names in `exported`, and the simulated library exports every name.
    """
    prefix, hooks = library.prefix, library.tables.hooks
    emit.emit_indices(out, prefix, exported)
    emit.emit_names(out, prefix, exported, hooks)
    emit.emit_forwarders(out, prefix, exported, hooks)
    emit.emit_hook_prototypes(out, prefix, hooks)
    emit.emit_stubs(out, prefix, library.names, NOT_SUPPORTED[prefix])


if __name__ == "__main__":
    main()
