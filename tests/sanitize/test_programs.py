"""The shim and the simulated driver under sanitizers, as C programs use them.

Other tests run the programs' own checks, without sanitizers, which take time that some of the
checks measure. Here a program may end in any way but by a sanitizer's report or a signal.
`make sanitize` runs far more under AddressSanitizer.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.sanitize.support import instrumented

from penstock_shim import simulator
from penstock_shim.pages import DeviceLimit, Limits, QuotaWriter, UsagePage

TESTS = Path(__file__).parents[1]
SIM_PROGRAMS = TESTS / "sim" / "programs"
GATE_PROGRAMS = TESTS / "gate" / "programs"
CASE = re.compile(r"^CASE\((\w+)\)", re.MULTILINE)
GIB = 1 << 30
LONGEST_S = 120  # ranks that meet under a quota take 12 s alone, and far longer beside other tests


def cases():
    """Every case of the simulated driver's own test programs."""
    for source in sorted(SIM_PROGRAMS.glob("*.c")):
        text = source.read_text()
        # Those wait for a test to do something, or for kernels that go by a rule of its own.
        if source.stem not in ("check", "faults", "load", "peers"):
            yield from ((source, case) for case in CASE.findall(text))


def gate_cases():
    """The gate's test programs that many threads and streams take part in, or that wait."""
    for name in ("waits", "captures", "turnover"):
        source = GATE_PROGRAMS / f"{name}.c"
        for case in CASE.findall(source.read_text()):
            if "is_destroyed_while" not in case:  # those wait for a test to do something
                yield pytest.param(source, case, id=f"{name}-{case}")


@pytest.fixture
def machine(tmp_path):
    path = tmp_path / "machine"
    simulator.create_machine(path, f"{TESTS / 'sim' / 'small.yaml'},2").close()
    return path


@pytest.fixture
def make_tenant(tmp_path, machine):
    def make(sanitizer, memory_bytes=64 * GIB, cores_permille=1000):
        folder = tmp_path / "tenant"
        folder.mkdir()
        with simulator.Machine(machine) as opened:
            limits = Limits(
                devices=tuple(
                    DeviceLimit(
                        uuid=device.uuid,
                        memory_bytes=memory_bytes,
                        cores_permille=cores_permille,
                        allowance_permille=cores_permille,
                    )
                    for device in opened.devices()
                )
            )
        sim = instrumented.libraries(sanitizer) / "sim"
        UsagePage.create(folder / "usage").close()
        QuotaWriter.create(
            folder / "quota",
            limits,
            tenant="tenant",
            driver_path=str(sim / "libcuda.so.1"),
            nvml_path=str(sim / "libnvidia-ml.so.1"),
        ).close()
        return folder

    return make


def check_ending(command, environment):
    done = subprocess.run(
        [str(word) for word in command],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert done.returncode >= 0, f"killed by signal {-done.returncode}\n{done.stderr[-6000:]}"
    assert done.returncode != instrumented.REPORTED, done.stderr[-12000:]
    assert "Sanitizer" not in done.stderr, done.stderr[-12000:]
    return done


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
@pytest.mark.parametrize(
    ("source", "case"),
    [pytest.param(*found, id=f"{found[0].stem}-{found[1]}") for found in cases()],
)
def test_a_program_of_the_simulated_driver_under_the_shim(
    machine, make_tenant, sanitizer, source, case
):
    program = instrumented.program(sanitizer, source, SIM_PROGRAMS / "check.c")
    tenant = make_tenant(sanitizer)
    check_ending([program, case], instrumented.environment(sanitizer, machine, tenant))


@pytest.mark.parametrize(("source", "case"), list(gate_cases()))
def test_a_program_waits_and_captures_under_the_gate(machine, make_tenant, source, case):
    gate, check = GATE_PROGRAMS / "gate.c", SIM_PROGRAMS / "check.c"
    program = instrumented.program("thread", source, gate, check)
    tenant = make_tenant("thread", cores_permille=200)
    done = check_ending([program, case], instrumented.environment("thread", machine, tenant))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
@pytest.mark.parametrize("cores_permille", [200, 1000])
def test_threads_do_what_they_like_with_shared_streams(
    machine, make_tenant, monkeypatch, sanitizer, cores_permille
):
    gate, check = GATE_PROGRAMS / "gate.c", SIM_PROGRAMS / "check.c"
    program = instrumented.program(sanitizer, GATE_PROGRAMS / "mixture.c", gate, check)
    tenant = make_tenant(sanitizer, cores_permille=cores_permille)
    monkeypatch.setenv("SEED", "7")
    command = [program, "threads_do_what_they_like_with_shared_streams"]
    done = check_ending(command, instrumented.environment(sanitizer, machine, tenant))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("source", "case"),
    [pytest.param(*found, id=f"{found[0].stem}-{found[1]}") for found in cases()],
)
def test_a_program_of_the_simulated_driver_alone_leaks_nothing(machine, source, case):
    program = instrumented.program("address", source, SIM_PROGRAMS / "check.c")
    check_ending([program, case], instrumented.environment("address", machine))


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("threads", (8, 300)),
        ("brink", (8, 400)),
        ("racer", (3000, 1, 2048)),
        ("crossing", (300,)),
        ("forker", ("before",)),
        ("forker", ("after",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value)),
)
def test_a_program_that_allocates(machine, make_tenant, sanitizer, name, words):
    program = instrumented.program(sanitizer, TESTS / "memory" / "programs" / f"{name}.c")
    tenant = make_tenant(sanitizer, memory_bytes=32 << 20)
    done = check_ending([program, *words], instrumented.environment(sanitizer, machine, tenant))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
@pytest.mark.parametrize(
    "words",
    [
        ["--threads", "4", "--streams", "3"],
        ["--threads", "3", "--per-thread", "--sync-every", "2"],
        ["--threads", "4", "--default-stream", "--sync-every", "5"],
        ["--graph", "5", "--streams", "2", "--sync-every", "3"],
        ["--kernel-us", "3000", "--jitter", "50", "--copy-bytes", "100000"],
    ],
    ids=" ".join,
)
def test_a_program_that_launches_under_a_quota(machine, make_tenant, sanitizer, words):
    tenant = make_tenant(sanitizer, cores_permille=400)
    launcher = instrumented.libraries(sanitizer) / "penstock-launcher"
    environment = instrumented.environment(sanitizer, machine, tenant)
    done = check_ending([launcher, "--seconds", "0.4", *words], environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"launches":' in done.stdout


@pytest.mark.parametrize("call", ["cuMemHostGetDevicePointer", "cuStreamCreate"])
def test_threads_that_launch_while_another_prepares_their_context(machine, make_tenant, call):
    # The first launch has the gate create its own objects in the context, which takes a while:
    # the others go on without, and may look for them at any time.
    tenant = make_tenant("thread", cores_permille=400)
    launcher = instrumented.libraries("thread") / "penstock-launcher"
    environment = instrumented.environment("thread", machine, tenant)
    with simulator.Machine(machine) as opened:
        opened.inject("slow", call=call, count=1, delay_ns=150_000_000)
    words = ["--threads", "6", "--per-thread", "--sync-every", "2", "--seconds", "0.3"]
    done = check_ending([launcher, *words], environment)
    assert done.returncode == 0, done.stdout + done.stderr
