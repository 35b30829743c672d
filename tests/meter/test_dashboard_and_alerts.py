"""The dashboard and the alerts ask for metrics that there are, and alerts fire when they should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.interposition.support import debian_packages
from tests.meter.support import promql

from penstock.node.metering import metrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def expressions() -> list[tuple[str, str]]:
    """Every expression of the dashboard and of the alerts, with the name of its place."""
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


def test_dashboard_and_alerts_use_metrics_and_labels_that_exist(run):
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
    "penstock_agent_start_time_seconds",  # for queries by hand
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
def test_the_reader_of_expressions_refuses_text_that_is_no_expression(text, words):
    with pytest.raises(ValueError, match=words):
        promql.read(text)


def test_alerts_say_what_happened_and_what_to_do_and_name_labels_that_exist_then(run):
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
        return str(
            debian_packages.find(ROOT / "build/promtool", "prometheus", "main", "bin/promtool")
        )
    except debian_packages.NotToBeHadError as why:
        pytest.skip(f"no promtool to read the alert rules with: {why}")


def run_promtool(*command: str) -> str:
    """Its output.

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


def test_the_scrape_configuration_keeps_the_labels_that_an_agent_sets():
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
