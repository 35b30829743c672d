"""Builds the fuzz targets and runs them.

    python -m tests.fuzz.support.fuzzing [SECONDS] [TARGET…]

A crash leaves its input in `build/fuzz/found`; put it into the target's corpus with the fix.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.support import clang
from tests.native.support import builds
from tests.support import build_cache

from penstock_shim import simulator
from penstock_shim.pages import DeviceLimit, Limits, QuotaWriter, UsagePage

HERE = Path(__file__).parents[1]
CORPUS = HERE / "corpus"
TARGETS = sorted(source.stem for source in (HERE / "targets").glob("*.c"))
BUILD = builds.ROOT / "build" / "fuzz"
FOUND = BUILD / "found"


class FoundError(Exception):
    """A target crashes on an input, or does not end."""


@functools.cache
def build() -> Path:
    """The folder of the targets.

    Raises:
        clang.NotToBeHadError: there is no clang with libFuzzer.
        builds.BuildError: it does not compile.
    """
    with build_cache.alone_with(BUILD):
        return _build()


def _build() -> Path:
    compiler = clang.find(builds.ROOT / "build" / "clang")
    builds.configure(
        BUILD,
        "-DPENSTOCK_FUZZ=ON",
        f"-DCMAKE_C_COMPILER={compiler.path}",
        f"-DCMAKE_ASM_COMPILER={compiler.path}",
        "-DPENSTOCK_SANITIZE=fuzzer-no-link,address,undefined",
        variables=compiler.variables,
    )
    builds.compile_targets(BUILD, "fuzz_targets", variables=compiler.variables)
    FOUND.mkdir(exist_ok=True)
    return BUILD / "tests" / "fuzz"


def _tenant(folder: Path) -> dict[str, str]:
    """A tenant on a simulated machine, for a target that runs the whole shim."""
    with simulator.create_machine(folder / "machine", "h200") as machine:
        limits = Limits(
            devices=(DeviceLimit(uuid=machine.devices()[0].uuid, memory_bytes=1 << 30),)
        )
    UsagePage.create(folder / "usage").close()
    QuotaWriter.create(
        folder / "quota",
        limits,
        tenant="fuzzed",
        driver_path=str(BUILD / "sim" / "libcuda.so.1"),
        nvml_path="",
    ).close()
    return {
        "LD_PRELOAD": str(BUILD / "libpenstock.so"),
        "PENSTOCK_TENANT_DIR": str(folder),
        "PENSTOCK_SIM_MACHINE": str(folder / "machine"),
    }


def run(target: str, *options: str, corpus: Path | None = None) -> str:
    """Run a target over its committed corpus, and `corpus` if given; its output.

    Raises:
        FoundError: with what the sanitizers say and where the input lies.
    """
    program = build() / f"fuzz_{target}"
    dictionary = HERE / f"{target.partition('_')[0]}.dict"
    words = [str(program), "-timeout=10", f"-artifact_prefix={FOUND}/{target}-", *options]
    words += [f"-dict={dictionary}"] if dictionary.exists() else []
    words += [*([str(corpus)] if corpus else []), str(CORPUS / target)]
    with tempfile.TemporaryDirectory() as folder:
        variables = {**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1"}
        variables |= _tenant(Path(folder)) if target == "proc_address" else {}
        done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FoundError(f"{' '.join(words)}:\n{done.stderr[-6000:]}")
    return done.stderr


def main() -> int:
    """Fuzz each target for a time; new inputs of its corpus are kept in the build folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", nargs="?", type=int, default=60, help="for each target")
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; default: all")
    arguments = parser.parse_args()
    failed = 0
    for target in arguments.targets or TARGETS:
        kept = BUILD / "corpus" / target
        kept.mkdir(parents=True, exist_ok=True)
        try:
            said = run(target, f"-max_total_time={arguments.seconds}", corpus=kept)
        except FoundError as error:
            failed += 1
            print(f"{target}: {error}", file=sys.stderr)
        else:
            print(f"{target}: {said.splitlines()[-1]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
