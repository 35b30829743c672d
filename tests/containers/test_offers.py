"""Offering tenants to containers: whole files only, nothing of others', over kills and upgrades."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.containers.conftest import Node, grant_of

from penstock.devices import Device, DriverLibraries
from penstock.model import PenstockError
from penstock.node.containers import Containers, companions, container_libraries
from penstock.node.containers import shim_release as release_module
from penstock.node.containers.cdi import SpecDirectory
from penstock.node.containers.shim_release import install_release
from penstock.node.tenants.tenant import create_tenant
from penstock_shim import paths

UUID = "GPU-955ef018-3bd9-5f27-80b3-fa20ee8d19c5"


def edits(node, tenant) -> dict:
    spec = json.loads((node.specs / f"penstock.io-vgpu_{tenant.name}.json").read_text())
    assert (spec["cdiVersion"], spec["kind"]) == ("0.5.0", "penstock.io/vgpu")
    (device,) = spec["devices"]
    assert device["name"] == tenant.name
    return device["containerEdits"]


def test_an_offer_mounts_the_quota_read_only_and_the_usage_writable(node):
    tenant = node.tenant()
    assert node.containers.offer(tenant) == f"penstock.io/vgpu={tenant.name}"
    mounts = {m["containerPath"]: m for m in edits(node, tenant)["mounts"]}
    writable = {path for path, mount in mounts.items() if "rw" in mount["options"]}
    assert writable == {"/run/penstock-tenant/usage", "/run/penstock-tenant/driver/machine"}
    assert mounts["/run/penstock-tenant/quota"]["hostPath"] == str(tenant.quota_page)
    for mount in mounts.values():
        assert Path(mount["hostPath"]).exists()
    assert "env" not in edits(node, tenant), "what the environment says, the tenant can unsay"
    inside = Path(mounts["/run/penstock-tenant"]["hostPath"])
    assert not [p for p in inside.rglob("*") if p.is_file() and p.stat().st_mode & 0o222]
    assert tenant.usage_page.stat().st_mode & 0o777 == 0o666
    assert tenant.directory.stat().st_mode & 0o077 == 0, "other users of the node stay out"


def test_a_repeated_offer_writes_nothing(node):
    tenant = node.tenant()
    node.containers.offer(tenant)
    file = node.specs / f"penstock.io-vgpu_{tenant.name}.json"
    before = file.stat()
    node.containers.offer(tenant)
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_adopting_restores_what_is_missing_and_forgets_what_is_gone(node):
    whole, lost, damaged, gone, never = (node.tenant() for _ in range(5))
    for tenant in (whole, lost, damaged, gone):
        node.containers.offer(tenant)
    (node.specs / f"penstock.io-vgpu_{lost.name}.json").unlink()
    (node.specs / f"penstock.io-vgpu_{damaged.name}.json").write_text('{"devices": [')
    shutil.rmtree(damaged.directory / "container/driver")
    gone.remove()
    (node.specs / ".penstock.io-vgpu_x.json.0123").write_text("half")
    node.restart()
    adopted = node.containers.adopt()
    assert adopted.kept == (whole.name,)
    assert set(adopted.written) == {lost.name, damaged.name}
    assert adopted.removed == (gone.name,)
    assert adopted.failed == {}
    assert sorted(node.containers.offered()) == sorted(t.name for t in (whole, lost, damaged))
    assert never.name not in node.containers.offered()
    assert not list(node.specs.glob(".*"))


def test_specs_of_another_state_directory_stay(node, tmp_path):
    other = Node(tmp_path / "other", node.specs)
    theirs = other.tenant(name="theirs")
    other.containers.offer(theirs)
    foreign = node.specs / "vendor.com-gpu.json"
    foreign.write_text("{}")
    adopted = node.containers.adopt()
    assert adopted.removed == ()
    assert not node.containers.withdraw("theirs")
    assert other.containers.offered() == ["theirs"]
    assert foreign.exists()
    same = node.tenant(name="theirs")
    with pytest.raises(PenstockError, match="is taken"):
        node.containers.offer(same)
    theirs.remove()
    node.containers.offer(same)
    assert node.containers.offered() == ["theirs"]


def test_a_tenant_of_penstock_run_is_not_offered(node):
    grant = grant_of(node.source, "outside", 1 << 30, 500)
    with node.state.lock():
        tenant, lock = create_tenant(node.state, grant, node.source.libraries())
    os.close(lock)
    with pytest.raises(PenstockError, match="is outside the container"):
        node.containers.offer(tenant)
    assert node.containers.offered() == []


def upgrade(monkeypatch, folder: Path) -> None:
    """Installs another shim."""
    newer = folder / "libpenstock.so"
    newer.write_bytes(paths.so_path().read_bytes() + b"newer")
    monkeypatch.setattr(release_module.paths, "so_path", lambda: newer)


def test_an_upgrade_keeps_the_release_of_tenants_that_run(node, monkeypatch, tmp_path):
    old = node.tenant()
    node.containers.offer(old)
    before = edits(node, old)
    upgrade(monkeypatch, tmp_path)
    node.restart()
    assert node.containers.adopt().kept == (old.name,)
    assert edits(node, old) == before
    new = node.tenant()
    node.containers.offer(new)
    assert edits(node, new)["hooks"][0]["path"] != before["hooks"][0]["path"]
    assert Path(before["hooks"][0]["path"]).exists()
    assert Path(edits(node, new)["hooks"][0]["path"]).exists()


def test_a_damaged_release_is_named_and_not_mended_under_its_containers(tmp_path):
    release = install_release(tmp_path / "releases")
    assert install_release(tmp_path / "releases") == release
    (release.shim / "libpenstock.so").write_bytes(b"")
    with pytest.raises(PenstockError, match="has changed since it was installed"):
        install_release(tmp_path / "releases")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
def test_a_folder_that_is_mounted_noexec_is_refused(tmp_path):
    place = tmp_path / "noexec"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "noexec,size=1m", "penstock-test", place]
    subprocess.run(mount, check=True)
    try:
        with pytest.raises(PenstockError, match="noexec"):
            install_release(place)
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
def test_a_full_disk_leaves_the_spec_as_it_was(tmp_path):
    place = tmp_path / "full"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "penstock-test", place], check=True)
    try:
        node = Node(tmp_path / "node", place)
        tenant, late = node.tenant(), node.tenant()
        node.containers.offer(tenant)
        before = edits(node, tenant)
        (place / "filler").write_bytes(b"x" * (1 << 12))
        with pytest.raises(OSError, match="space"):
            (place / "rest").write_bytes(b"x" * (1 << 15))
        with pytest.raises(PenstockError, match="No space"):
            node.containers.offer(late)
        assert edits(node, tenant) == before
        assert {p.name for p in place.iterdir()} == {
            "filler", "rest", f"penstock.io-vgpu_{tenant.name}.json",
        }  # fmt: skip
    finally:
        subprocess.run(["umount", place], check=True)


WRITER = """
import sys
from pathlib import Path
from penstock.node.containers.cdi import SpecDirectory
specs = SpecDirectory(Path(sys.argv[1]))
print("begun", flush=True)
number = 0
while True:
    number += 1
    specs.write("t", {"devices": [], "number": number, "filler": "x" * 200000})
"""


def test_a_spec_is_whole_whenever_it_is_read_and_whenever_its_writer_is_killed(tmp_path):
    file = SpecDirectory(tmp_path).file_of("t")
    read = 0
    for _ in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout.readline() == "begun\n"
            until = time.monotonic() + 0.15
            while time.monotonic() < until:
                if file.exists():
                    assert json.loads(file.read_text())["number"] > 0
                    read += 1
            writer.send_signal(signal.SIGKILL)
        if file.exists():
            json.loads(file.read_text())
    assert read > 20
    SpecDirectory(tmp_path).remove_leftovers()
    assert [p.name for p in tmp_path.iterdir()] == [file.name]


def test_several_processes_install_one_release_at_once(tmp_path):
    found, failed = [], []

    def install() -> None:
        try:
            found.append(install_release(tmp_path / "releases"))
        except PenstockError as error:
            failed.append(error)

    threads = [threading.Thread(target=install) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(set(found)) == 1
    assert [p.name for p in (tmp_path / "releases").iterdir()] == [found[0].name]


class RealDevices:
    """A device source with a driver as its vendor installs it: it knows where the libraries lie."""

    machine = None

    def __init__(self, cuda: Path, nvml: Path) -> None:
        self._libraries = DriverLibraries(str(cuda), str(nvml))

    def libraries(self) -> DriverLibraries:
        return self._libraries


def test_a_real_driver_is_named_by_its_version_as_containers_have_it(tmp_path):
    folder = tmp_path / "driver/usr/lib64"
    folder.mkdir(parents=True)
    for name in ("libcuda.so", "libnvidia-ml.so"):
        (folder / f"{name}.580.65.06").touch()
        (folder / f"{name}.1").symlink_to(f"{name}.580.65.06")
    source = RealDevices(folder / "libcuda.so.1", folder / "libnvidia-ml.so.1")
    inside = container_libraries(source, tmp_path / "driver")
    assert inside.driver == "/usr/lib64/libcuda.so.580.65.06"
    assert inside.management == "/usr/lib64/libnvidia-ml.so.580.65.06"
    assert container_libraries(source).driver == str(folder / "libcuda.so.580.65.06")


def test_a_driver_that_the_shim_would_hide_is_refused(tmp_path):
    (tmp_path / "libcuda.so.1").touch()
    source = RealDevices(tmp_path / "libcuda.so.1", tmp_path / "libcuda.so.1")
    with pytest.raises(PenstockError, match="is not a link to a versioned file"):
        container_libraries(source)


def test_a_tenant_of_a_real_device_needs_the_vendors_device_beside_ours(node):
    device = Device(0, UUID, "NVIDIA H200", 1 << 37, 1 << 29, None, simulated=False)

    class Real(RealDevices):
        def devices(self):
            return [device]

    source = Real(Path("/x"), Path("/x"))
    libraries = DriverLibraries("/usr/lib64/libcuda.so.580.65.06", "")
    with node.state.lock():
        tenant, lock = create_tenant(node.state, grant_of(source, "real", 1 << 30, 500), libraries)
    os.close(lock)
    assert companions(tenant) == [f"nvidia.com/gpu={UUID}"]
    node.containers.offer(tenant)
    inside = {m["containerPath"] for m in edits(node, tenant)["mounts"]}
    assert not [path for path in inside if path.startswith("/run/penstock-tenant/driver")]
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.1" in inside


def test_without_a_place_for_specs_the_error_names_the_reason(tmp_path):
    (tmp_path / "file").touch()
    node = Node(tmp_path / "node", tmp_path / "file")
    tenant = node.tenant()
    with pytest.raises(PenstockError, match="cannot be written"):
        node.containers.offer(tenant)
    assert node.containers.offered() == []
    assert isinstance(Containers(node.state, releases=node.folder / "releases"), Containers)
