"""Pages for these tests."""

from __future__ import annotations

import pytest

from penstock_shim.pages import DeviceLimit, Limits, QuotaWriter, UsagePage


@pytest.fixture
def limits():
    """One device, 8 GiB, 70 % of its time."""
    return Limits((DeviceLimit("GPU-00000001-1111-2222-3333-444444444444", 8 << 30, 700),))


@pytest.fixture
def tenant(tmp_path, limits):
    """Directory of a tenant with both pages."""
    directory = tmp_path / "tenants" / "a"
    QuotaWriter.create(directory / "quota", limits, tenant="a").close()
    UsagePage.create(directory / "usage").close()
    return directory
