"""This release reads the state that each earlier one left on disk: pages, grants, steps, amounts.

A change that raises PENSTOCK_ABI_OLDEST removes from `golden/` the releases with older pages, and
decides here what becomes of their tenants (ADR 21).
"""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest
from tests.agent.conftest import Node, wait_until
from tests.agent.support.programs import LAUNCHER, backlogged, environment_for
from tests.upgrade.support.make_golden import (
    BOOT,
    GOLDEN,
    PAGES,
    STATE,
    YOUNG_S,
    boot_id,
    metered_at_ns,
    with_paths,
)

from penstock.node.admission.resize import Resize
from penstock.node.enforcement.saved_ladder import read_ladder
from penstock.node.tenants.grant import read_grant
from penstock.node.tenants.tenant_events import read_events
from penstock_shim import paths
from penstock_shim.pages import read_quota, read_usage

RELEASES = sorted(path.name for path in GOLDEN.iterdir())


@pytest.fixture(params=RELEASES)
def left(request, tmp_path) -> Path:
    """A state directory and a meter's, as that release left them on this machine."""
    state = tmp_path / "state"
    golden = GOLDEN / request.param
    libraries = {"driver_path": "libcuda.so.1", "nvml_path": "libnvidia-ml.so.1"}
    driver = {field: str(paths.sim_dir() / name) for field, name in libraries.items()}
    here = {STATE: str(state), BOOT: boot_id()}
    for directory in sorted((golden / "tenants").iterdir()):
        target = state / "tenants" / directory.name
        target.mkdir(parents=True, mode=0o700)
        for file in directory.iterdir():
            if file.suffix == ".gz":
                page = gzip.decompress(file.read_bytes())
                if file.stem == "quota":
                    page = with_paths(page, driver)
                (target / file.stem).write_bytes(page)
            else:
                text = file.read_text()
                for name, path in here.items():
                    text = text.replace(name, path)
                (target / file.name).write_text(text)
    meter = Path(f"{state}-meter")
    meter.mkdir(mode=0o700)
    shutil.copy(golden / "meter.db", meter)
    (meter / "expected.json").write_bytes((golden / "expected.json").read_bytes())
    return state


def expected_of(state: Path) -> dict:
    return json.loads((Path(f"{state}-meter") / "expected.json").read_text())


def assert_holds(found: object, expected: object) -> None:
    """All that is expected; fields that came later may be there as well."""
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert_holds(getattr(found, key), value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, value in zip(found, expected, strict=True):
            assert_holds(one, value)
    else:
        assert found == expected


def test_every_page_version_that_is_read_has_a_release_that_wrote_it():
    written = set()
    for release in RELEASES:
        for page in (GOLDEN / release / "tenants").glob("*/*.gz"):
            assert page.stem in PAGES
            written.add(int.from_bytes(gzip.decompress(page.read_bytes())[8:12], "little"))
    native = Path(__file__).parents[2] / "shim" / "native" / "abi" / "quota.h"
    lines = [line.split() for line in native.read_text().splitlines() if "_ABI_" in line]
    told = {words[1]: int(words[2]) for words in lines if words[0] == "#define"}
    newest, oldest = told["PENSTOCK_ABI_VERSION"], told["PENSTOCK_ABI_OLDEST"]
    assert oldest >= newest - 1
    # One that is not released yet has no golden files; the one before must.
    assert written >= set(range(oldest, newest))
    assert written <= set(range(oldest, newest + 1))


def test_no_time_in_a_kept_state_lies_ahead_on_a_machine_that_has_just_started(left):
    """A page whose device time is paid for until tomorrow has its tenant wait until then."""
    moments = [metered_at_ns(Path(f"{left}-meter") / "meter.db")]
    for directory in (left / "tenants").iterdir():
        moments.append(read_quota(directory / "quota").heartbeat_ns)
        moments.append(read_usage(directory / "usage").devices[0].origin_ns)
    assert 0 < max(moments) < 2 * YOUNG_S * 10**9


def test_pages_and_grants_are_read_as_they_were_written(left):
    for name, expected in expected_of(left)["pages"].items():
        directory = left / "tenants" / name
        assert_holds(read_quota(directory / "quota").limits, {
            key: [dict(one) for one in value] if key == "devices" else value
            for key, value in expected["limits"].items() if key != "generation"
        })  # fmt: skip
        usage = read_usage(directory / "usage")
        assert_holds(usage.devices[0], expected["device"])
        slots = [(slot.command, slot.charged_bytes[0], slot.pid) for slot in usage.slots]
        assert slots == [tuple(one.values()) for one in expected["slots"]]
        assert read_events(directory)[0]["event"] == "granted"
    grant = read_grant(left / "tenants" / "t")
    assert (grant.mode, grant.lifetime, grant.labels) == (
        "elastic", "until-revoked", {"team": "vision"},
    )  # fmt: skip
    assert grant.devices[0].cores_permille == 350
    bad = read_grant(left / "tenants" / "bad")
    assert (bad.measured, bad.grace_ns) == ("suspend", 10**9)
    assert read_grant(left / "tenants" / "held").suspended
    ladder = read_ladder(left / "tenants" / "bad")
    assert [rung.step.name for rung in ladder.rungs.values()] == ["SUSPEND"]
    assert len(ladder.stopped) == 1


def test_this_agent_adopts_the_tenants_of_each_release_and_continues_their_counters(left):
    expected = expected_of(left)
    before = expected["pages"]["t"]["device"]
    header = (left / "tenants/t/usage").read_bytes()[:16]
    node = Node(left)
    try:
        node.start()
        with node.client() as agent:
            tenants = {tenant.name: tenant for tenant in agent.tenants()}
            assert set(tenants) == {"bad", "held", "t"}
            assert tenants["held"].suspended
            assert tenants["t"].shares[0].cores_permille == 350
            agent.resize("t", Resize(cores_permille=250, mode="strict"))
        held = read_quota(left / "tenants" / "held" / "quota").limits
        assert held.suspended
        # The page that the old release made is kept, and a program of today runs under it.
        assert (left / "tenants/t/usage").read_bytes()[:16] == header
        environment = environment_for(node.tenant("new", cores=100))
        environment["PENSTOCK_TENANT_DIR"] = str(left / "tenants" / "t")
        environment["PENSTOCK_SIM_TAG"] = "t"
        program = node.launch_in(environment, LAUNCHER, *backlogged(600))
        wait_until(lambda: node.usage("t").devices[0].spent_ns > before["spent_ns"] + 10**9)
        assert program.poll() is None
        program.kill()
        program.wait()
        wait_until(lambda: program.pid not in {slot.pid for slot in node.usage("t").slots})
        with node.client() as agent:
            spent_ns = node.usage("t").devices[0].spent_ns
            agent.revoke("t", 0)
        assert node.stop() == 0
        done = node("usage", "--since=2026-01-01", "-o", "json", f"--meter-dir={left}-meter")
        assert done.returncode == 0, done.stderr
        rows = {row["tenant"]: row["device_ns"] for row in json.loads(done.stdout)["usage"]}
        # The copied page is another file, and so another account, which is charged from its start.
        assert rows["t"] == expected["metered_ns"]["t"] + spent_ns
    finally:
        node.close()
