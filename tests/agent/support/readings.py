"""Readings of a node: the handshakes that its agent saved, and its metrics."""

from __future__ import annotations

import urllib.request

from penstock.node.tenants.handshake_file import read_handshakes


def known(node, name: str) -> dict[int, object]:
    """The handshakes that the agent saved, by pid."""
    return {one.pid: one for one in read_handshakes(node.state / "tenants" / name)}


def shown(node, metric: str, label: str) -> list[float]:
    """The values of a metric's samples with that label."""
    url = f"http://127.0.0.1:{node.started['metrics_port']}/metrics"
    with urllib.request.urlopen(url, timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return [float(one.split()[-1]) for one in lines if one.startswith(metric) and label in one]
