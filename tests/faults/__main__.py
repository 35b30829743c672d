"""`python -m tests.faults [NAME ...]`: puts faults in, one at a time, and shows that tests fail.

Works on a copy of the tree in a temporary folder, never on the tree itself. First the tests of all
faults run on the copy as it is: a test that fails without a fault shows nothing. Then each fault is
put in, built and installed, its tests run, and it is taken out again.

Ends with 0 when every fault was caught, 1 when one was not, 2 when that could not be found out.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.table import FAULTS, ROOT, Fault

BUILD_S, TESTS_S = 600, 600  # of one fault
ALL_TESTS_S = 1800  # without a fault
FAILED, COULD_NOT_RUN = 1, 2  # pytest's and our own


class Copy:
    """The tree and what is installed from it, both in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.tree, self._site = folder / "tree", folder / "site"
        self.tree.mkdir()
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout
        there = [one for one in names.split(b"\0") if one and (ROOT / os.fsdecode(one)).exists()]
        subprocess.run(
            ["xargs", "-0", "cp", "--parents", "-P", "-t", self.tree],
            input=b"\0".join(there), cwd=ROOT, check=True,
        )  # fmt: skip

    def install(self) -> None:
        """Builds what changed. Raises CalledProcessError: it does not build."""
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation")
        subprocess.run(
            [*pip, "--no-deps", "--upgrade", "--target", self._site, "."],
            cwd=self.tree, timeout=BUILD_S, check=True, capture_output=True, text=True,
        )  # fmt: skip

    def test(self, tests: list[str], timeout_s: float = TESTS_S) -> tuple[int, str]:
        """(pytest's exit code, its last message), with the packages installed from the copy."""
        command = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no")
        with subprocess.Popen(
            [*command, *tests],
            cwd=self.tree, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(self._site)}, start_new_session=True,
        ) as running:  # fmt: skip
            try:
                said, _ = running.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)  # also what its tests have started
                raise
        lines = [one for one in said.splitlines() if one.startswith(("FAILED", "ERROR"))]
        return running.returncode, (lines or said.splitlines() or ["it said nothing"])[-1]

    def end_leftovers(self) -> None:
        """Ends processes that a fault left running; their environment names the copy's folder."""
        mark = f"PYTHONPATH={self._site}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (folder / "environ").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)


def try_out(copy: Copy, fault: Fault) -> tuple[bool | None, str]:
    """(caught, the last message); None: the fault does not build, or its tests do not run."""
    file = copy.tree / fault.file
    before = file.read_text()
    file.write_text(fault.text_with(before))
    try:
        copy.install()
        code, words = copy.test(list(fault.tests))
    except subprocess.CalledProcessError as error:
        return None, f"does not build: {error.stderr[-300:]}"
    except subprocess.TimeoutExpired as error:
        return None, f"not done after {error.timeout:g} s"
    finally:
        file.write_text(before)
        copy.end_leftovers()
    if code not in {0, FAILED}:
        return None, f"pytest ended with {code}: {words}"
    return code == FAILED, words


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of faults; all, unless given")
    parser.add_argument("--list", action="store_true", help="print the faults and run nothing")
    parser.add_argument(
        "--cluster", action="store_true", help="also those that need a cluster (root, ten minutes)"
    )
    given = parser.parse_args()
    if unknown := set(given.names) - {one.name for one in FAULTS}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))} (--list names them)")
    chosen = [
        one for one in FAULTS
        if (one.name in given.names or not given.names) and (given.cluster or not one.on_a_cluster)
    ]  # fmt: skip
    if given.list:
        for fault in FAULTS:
            where = " (on a cluster)" if fault.on_a_cluster else ""
            print(f"{fault.name}: {fault.area}: {fault.what}{where}")
        return 0
    with tempfile.TemporaryDirectory(prefix="penstock-faults-") as folder:
        copy = Copy(Path(folder))
        tests = sorted({test for one in chosen for test in one.tests})
        try:
            copy.install()
            code, words = copy.test(tests, ALL_TESTS_S)
        except subprocess.CalledProcessError as error:
            code, words = COULD_NOT_RUN, f"the tree does not build: {error.stderr[-300:]}"
        except subprocess.TimeoutExpired as error:
            code, words = COULD_NOT_RUN, f"not done after {error.timeout:g} s"
        if code:
            print(f"without any fault: {words}", file=sys.stderr)
            return COULD_NOT_RUN
        print(f"without a fault: {words}", flush=True)
        found: list[bool | None] = []
        for fault in chosen:
            begun = time.monotonic()
            caught, words = try_out(copy, fault)
            said = {True: "caught", False: "NOT CAUGHT", None: "NOT TRIED"}[caught]
            took_s = time.monotonic() - begun
            print(f"{fault.name}: {said} ({took_s:.0f} s): {words}", flush=True)
            found.append(caught)
    print(f"{sum(map(bool, found))} of {len(found)} caught")
    return COULD_NOT_RUN if None in found else int(not all(found))


if __name__ == "__main__":
    sys.exit(main())
