"""Those of Numba-CUDA's own tests that pass without the shim pass in a tenant: the quick part.

`make numba-suite` runs all of them.
"""

from __future__ import annotations

from tests.conformance.support import numba_suite

MODULES = [
    "cudadrv.test_context_stack",
    "cudadrv.test_cuda_auto_context",
    "cudadrv.test_cuda_memory",
    "cudadrv.test_cuda_ndarray",
    "cudadrv.test_deallocations",
    "cudadrv.test_emm_plugins",
    "cudadrv.test_events",
    "cudadrv.test_host_alloc",
    "cudadrv.test_module_callbacks",
    "cudadrv.test_pinned",
    "cudadrv.test_reset_device",
    "cudadrv.test_select_device",
    "cudapy.test_cuda_array_interface",
    "cudapy.test_ipc",
    "cudapy.test_multiprocessing",
    "cudapy.test_multithreads",
    "cudapy.test_stream_api",
]
FEWEST_THAT_PASS = 100


def test_tests_that_pass_without_the_shim_pass_with_it(tmp_path, tell_asked):
    names = [f"{numba_suite.PACKAGE}.{module}" for module in MODULES]
    without, within = numba_suite.compare(names, tmp_path, jobs=2)
    passed = [test for test, outcome in without.items() if outcome == "passed"]
    assert {test: how for test, how in within.items() if how != "passed"} == {}
    assert sorted(within) == sorted(passed)
    assert len(passed) >= FEWEST_THAT_PASS
    tell_asked(
        "Numba-CUDA's tests",
        f"{len(within)} of {len(passed)} that pass without the shim (in {len(MODULES)} modules)",
    )


def test_a_test_that_never_passed_in_a_tenant_is_a_difference_whatever_it_does_without():
    failed = ["steady", "never", "now and then"]
    without = {"steady": "passed", "never": "failed", "now and then": "failed"}
    within = {"steady": "passed", "never": "failed", "now and then": "passed"}
    assert numba_suite.unsteady(failed, without, within) == ["now and then"]
