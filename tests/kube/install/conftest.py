"""The chart, installed by helm from this tree's own image."""

from __future__ import annotations

import pytest
from tests.kube.support.chart import (
    NAMESPACE,
    Chart,
    traces,
)


@pytest.fixture(scope="package")
def chart(cluster, tmp_path_factory):
    """The installed chart. What an uninstallation leaves is tested by `test_uninstalling.py`."""
    before = frozenset(traces(cluster))
    made = Chart(cluster, tmp_path_factory.mktemp("chart") / "values.yaml", before)
    made.install()
    yield made
    if NAMESPACE in {one.metadata.name for one in cluster.core.list_namespace().items}:
        made.uninstall_at_once()
        made.remove_namespace()
