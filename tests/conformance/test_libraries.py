"""Other libraries that ask the driver themselves are given the shim's entries too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
FEWEST_NAMES = 300
LINK = """
from cuda.bindings import nvjitlink
ptx = b".version 8.0\\n.target sm_90\\n.address_size 64\\n.visible .entry nothing() { ret; }\\n"
linker = nvjitlink.create(1, ["-arch=sm_90"])
nvjitlink.add_data(linker, nvjitlink.InputType.PTX, ptx, len(ptx), "nothing")
nvjitlink.complete(linker)
print("linked", nvjitlink.get_linked_cubin_size(linker) > 0)
"""


@pytest.mark.parametrize("client", ["cuda_core", "numba"])
def test_every_name_that_a_python_client_looks_up_is_answered_by_the_shim(
    client, record, by_simulated_driver, make_tenant, tell_asked
):
    tenant = make_tenant(memory_bytes=8 << 30)
    recording = record(tenant, sys.executable, EXAMPLES / f"{client}_tenant.py", "0.2")
    assert len(recording.asks) >= FEWEST_NAMES
    assert recording.passed_by == []
    assert set(by_simulated_driver(recording.asks)) == {"same"}
    tell_asked(client, f"{len(recording.asks)} asked, {recording.answered} answered")


def test_nvjitlink_links_in_a_tenant_as_outside(record, make_tenant):
    recording = record(make_tenant(), sys.executable, "-c", LINK)
    assert recording.output == "linked True\n"
    assert recording.passed_by == []
