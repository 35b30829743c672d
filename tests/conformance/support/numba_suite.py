"""Numba-CUDA's own tests on the simulated GPU, without the shim and in a tenant at full quota.

`make numba-suite` runs all of it (some twenty minutes); names of modules as arguments run those.
Kernels compute nothing on the simulated GPU, so many tests fail there without any shim. Every test
that passes without the shim must pass with it. A few pass by luck (unwritten memory holds the value
that they expect): a test that differs runs again without the shim beside the same other tests, and
counts only if it passes there too.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import json
import os
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from tests.memory.support import tenant_programs

from penstock_shim import simulator

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT = Path(__file__).parents[3]
PACKAGE = "numba.cuda.tests"
LONGEST_TEST_S = 60
Outcomes = dict[
    str, str
]  # of each test: passed, failed, skipped, unsteady, "still running …", "crash"


class _Noting(unittest.TestResult):
    """Writes each test's beginning and end to a file at once: a crash loses nothing."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def _note(self, test: unittest.TestCase, outcome: str) -> None:
        with self._file.open("a") as stream:
            stream.write(json.dumps([test.id(), outcome]) + "\n")

    def startTest(self, test):  # noqa: N802 - unittest's name
        super().startTest(test)
        self._note(test, "began")

    def addSuccess(self, test):  # noqa: N802
        self._note(test, "passed")

    def addSkip(self, test, reason):  # noqa: N802
        self._note(test, "skipped")

    def addFailure(self, test, err):  # noqa: N802
        self._note(test, "failed")

    def addError(self, test, err):  # noqa: N802
        self._note(test, "failed")

    def addExpectedFailure(self, test, err):  # noqa: N802
        self._note(test, "skipped")

    def addUnexpectedSuccess(self, test):  # noqa: N802
        self._note(test, "failed")

    def addSubTest(self, test, subtest, err):  # noqa: N802
        if err is not None:
            self._note(test, "failed")


def _tests(suite: unittest.TestSuite) -> Iterable[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _tests(test)
        else:
            yield test


def work(module: str, file: Path, wanted: list[str] | None, done: list[str]) -> None:
    """Runs the tests of one module in this process, except those that were run before."""
    importlib.import_module(module)  # unittest would make a failing test of what it cannot load
    suite = unittest.defaultTestLoader.loadTestsFromName(module)
    chosen = [
        test
        for test in _tests(suite)
        if test.id() not in done and (wanted is None or test.id() in wanted)
    ]
    unittest.TestSuite(chosen).run(_Noting(file))


def _read(file: Path) -> Outcomes:
    outcomes: Outcomes = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        test, outcome = json.loads(line)
        if outcomes.get(test) != "failed":  # one failed part of a test is enough
            outcomes[test] = outcome
    return outcomes


def run_module(
    module: str, environment: Mapping[str, str], folder: Path, wanted: list[str] | None = None
) -> Outcomes:
    """The module's tests; after a crash or a test that does not end, the rest in a new process."""
    file = folder / f"{module}.jsonl"
    orders = folder / f"{module}.json"
    while True:
        before = _read(file)
        orders.write_text(json.dumps([module, str(file), wanted, list(before)]))
        with subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.support.numba_suite", "--work", orders],
            env={**environment, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
        ) as process:
            how = _watch(process, file)
        outcomes = _read(file)
        unfinished = [test for test, outcome in outcomes.items() if outcome == "began"]
        if process.returncode and outcomes == before:
            unfinished = [module]  # it cannot even be loaded
        for test in unfinished:
            with file.open("a") as stream:
                stream.write(json.dumps([test, how]) + "\n")
        if not unfinished or unfinished == [module]:
            return _read(file)


def _watch(process: subprocess.Popen[bytes], file: Path) -> str:
    """Waits for the end; ends a process whose newest test takes too long."""
    while True:
        size = file.stat().st_size if file.exists() else 0
        try:
            process.wait(LONGEST_TEST_S)
        except subprocess.TimeoutExpired:
            if file.exists() and file.stat().st_size > size:
                continue
            process.kill()
            return f"still running after {LONGEST_TEST_S} s"
        return f"crash {process.returncode}"


def modules() -> list[str]:
    """All modules of tests that use a device."""
    import numba.cuda.tests as package  # noqa: PLC0415 - not needed for a worker's orders

    root = Path(package.__file__).parent
    return sorted(
        f"{PACKAGE}.{path.parent.name}.{path.stem}"
        for folder in ("cudadrv", "cudapy", "nrt", "nocuda", "doc_examples")
        for path in (root / folder).glob("test_*.py")
    )


def unsteady(failed: Iterable[str], without: Outcomes, within: Outcomes) -> list[str]:
    """Those of the tests that failed in a tenant for which the shim is not to blame.

    Run once more each way, they fail without the shim and pass in a tenant. One that never passed
    in a tenant is a difference, whatever it does without.
    """
    return [one for one in failed if without.get(one) != "passed" and within.get(one) == "passed"]


def compare(names: list[str], folder: Path, jobs: int = 1) -> tuple[Outcomes, Outcomes]:
    """Outcomes without the shim, and those in a tenant at full quota of the tests that passed."""
    machine_path = folder / "machine"
    with simulator.create_machine(machine_path, "h200") as machine:
        memory_bytes = machine.devices()[0].memory_bytes
    bare = {**os.environ, **simulator.environment(machine_path, "bare")}
    bare.pop("LD_PRELOAD", None)
    tenant = tenant_programs.make_tenant(folder / "tenant", machine_path, memory_bytes)
    places = [folder / "without", folder / "with", folder / "again", folder / "with-again"]
    for place in places:
        place.mkdir()

    def both(name: str) -> tuple[Outcomes, Outcomes]:
        without = run_module(name, bare, places[0])
        wanted = [test for test, outcome in without.items() if outcome == "passed"]
        if not wanted:
            return without, {}
        within = run_module(name, tenant.environment(), places[1], wanted)
        if set(within.values()) != {"passed"}:
            failed = [test for test in wanted if within.get(test) != "passed"]
            again = run_module(name, bare, places[2], failed)
            within_again = run_module(name, tenant.environment(), places[3], failed)
            for test in unsteady(failed, again, within_again):
                without[test] = "unsteady"
                within.pop(test, None)
        return without, within

    results: tuple[Outcomes, Outcomes] = ({}, {})
    with ThreadPoolExecutor(jobs) as pool:
        for name, (without, within) in zip(names, pool.map(both, names), strict=True):
            results[0].update(without)
            results[1].update(within)
            differing = sum(outcome != "passed" for outcome in within.values())
            print(f"{name.removeprefix(PACKAGE + '.')}: {_count(without)}"
                  + (f"; {differing} DIFFER with the shim" if differing else ""),
                  flush=True)  # fmt: skip
    tenant.quota.close()
    return results


def _count(outcomes: Outcomes) -> str:
    counts = collections.Counter(outcome.split()[0] for outcome in outcomes.values())
    return ", ".join(f"{number} {outcome}" for outcome, number in counts.most_common()) or "none"


def main() -> int:
    """The whole suite, or the modules that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="modules at once")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("modules", nargs="*", help="as cudadrv.test_streams; none: all")
    arguments = parser.parse_args()
    if arguments.work:
        module, file, wanted, done = json.loads(arguments.work.read_text())
        work(module, Path(file), wanted, done)
        return 0
    names = [f"{PACKAGE}.{name}" for name in arguments.modules] or modules()
    with tempfile.TemporaryDirectory(prefix="penstock-numba-") as name:
        without, within = compare(names, Path(name), arguments.jobs)
    differing = {test: outcome for test, outcome in within.items() if outcome != "passed"}
    for test, outcome in differing.items():
        print(f"DIFFERS: {test}: {outcome} with the shim")
    print(f"without the shim: {_count(without)}")
    print(f"with the shim, of those that passed without: {_count(within)}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
