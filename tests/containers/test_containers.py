"""Real containers on real roots: an unmodified image gets the shim, its quota and its device."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time

import pytest
from tests.containers.conftest import GIB, PODMAN, PROGRAMS, PYNVML, RUN

from penstock_shim import paths, simulator
from penstock_shim.pages import DeviceLimit, Limits, QuotaWriter, UsagePage, read_usage

LOOK = f"{PROGRAMS}/look.py"
WITH_PYNVML = ("-e", f"PYTHONPATH={PYNVML}")
QUOTA_MIB = 4096


def seen(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "neither loader nor shim has anything to say"
    return json.loads(done.stdout)


def assert_under_quota(answer: dict) -> None:
    assert answer["cuda"]["init"] == 0
    assert answer["cuda"]["devices"] == 1
    assert answer["cuda"]["total_mib"] == QUOTA_MIB
    assert answer["cuda"]["within"] == 0
    assert answer["cuda"]["beyond"] == 2, "CUDA_ERROR_OUT_OF_MEMORY"
    assert answer["nvml"] == {"devices": 1, "total_mib": QUOTA_MIB}


@pytest.mark.parametrize("image", ["host_root", "bullseye_root"])
def test_an_unmodified_image_sees_its_quota_as_the_whole_device(live, image, python, request):
    root = request.getfixturevalue(image)
    tenant = live.offered()
    interpreter = python if image == "host_root" else "/usr/bin/python3"
    done = live.run(root, tenant, interpreter, LOOK, "1024", "8192", options=WITH_PYNVML)
    assert_under_quota(seen(done))
    assert read_usage(tenant.usage_page).devices[0].peak_bytes >= 1 * GIB
    own = [r for r in live.machine.record(0) if r.tag == tenant.name]
    assert own, "the device's own record names the tenant"
    assert max(r.peak_memory_bytes for r in own) >= 1 * GIB


@pytest.fixture(scope="module")
def forged(live, tmp_path_factory):
    """Pages that a tenant could make for itself: the whole device, and another machine."""
    folder = tmp_path_factory.mktemp("forged")
    device = live.source.devices()[0]
    whole = Limits(devices=(DeviceLimit(uuid=device.uuid, memory_bytes=100 * GIB),))
    driver = str(paths.sim_dir() / "libcuda.so.1")
    QuotaWriter.create(
        folder / "quota", whole, tenant="forged", driver_path=driver, nvml_path=""
    ).close()
    UsagePage.create(folder / "usage", mode=0o666).close()
    simulator.create_machine(folder / "machine", "h200").close()
    return folder


EDITS = {
    "env -i": ["env", "-i", f"PYTHONPATH={PYNVML}"],
    "LD_PRELOAD=": ["env", "LD_PRELOAD=", "LD_LIBRARY_PATH="],
    "unset": ["env", "-u", "LD_PRELOAD", "-u", "LD_LIBRARY_PATH", "-u", "PENSTOCK_TENANT_DIR"],
    "another tenant directory": [
        "env",
        "PENSTOCK_TENANT_DIR=/opt/forged",
        "PENSTOCK_SIM_MACHINE=/opt/forged/machine",
        "PENSTOCK_SIM_TAG=somebody-else",
        "CUDA_VISIBLE_DEVICES=0",
    ],
    "another library path": ["env", "LD_LIBRARY_PATH=/run/penstock-tenant/driver"],
}


@pytest.mark.parametrize("edit", EDITS)
def test_no_edit_of_the_environment_lifts_the_quota(live, forged, host_root, python, edit):
    tenant = live.offered()
    options = (*WITH_PYNVML, "-v", f"{forged}:/opt/forged")
    done = live.run(host_root, tenant, *EDITS[edit], python, LOOK, "1024", "8192", options=options)
    assert_under_quota(seen(done))
    assert [r for r in live.machine.record(0) if r.tag == tenant.name]
    with simulator.Machine(forged / "machine") as other:
        assert list(other.record(0)) == []


READ_ONLY = ("--read-only",)
READ_ONLY_RUN = ("--read-only", "--read-only-tmpfs=false")  # /run is the image's own, read-only too
RANDOM_USER = ("--user", "12345")
NO_PRIVILEGES = ("--security-opt", "no-new-privileges", "--cap-drop", "all")


@pytest.mark.parametrize(
    "options", [READ_ONLY, READ_ONLY_RUN, RANDOM_USER, (*READ_ONLY, *RANDOM_USER)]
)
def test_restricted_containers_work(live, bullseye_root, options):
    tenant = live.offered()
    done = live.run(
        bullseye_root, tenant, "/usr/bin/python3", LOOK, "1024", "8192",
        options=(*WITH_PYNVML, *options, *NO_PRIVILEGES),
    )  # fmt: skip
    answer = seen(done)
    assert_under_quota(answer)
    assert answer["uid"] == (12345 if "12345" in options else 0)


def test_a_restricted_container_on_the_hosts_root_works(live, host_root, distroless_root):
    tenant = live.offered()
    # A random user may not be let into this checkout, nor to its interpreter: a C program is.
    options = *READ_ONLY_RUN, *RANDOM_USER, *NO_PRIVILEGES, "-v", f"{distroless_root}/bin:/mnt:ro"
    done = live.run(host_root, tenant, "/mnt/look", options=options)
    assert done.stderr == ""
    assert done.stdout == f"own=none driver=opened init=0 total_mib={QUOTA_MIB}\n"


def test_the_cores_quota_holds_in_the_devices_own_record(live, host_root):
    tenant = live.offered(cores_permille=300)
    launcher = str(paths.workload_path("penstock-launcher"))
    seconds = 4
    # Nothing of the environment is left but what stands for the kernel's code.
    command = ["env", "-i", "PENSTOCK_SIM_KERNELS=penstock_spin=param0", launcher]
    done = live.run(host_root, tenant, *command, "--kernel-us", "2000", "--seconds", str(seconds))
    assert done.returncode == 0, done.stderr
    busy_ns = sum(r.busy_ns for r in live.machine.record(0) if r.tag == tenant.name)
    share = busy_ns / (seconds * 1e9)
    assert 0.15 < share < 0.36, "30 % were granted; a loaded machine may give less"
    events = (tenant.directory / "events.jsonl").read_text()
    assert '"uncharged"' not in events, "its processes are known, in their own pid namespace"


HOLD = """
import ctypes, sys
driver, context, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)
assert driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(2 << 30)) == 0
print("holds", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holding(tenant, python: str, name: str):
    """A container of the tenant that holds 2 GiB until its input ends."""
    options = "-i", "--name", name, "--device", f"penstock.io/vgpu={tenant.name}"
    with subprocess.Popen(
        [*RUN, *options, "--rootfs", "/:O", python, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as held:
        assert held.stdout.readline() == "holds\n"
        yield held


def wait_until_nothing_is_charged(tenant, seconds: float = 20) -> None:
    """Returns once the supervisor, which notices ended processes, has taken off their charges."""
    deadline = time.monotonic() + seconds
    while read_usage(tenant.usage_page).devices[0].total_bytes and time.monotonic() < deadline:
        time.sleep(0.05)
    assert read_usage(tenant.usage_page).devices[0].total_bytes == 0


def test_two_containers_of_one_tenant_share_one_quota(live, host_root, python):
    tenant = live.offered()
    look = (host_root, tenant, python, LOOK, "2048", "8192")
    with holding(tenant, python, f"{tenant.name}-holds"):
        beside = seen(live.run(*look, options=WITH_PYNVML))
        assert beside["cuda"]["within"] == 2, "2 GiB of 4 and a context are held by the other"
    wait_until_nothing_is_charged(tenant)
    assert_under_quota(seen(live.run(*look, options=WITH_PYNVML)))


def test_a_killed_containers_charge_comes_back(live, python):
    tenant = live.offered()
    name = f"{tenant.name}-killed"
    with holding(tenant, python, name):
        assert read_usage(tenant.usage_page).devices[0].total_bytes >= 2 * GIB
        subprocess.run([*PODMAN, "kill", "-s", "KILL", name], check=True, capture_output=True)
    wait_until_nothing_is_charged(tenant)


def test_an_images_own_preload_is_kept(live, distroless_root):
    own = (distroless_root / "etc/ld.so.preload").read_text()
    tenant = live.offered()
    done = live.run(distroless_root, tenant, "/bin/look")
    assert done.stderr == ""
    assert done.stdout == f"own=there driver=opened init=0 total_mib={QUOTA_MIB}\n"
    assert (distroless_root / "etc/ld.so.preload").read_text() == own, "the image is as it was"
    without = live.run(distroless_root, None, "/bin/look")
    assert without.stdout == "own=there driver=none\n"


def test_the_driver_by_its_own_path_is_the_shim_too(live, distroless_root):
    tenant = live.offered()
    for path in ("/run/penstock-tenant/driver/libcuda.so.1", "/usr/lib64/libcuda.so.1"):
        done = live.run(distroless_root, tenant, "/bin/look", path)
        assert done.stdout.endswith(f"init=0 total_mib={QUOTA_MIB}\n"), done


def test_a_static_image_starts_and_runs_as_without_us(live, static_root):
    tenant = live.offered()
    command = ["/bin/busybox", "sh", "-c", "echo fine; exit 7"]
    with_us, without = (live.run(static_root, t, *command) for t in (tenant, None))
    for done in (with_us, without):
        assert (done.returncode, done.stdout, done.stderr) == (7, "fine\n", "")


def test_a_musl_image_starts_and_runs_as_without_us(live, musl_root):
    tenant = live.offered()
    with_us, without = (live.run(musl_root, t, "/bin/look") for t in (tenant, None))
    for done in (with_us, without):
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "own=none driver=none\n"


def test_a_tenant_cannot_write_the_agents_files(live, static_root):
    tenant = live.offered()
    files = [
        "/run/penstock-tenant/quota",
        "/run/penstock-tenant/own",
        "/run/penstock-tenant/driver/tag",
        "/run/penstock-tenant/driver/libcuda.so.1",
        "/run/penstock-shim/libpenstock.so",
        "/run/penstock-shim/preload/ld.so.preload",
        "/etc/ld.so.preload",
        "/usr/lib64/libcuda.so.1",
    ]
    tries = [f"echo x 2>/dev/null >> {file} && echo wrote {file}" for file in files]
    for place in ("/run/penstock-tenant", "/run/penstock-shim", *files[-2:]):
        tries += [
            f"busybox mv {place} /moved 2>/dev/null && echo moved {place}",
            f"busybox rm -rf {place} 2>/dev/null && echo removed {place}",
            f"busybox umount {place} 2>/dev/null && echo unmounted {place}",
        ]
    tries.append("[ -w /run/penstock-tenant/usage ] && echo usage")
    done = live.run(static_root, tenant, "/bin/busybox", "sh", "-c", "; ".join(tries))
    assert done.stdout == "usage\n", done
    assert tenant.quota_page.stat().st_size > 1


def test_two_tenants_in_one_container_are_refused_with_the_reason(live, static_root):
    first, second = live.offered(), live.offered()
    done = live.run(
        static_root, first, "/bin/busybox", "true",
        options=("--device", f"penstock.io/vgpu={second.name}"),
    )  # fmt: skip
    assert done.returncode != 0
    assert "two vGPUs in one container" in done.stderr


def test_a_withdrawn_tenant_is_given_to_no_further_container(live, static_root):
    tenant = live.offered()
    assert live.run(static_root, tenant, "/bin/busybox", "true").returncode == 0
    assert live.containers.withdraw(tenant.name)
    done = live.run(static_root, tenant, "/bin/busybox", "true")
    assert done.returncode != 0
    assert "unresolvable" in done.stderr


def test_names_that_begin_with_a_digit_or_hold_dots_are_fine(live, static_root):
    tenant = live.offered(name="3rd.tenant_x-1")
    done = live.run(static_root, tenant, "/bin/busybox", "true")
    assert done.returncode == 0, done.stderr
