"""The Prometheus endpoint of a real run, with well and badly behaved clients."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.meter.support.scrapes import scrape

from penstock.model import PenstockError
from penstock.node.metering import metrics
from penstock.node.metering.exporter import Exporter
from penstock.node.metering.reference import reference

ROOT = Path(__file__).parents[2]


def test_the_endpoint_serves_the_figures_of_a_real_tenants_pages(run):
    figures = run.usage.devices[0]
    assert run.value("penstock_tenant_memory_used_bytes") == figures.total_bytes > 512 << 20
    assert run.value("penstock_tenant_memory_quota_bytes") == 8 << 30
    assert run.value("penstock_tenant_cores_quota_ratio") == 0.3
    assert run.value("penstock_tenant_memory_refusals_total") == figures.refusals == 1
    assert run.value("penstock_tenant_launches_total") == figures.launches > 0
    assert run.value("penstock_tenant_waits_total") == figures.waits > 0
    assert run.charged_ns == figures.spent_ns
    assert run.value("penstock_tenant_device_seconds_total") == pytest.approx(run.charged_ns / 1e9)
    assert run.value("penstock_tenant_memory_measured_bytes") >= 512 << 20
    assert run.value("penstock_tenant_processes") == 1
    (sample,) = run.samples("penstock_tenant_memory_used_bytes")
    assert sample.labels == {
        "node": "node-1", "device_uuid": run.grant.devices[0].uuid, "namespace": "ml",
        "pod": 'p"0\\', "container": "main", "tenant": "t",
    }  # fmt: skip
    events = {one.labels["kind"]: one.value for one in run.samples("penstock_tenant_events_total")}
    assert events["deny"] == 1


def test_a_figure_that_a_device_does_not_report_has_no_sample(run):
    known = {one.labels["device_uuid"] for one in run.samples("penstock_device_memory_used_bytes")}
    assert known == {run.grant.devices[0].uuid}
    available = {
        one.labels["device_uuid"]: one.value for one in run.samples("penstock_device_available")
    }
    assert available == {run.grant.devices[0].uuid: 1, "GPU-lost": 0}


def test_loop_times_are_a_histogram(run):
    assert run.value("penstock_agent_loop_seconds_count") == 2
    assert run.value("penstock_agent_loop_seconds_sum") == pytest.approx(0.304)
    below = {
        one.labels["le"]: one.value for one in run.samples("penstock_agent_loop_seconds_bucket")
    }
    assert (below["0.0025"], below["0.005"], below["0.25"], below["0.5"]) == (0, 1, 1, 2)
    assert below["+Inf"] == 2


def test_names_units_and_labels_keep_the_conventions(run):
    labels = run.labels()
    for family in text_string_to_metric_families(run.text):
        assert re.fullmatch(r"penstock_(agent|meter|device|tenant)_[a-z_]+", family.name)
        assert family.documentation.endswith(".") or ";" in family.documentation
        for sample in family.samples:
            assert not {"pid", "process", "command"} & set(sample.labels)
            assert "node" in sample.labels
            if sample.name.endswith("_ratio"):
                assert 0 <= sample.value <= 1
    for _, common, described in metrics.GROUPS:
        for one in described:
            told = f"{one.name}_total" if not one.name.endswith("_total") else one.name
            name = told if one.kind == "counter" else one.name
            assert (one.kind == "counter") == one.name.endswith("_total")
            assert labels[name] == {*common, *one.more_labels}, name
            if one.unit in ("bytes", "seconds", "ratio"):
                assert f"_{one.unit}" in one.name


def test_the_reference_is_made_from_the_same_table(run):
    assert (ROOT / "docs/metrics.md").read_text() == reference(), "run make gen"
    for family in text_string_to_metric_families(run.text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"`{name}`" in reference()


def test_a_port_that_is_taken_is_reported_and_tried_again():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        told = []
        exporter = Exporter("n")
        assert exporter.serve(port=port, report=lambda event, **more: told.append(event)) is None
        assert told == ["port is taken"]
    deadline = time.monotonic() + 15
    while told != ["port is taken", "port is free"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert scrape(port).strip() == ""
    exporter.close()
    with pytest.raises(PenstockError, match="cannot serve metrics"):
        Exporter("n").serve(port=99999)


def test_more_connections_than_there_may_be_cost_no_thread_and_hold_up_no_scrape():
    """Once, each had a thread: some thousands of them stopped the agent's loop."""
    exporter = Exporter("n")
    port = exporter.serve(port=0)
    before, files = threading.active_count(), len([*Path("/proc/self/fd").iterdir()])
    with contextlib.ExitStack() as idle:
        for _ in range(900):
            idle.enter_context(socket.create_connection(("127.0.0.1", port)))
        begun_s = time.monotonic()
        for _ in range(10):
            assert scrape(port).strip() == ""
        assert time.monotonic() - begun_s < 5
        assert threading.active_count() == before
        assert len([*Path("/proc/self/fd").iterdir()]) < files + 900 + 2 * 64
    exporter.close()


def test_a_request_that_never_ends_is_abandoned():
    exporter = Exporter("n")
    port = exporter.serve(port=0)
    with socket.create_connection(("127.0.0.1", port)) as one:
        one.sendall(b"GET /metrics HTTP/1.1\r\n" + b"x: y\r\n" * 4000)
        with contextlib.suppress(OSError):
            assert one.recv(1) == b""
    exporter.close()


def test_probes_have_a_port_of_their_own():
    exporter = Exporter("n")
    port = exporter.serve_probes("127.0.0.1", 0)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        scrape(port)
    exporter.close()


def test_a_client_that_says_nothing_holds_up_no_scrape(run):
    exporter = Exporter("n")
    port = exporter.serve(port=0)
    with (
        socket.create_connection(("127.0.0.1", port)),
        socket.create_connection(("127.0.0.1", port)),
    ):
        assert scrape(port).strip() == ""
    exporter.close()
    exporter.close()


def test_a_probe_fails_when_no_round_ends_any_more(monkeypatch):
    exporter = Exporter("node")
    port = exporter.serve(port=0)

    def health() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    try:
        assert health() == (503, "no round has ended yet\n")
        exporter.publish(lambda: pytest.fail("a probe costs no figures"), 0.001)
        assert health() == (200, "ok\n")
        later = time.monotonic() + 31
        monkeypatch.setattr(time, "monotonic", lambda: later)
        status, why = health()
        assert status == 503
        assert why.startswith("no round has ended for 3")
    finally:
        exporter.close()
