"""Plays a script on a simulated machine, without the shim or under a quota, and compares outcomes.

The outcomes are every call's answer, the contents read from memory, the order of host functions,
and at each quiet point the ledger and the device's own record. The time to play is bounded.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from penstock_shim import paths, simulator
from penstock_shim.pages import DeviceLimit, Limits, QuotaWriter, UsagePage

KERNEL_RULES = "spin*=param0,meet=until0"
MIB = 1 << 20
UNSEEN_BYTES = 16 * MIB  # of a process on a device: a slab for each image that it has
ROOMY_BYTES = 100 << 30  # no program asks for so much
TIGHT_BYTES = 96 * MIB  # beside the contexts: most programs ask for more
# A hang is what is to be seen, not a slow machine.
SLACK = 4
PATIENCE_S = float(os.environ.get("PENSTOCK_RANDOM_PATIENCE", "20"))
OUT_OF_MEMORY = 2
MOST_PHASES, MOST_THREADS = 32, 4  # as in player.h
AT = struct.Struct("<16I")


@dataclass(frozen=True)
class Setting:
    """The quota under which a script is played; none: without the shim."""

    cores: int = 0
    tight: bool = False

    def __str__(self) -> str:
        if not self.cores:
            return "without the shim"
        return f"at {self.cores} %" + (", short of memory" if self.tight else "")


NATIVE = Setting()
SETTINGS = (Setting(10), Setting(50), Setting(90))
TIGHT = Setting(90, tight=True)


@dataclass
class Outcome:
    """The outcome of playing a script."""

    setting: Setting
    results: dict[tuple[int, int], str] = field(default_factory=dict)  # by process and line
    faults: list[str] = field(default_factory=list)
    busy_s: float = 0
    took_s: float = 0


class Run:
    """One run of a script."""

    def __init__(self, player: Path, script: str, setting: Setting, limit_s: float) -> None:
        self._script = script
        self._limit_s = limit_s
        self.outcome = Outcome(setting)
        with tempfile.TemporaryDirectory(prefix="penstock-random-") as folder:
            self._folder = Path(folder)
            self._play(player)

    def _play(self, player: Path) -> None:
        (self._folder / "script").write_text(self._script)
        devices = max(1, self._script.count("# device "))
        with simulator.create_machine(self._folder / "machine", f"h200,{devices}") as machine:
            self._machine = machine
            self._own = {d.index: self._used(d.index) for d in machine.devices()}
            self._tenant = self._folder / "tenant"
            with contextlib.ExitStack() as stack:
                if self.outcome.setting.cores:
                    self._usage = stack.enter_context(self._make_tenant(stack))
                self._start(player)
            records = machine.record()
        self.outcome.busy_s = sum(r.busy_ns for r in records) / 1e9

    def _make_tenant(self, stack: contextlib.ExitStack) -> UsagePage:
        self._tenant.mkdir()
        setting = self.outcome.setting
        limits = []
        for device in self._machine.devices():
            memory = ROOMY_BYTES
            if setting.tight:
                said = re.search(
                    rf"^# device {device.index} contexts (\d+)", self._script, re.MULTILINE
                )
                contexts = int(said[1]) if said else 1
                memory = TIGHT_BYTES + max(1, contexts) * device.context_bytes
            limits.append(
                DeviceLimit(
                    uuid=device.uuid,
                    memory_bytes=memory,
                    context_reserve_bytes=device.context_bytes,
                    cores_permille=setting.cores * 10,
                    allowance_permille=setting.cores * 10,
                )
            )
        usage = UsagePage.create(self._tenant / "usage")
        quota = QuotaWriter.create(
            self._tenant / "quota",
            Limits(devices=tuple(limits)),
            tenant="random",
            driver_path=str(paths.sim_dir() / "libcuda.so.1"),
        )
        stack.callback(quota.close)
        return usage

    def _environment(self) -> dict[str, str]:
        environment = {
            **os.environ,
            **simulator.environment(self._folder / "machine", "random"),
            "PENSTOCK_SIM_KERNELS": KERNEL_RULES,
        }
        if queues := re.search(r"^# queues (\d+)$", self._script, re.MULTILINE):
            environment["CUDA_DEVICE_MAX_CONNECTIONS"] = queues[1]
        if self.outcome.setting.cores:
            environment["PENSTOCK_TENANT_DIR"] = str(self._tenant)
            environment["LD_PRELOAD"] = f"{paths.so_path()}:{paths.nvml_so_path()}"
        return environment

    # ---- the run ----

    def _start(self, player: Path) -> None:
        began = time.monotonic()
        words = [player, self._folder / "script", self._folder / "page", self._folder]
        with (
            (self._folder / "errors").open("w+") as errors,
            subprocess.Popen(
                words,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            ) as program,
        ):
            hung = threading.Event()
            watchdog = threading.Timer(self._limit_s, self._give_up, (program, hung))
            watchdog.start()
            try:
                self._follow(program)
            finally:
                watchdog.cancel()
                watchdog.join()
                self._end_all(program)
            self.outcome.took_s = time.monotonic() - began
            errors.seek(0)
            said = errors.read()
        faults = self.outcome.faults
        if hung.is_set():
            said = "\n".join(line for line in said.splitlines() if is_of_interest(line))
            faults.append(f"not done after {self._limit_s:.1f} s; {self._where}\n{said}")
        elif program.returncode:
            faults.append(f"ended with {program.returncode}: {said}")
        else:
            self._read_results()
            if self.outcome.setting.cores:
                self._compare_memory("after the end", ended=True)

    def _follow(self, program: subprocess.Popen[str]) -> None:
        assert program.stdin
        assert program.stdout
        while line := program.stdout.readline():
            if self.outcome.setting.cores:
                self._compare_memory(line.strip())
            with contextlib.suppress(BrokenPipeError):
                program.stdin.write("\n")
                program.stdin.flush()
        program.wait()

    def _used(self, device: int) -> int:
        """Memory in use on the device, including what only descriptors keep."""
        return self._machine.usage(device).memory_used_bytes

    def _compare_memory(self, when: str, *, ended: bool = False) -> None:
        self._usage.reap(self._tenant / "quota")
        charged = self._usage.snapshot().devices
        for device in self._machine.devices():
            holders = [r.memory_bytes for r in self._machine.record(device.index) if r.alive]
            # What descriptors alone keep is in no process's record.
            held = sum(holders)
            kept = max(held, self._used(device.index) - self._own[device.index])
            ledger = charged[device.index].total_bytes
            # Code, which nobody sees, may lie in slabs with small allocations that are seen, or in
            # slabs of its own: that is charged.
            # At the brink of a quota a few MiB too many may stay charged: threads meet there.
            exact = "\n# exact\n" in self._script and not self.outcome.setting.tight
            most = kept + (0 if exact else UNSEEN_BYTES * sum(map(bool, holders)))
            if not held <= ledger <= most or (ended and held):
                self.outcome.faults.append(
                    f"{when}: device {device.index} holds {held / MIB:.1f} MiB, "
                    f"the ledger says {ledger / MIB:.1f} ({(ledger - held) / MIB:+.1f})"
                )

    def _read_results(self) -> None:
        for path in sorted(self._folder.glob("results.*")):
            for line in path.read_text().splitlines():
                number, _, result = line.partition(" ")
                self.outcome.results[int(path.suffix[1:]), int(number)] = result

    # ---- one that does not end ----

    def _give_up(self, program: subprocess.Popen[str], hung: threading.Event) -> None:
        hung.set()
        self._where = self._positions()
        for pid in self._members(program):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)  # each thread says where it stands
                time.sleep(0.3)
        self._end_all(program)

    @staticmethod
    def _members(program: subprocess.Popen[str]) -> list[int]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == program.pid:  # its session
                    found.append(int(process.name))
        return found

    def _end_all(self, program: subprocess.Popen[str]) -> None:
        for pid in self._members(program):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        program.wait()

    def _positions(self) -> str:
        lines = self._script.splitlines()
        with (self._folder / "page").open("rb") as file:
            page = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            at = AT.unpack_from(page, 4 * (1 + 2 * MOST_PHASES))
            page.close()
        found = [
            f"process {i // MOST_THREADS}, thread {i % MOST_THREADS} at line {number}: "
            f"{lines[number - 1]}"
            for i, number in enumerate(at)
            if number
        ]
        return "; ".join(found) or "all threads wait for each other"


def is_of_interest(line: str) -> bool:
    """Whether a frame of a backtrace is neither the C library nor the player's own waiting."""
    return not re.search(r"libc\.so|ld-linux|player\((\+|main|_start|nap)|^penstock\[", line)


def differences(script: str, native: Outcome, other: Outcome) -> list[str]:
    """Differences between what the program saw with and without the shim."""
    lines = script.splitlines()
    found = []
    for key in sorted(native.results.keys() | other.results.keys()):
        before, after = native.results.get(key, "nothing"), other.results.get(key, "nothing")
        if before == after:
            continue
        if other.setting.tight:
            # What was refused is missing later on; and no other answer may come of it.
            code = after.partition(" ")[0]
            if code in {"skipped", str(OUT_OF_MEMORY)} or code == before.partition(" ")[0]:
                continue
        found.append(f"line {key[1]} ({lines[key[1] - 1]}): {after}, without the shim {before}")
    return found


def patience_s(script: str, setting: Setting = NATIVE) -> float:
    """Seconds that a run may take beyond its work; a script may name fewer."""
    said = re.search(r"^# patience (\d+)$", script, re.MULTILINE)
    if said:
        return float(said[1])
    # What spins for each other is paid for at the quota.
    return PATIENCE_S * 100 / (setting.cores or 100)


def play(player: Path, script: str, settings: tuple[Setting, ...] = SETTINGS) -> list[str]:
    """Plays the script and returns all faults."""
    native = Run(player, script, NATIVE, patience_s(script)).outcome
    if native.faults:
        return [f"{NATIVE}: {fault}" for fault in native.faults]

    def one(setting: Setting) -> list[str]:
        limit_s = (100 / setting.cores + SLACK) * native.busy_s + patience_s(script, setting)
        outcome = Run(player, script, setting, limit_s).outcome
        faults = [*outcome.faults]
        if outcome.results:
            faults += differences(script, native, outcome)
        return [f"{setting}: {fault}" for fault in faults]

    with ThreadPoolExecutor(len(settings) or 1) as pool:
        return [fault for faults in pool.map(one, settings) for fault in faults]


def kinds(faults: list[str]) -> Counter[str]:
    """The faults without their numbers: a smaller script shows the same fault when it has one."""
    return Counter(kind(fault) for fault in faults)


def kind(fault: str) -> str:
    _, _, what = fault.partition(": ")
    if "not done after" in fault:
        return "hang"
    if "the ledger says" in fault:
        return "too much" if "(+" in fault else "too little"
    if "without the shim" in what:
        said = re.search(r"\(\d+\.\d+ (\w+).*\): (\w+)", what)
        return f"{said[1]} gives {said[2]}" if said else "another result"
    return "ends"
