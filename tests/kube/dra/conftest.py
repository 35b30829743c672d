"""Nodes that give shares by claims."""

from __future__ import annotations

import contextlib

import pytest
from kubernetes import client
from tests.kube.support.claims import (
    CLASS,
    DRIVER,
    Claims,
)
from tests.kube.support.nodes import all_nodes


@pytest.fixture(scope="package")
def dra_nodes(cluster):
    """Agents with two simulated H200 each, what runs beside them, and the device class."""
    api = client.ResourceV1Api(cluster.api)
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    with_class = {"metadata": {"name": CLASS}, "spec": {"selectors": [selector]}}
    with contextlib.suppress(client.ApiException):  # left by a run that was killed
        api.delete_device_class(CLASS)
    api.create_device_class(with_class)
    nodes = all_nodes(cluster)
    try:
        for node in nodes.values():
            node.start()
        yield nodes
    finally:
        for node in nodes.values():
            node.stop()
        api.delete_device_class(CLASS)


@pytest.fixture
def claims(pods):
    return Claims(pods)
