"""The Prometheus endpoint of a real run, and that dashboard and alerts ask for what it tells."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.interposition import debian

from penstock.devices import open_machine
from penstock.model import PenstockError
from penstock.node.metering import clock, metrics
from penstock.node.metering.exporter import Exporter
from penstock.node.metering.meter import Meter
from penstock.node.metering.metrics_snapshot import (
    DeviceSnapshot,
    NodeSnapshot,
    TenantSnapshot,
    share_snapshots,
)
from penstock.node.metering.reading import identity_of, measured_of, reading_of
from penstock.node.metering.reference import reference
from penstock.node.tenants.tenant import Tenant
from penstock.node.tenants.tenant_events import read_events
from penstock_shim.pages import read_quota, read_usage

from . import promql
from .test_kill import WORKER

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


@dataclass
class Run:
    """One scrape of an agent's endpoint, and what the pages said."""

    text: str
    usage: object
    grant: object
    charged_ns: int

    def samples(self, name: str) -> list:
        """Samples called `name`."""
        families = text_string_to_metric_families(self.text)
        return [one for family in families for one in family.samples if one.name == name]

    def value(self, name: str) -> float:
        (sample,) = self.samples(name)
        return sample.value

    def labels(self) -> dict[str, set[str]]:
        """Labels of each sample's name, as told."""
        found: dict[str, set[str]] = {}
        for family in text_string_to_metric_families(self.text):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
        return found


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def node_snapshot(tenant, grant, who, *, usage, meter, at) -> NodeSnapshot:
    """What an agent hands over, from the same calls."""
    source = open_machine(Path(grant.machine))
    (device,) = source.devices()
    own = [one for one in source.processes(device) if one.tag == tenant.name]
    quota = read_quota(tenant.quota_page)
    events: dict[str, int] = {}
    for event in read_events(tenant.directory):
        events[event["event"]] = events.get(event["event"], 0) + 1
    shares = share_snapshots(
        who, grant, quota.limits, usage, meter=meter,
        measured_bytes={device.uuid: measured_of(own).memory_bytes},
    )  # fmt: skip
    share = grant.devices[0]
    return NodeSnapshot(
        at_mono_ns=at.mono_ns,
        began_wall_ns=at.wall_ns,
        version="0.1.0",
        devices=(
            DeviceSnapshot(
                device.uuid, device.name, device.simulated, available=True,
                memory_capacity_bytes=device.memory_bytes,
                memory_used_bytes=measured_of(own).memory_bytes,
                memory_granted_bytes=share.memory_bytes,
                busy_permille=None, cores_granted_permille=share.cores_permille,
                healthy=True, xids={"13": 2}, foreign_processes=1,
            ),
            DeviceSnapshot(
                "GPU-lost", "NVIDIA H200", simulated=False, available=False,
                memory_capacity_bytes=None, memory_used_bytes=None,
                memory_granted_bytes=0, busy_permille=125, cores_granted_permille=0,
            ),
        ),
        tenants=(
            TenantSnapshot(
                who, grant.mode, suspended=False, processes=len(usage.slots), shares=shares,
                events=events, findings={"uncharged": 1}, heartbeat_ns=at.mono_ns,
            ),
        ),
        meter=meter.health(at),
    )  # fmt: skip


@pytest.fixture
def run(penstock, tmp_path):
    worker = penstock.start("--name=t", "--", sys.executable, str(WORKER), stdin=subprocess.PIPE)
    assert worker.stdout.readline() == "ready\n"
    tenant = Tenant(penstock.state / "tenants" / "t")
    grant = tenant.grant()
    where = {"namespace": "ml", "pod": 'p"0\\', "container": "main"}
    who = identity_of(tenant, grant, where)
    meter = Meter(tmp_path / "meter")
    meter.observe(clock.now(), [reading_of(who, grant, read_usage(tenant.usage_page))])
    for command, answer in (
        ("alloc 512", "ok"), ("alloc 9000", "CUDA_ERROR_OUT_OF_MEMORY"), ("load 1", "ok"),
    ):  # fmt: skip
        worker.stdin.write(command + "\n")
        worker.stdin.flush()
        assert worker.stdout.readline().strip() == answer
    deadline = time.monotonic() + 20
    while "deny" not in {event["event"] for event in read_events(tenant.directory)}:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    exporter = Exporter("node-1")
    port = exporter.serve(port=0)
    assert scrape(port).strip() == ""  # nothing is made up before the first round
    usage = read_usage(tenant.usage_page)
    at = clock.now()
    meter.observe(at, [reading_of(who, grant, usage)])
    assert meter.flush(at, wait_s=10)
    snapshot = node_snapshot(tenant, grant, who, usage=usage, meter=meter, at=at)
    exporter.publish(lambda: snapshot, loop_s=0.004)
    exporter.publish(lambda: snapshot, loop_s=0.3)
    charged_ns = meter.used(who.incarnation, grant.devices[0].uuid).charged_ns
    yield Run(scrape(port), usage, grant, charged_ns)
    exporter.close()
    meter.close()


def test_the_endpoint_tells_what_the_pages_of_a_real_tenant_say(run):
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


def test_what_a_device_does_not_tell_has_no_sample(run):
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


def expressions() -> list[tuple[str, str]]:
    """Where and what: every expression of the dashboard and of the alerts."""
    rules = yaml.safe_load((DEPLOY / "prometheus/rules.yaml").read_text())
    found = [(rule["alert"], rule["expr"]) for group in rules["groups"] for rule in group["rules"]]
    dashboard = json.loads((DEPLOY / "grafana/penstock.json").read_text())
    for panel in dashboard["panels"]:
        found += [(panel["title"], target["expr"]) for target in panel.get("targets", [])]
    for variable in dashboard["templating"]["list"]:
        query = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"])
        if query:
            found.append((variable["name"], f"sum by ({query[2]}) ({query[1]})"))
    return found


def test_dashboard_and_alerts_ask_for_metrics_and_labels_that_there_are(run):
    told = run.labels()
    asked = expressions()
    assert len(asked) > 50
    used = set()
    for title, text in asked:
        expression = promql.read(text)
        known: set[str] = set()
        for name, labels in expression.matched:
            if name == "up":  # Prometheus's own
                known |= {"instance", "job"}
                continue
            assert name in told, f"{title}: {name}"
            assert labels <= told[name], f"{title}: {name} has no {labels - told[name]}"
            known |= told[name]
            used.add(name)
        assert expression.grouped <= known, f"{title}: {expression.grouped - known}"
    # What nobody looks at is a metric too many, or a panel too few.
    assert {name.removesuffix("_bucket") for name in used} >= {
        one.name for _, _, described in metrics.GROUPS for one in described
        if one.name not in UNWATCHED
    }  # fmt: skip


UNWATCHED = {
    "penstock_device_xid_errors_total",  # series that begin at 1, where increase() sees nothing
    "penstock_agent_start_time_seconds",  # for people who ask by hand
    "penstock_meter_pending_rows",
    "penstock_tenant_copies_total",
    "penstock_tenant_host_functions_total",
}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sum(rate(x[5m])", "bracket is open"),
        ("x)", "bracket too many"),
        ("frobnicate(x)", "unknown function"),
        ("1 + 1", "no metric"),
        ('x{a="b"} ? 3', "cannot read"),
        ("", "no metric"),
    ],
)
def test_the_reader_of_expressions_refuses_what_is_none(text, words):
    with pytest.raises(ValueError, match=words):
        promql.read(text)


def test_alerts_say_what_happened_and_what_to_do_and_name_labels_that_are_left(run):
    told = run.labels()
    rules = yaml.safe_load((DEPLOY / "prometheus/rules.yaml").read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        expression = promql.read(rule["expr"])
        known = {label for name, _ in expression.matched for label in told.get(name, ())}
        if " by (" in rule["expr"]:
            known = expression.grouped
        text = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= known | {"instance"}


def test_every_alert_is_tried_out():
    rules = yaml.safe_load((DEPLOY / "prometheus/rules.yaml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    tried = set(
        re.findall(r'alertname="(\w+)"', (DEPLOY / "prometheus/rules_test.yaml").read_text())
    )
    assert tried == alerts


@pytest.fixture(scope="session")
def promtool() -> str:
    """This machine's, or that of Debian's package `prometheus`, which is fetched once."""
    installed = shutil.which("promtool")
    if installed:
        return installed
    try:
        return str(debian.find(ROOT / "build/promtool", "prometheus", "main", "bin/promtool"))
    except debian.NotToBeHadError as why:
        pytest.skip(f"no promtool to read the alert rules with: {why}")


def run_promtool(*command: str) -> str:
    """What it prints.

    Raises:
        AssertionError: it ended with an error, which is the message.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_alerts_fire_and_stay_quiet_as_their_tests_say(promtool):
    run_promtool(promtool, "test", "rules", str(DEPLOY / "prometheus/rules_test.yaml"))


def comparisons() -> list[tuple[str, str, str]]:
    """Each alert with each of its comparisons turned round: its name, the text before and after."""
    rules = yaml.safe_load((DEPLOY / "prometheus/rules.yaml").read_text())
    found = []
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        for sign, opposite in ((" > ", " < "), (" == ", " != ")):
            if sign in rule["expr"]:
                found.append((rule["alert"], rule["expr"], rule["expr"].replace(sign, opposite)))
    return found


@pytest.mark.parametrize(
    ("alert", "before", "after"), comparisons(), ids=[alert for alert, _, _ in comparisons()]
)
def test_an_alert_whose_comparison_is_turned_round_fails_its_tests(
    promtool, tmp_path, alert, before, after
):
    rules = yaml.safe_load((DEPLOY / "prometheus/rules.yaml").read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        if (rule["alert"], rule["expr"]) == (alert, before):
            rule["expr"] = after
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    tests = tmp_path / "rules_test.yaml"
    tests.write_text((DEPLOY / "prometheus/rules_test.yaml").read_text())
    with pytest.raises(AssertionError, match=alert):
        run_promtool(promtool, "test", "rules", str(tests))


def test_prometheus_itself_can_read_alerts_dashboard_and_scrape_configuration(promtool, tmp_path):
    recorded = []
    for number, (_, text) in enumerate(expressions()):
        for variable, value in promql.GRAFANA.items():
            text = text.replace(variable, value)  # noqa: PLW2901
        recorded.append({"record": f"expression_{number}", "expr": text})
    every = tmp_path / "every.yaml"
    every.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": recorded}]}))
    run_promtool(promtool, "check", "rules", str(DEPLOY / "prometheus/rules.yaml"), str(every))
    run_promtool(promtool, "check", "config", str(DEPLOY / "prometheus/scrape.yaml"))


def test_the_scrape_configuration_keeps_the_labels_that_an_agent_tells():
    scrape_config = yaml.safe_load((DEPLOY / "prometheus/scrape.yaml").read_text())
    assert scrape_config["scrape_configs"]
    assert all(one["honor_labels"] for one in scrape_config["scrape_configs"])


def test_panels_of_the_dashboard_lie_side_by_side():
    panels = json.loads((DEPLOY / "grafana/penstock.json").read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_a_port_that_is_taken_is_told_and_tried_again():
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
    """Before, each had a thread: some thousands of them stopped the agent's rounds."""
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


def test_a_request_that_never_ends_is_given_up():
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


def test_a_probe_is_told_when_no_round_ends_any_more(monkeypatch):
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
