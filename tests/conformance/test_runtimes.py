"""Every driver entry that a real CUDA runtime asks for is the shim's, in the right variant."""

from __future__ import annotations

import subprocess

import pytest
from tests.conformance.support import packages

FEWEST_NAMES = 380  # CUDA 11.8's runtime asks for as many
NO_DEVICE, DRIVER_TOO_OLD = 100, 35  # as runtimes up to 12.x and from 13.0 on say over 12.2


@pytest.fixture(params=packages.RUNTIMES, ids=str)
def runtime(request) -> packages.Runtime:
    return request.param


@pytest.fixture
def program(runtime, build_runtime):
    return build_runtime(runtime)


@pytest.fixture
def recording(program, record, make_tenant):
    return record(make_tenant(), program)


def test_every_entry_that_a_runtime_looks_up_is_answered_by_the_shim(
    runtime, recording, by_simulated_driver, by_real_driver, tell_asked
):
    asks = recording.asks
    assert len(asks) >= FEWEST_NAMES
    assert recording.passed_by == []
    # The variant, or nothing, that the driver below gives on its own.
    assert set(by_simulated_driver(asks)) == {"same"}
    # The variant that a real driver gives, where it has it.
    real = by_real_driver(asks)
    assert [ask for ask, verdict in zip(asks, real, strict=True) if verdict == "other"] == []
    assert real.count("same") >= FEWEST_NAMES - 20
    per_thread = sum(ask.flags == "2" for ask in asks)
    tell_asked(
        f"CUDA runtime {runtime}",
        f"{len(asks)} asked ({per_thread} per-thread), {recording.answered} answered, "
        f"{len(asks) - recording.answered} the driver below lacks; "
        f"{real.count('same')} as driver 535 answers, {real.count('lacks')} it lacks",
    )


def test_a_runtime_program_gets_the_same_answers_as_without_the_shim(
    program, recording, make_tenant
):
    environment = make_tenant().environment()
    del environment["LD_PRELOAD"]
    bare = subprocess.run(
        [program], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert recording.output == bare
    assert "cudaGetDeviceCount" in bare


def test_over_a_real_driver_the_runtime_gets_the_shims_entries_in_that_drivers_variants(
    runtime, program, record, make_tenant, by_real_driver
):
    recording = record(make_tenant(driver=by_real_driver.args[0]), program)
    code = DRIVER_TOO_OLD if runtime.version.startswith("13.") else NO_DEVICE
    assert f"cudaGetDeviceCount(&count) {code}\n" in recording.output
    assert recording.passed_by == []
    assert set(by_real_driver(recording.asks)) == {"same"}
