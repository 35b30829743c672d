"""Devices of a pool are granted by the pool alone, and others are told so."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from tests.agent.conftest import request, wait_until
from tests.pool_node.support.manager import GIB

from penstock.devices import Device
from penstock.devices.rate_file import rate_in, read_rates
from penstock.model import PenstockError
from penstock.node.agent.device_task import OK
from penstock.node.agent.pool_devices import PoolDevices, PoolOptions


def test_others_who_name_a_device_of_the_pool_are_told_whose_it_is(make_member, manager):
    member = make_member("--pool-devices=0")
    manager.wait_joined()
    with member.client() as agent, pytest.raises(PenstockError) as raised:
        agent.grant(request("mine", devices=("0",)))
    assert raised.value.reason == "not-allowed"
    assert "device 0 belongs to the compute pool" in raised.value.what
    assert "penstock pool acquire" in raised.value.fix
    done = member("run", "--device", "0", "--memory", "1Gi", "--cores", "10", "--", "true")
    assert done.returncode == 2
    assert "belongs to the compute pool" in done.stderr
    assert [one.owner for one in member.devices()] == ["pool", ""]


def test_automatic_choice_takes_a_device_that_is_not_the_pools(make_member, manager):
    member = make_member("--pool-devices=0")
    manager.wait_joined()
    granted = member.tenant("mine", cores=100)
    assert [share.device_index for share in granted.tenant.shares] == [1]
    with member.client() as agent:
        agent.grant(request("candidate", cores=100, candidates=("0", "1")))
        assert agent.tenants()[0].shares[0].device_index == 1
        with pytest.raises(PenstockError, match="belongs to the compute pool"):
            agent.grant(request("none", cores=100, candidates=("0",)))


def test_a_node_whose_devices_are_all_the_pools_grants_nothing_to_others(member):
    with pytest.raises(PenstockError, match="belongs to the compute pool"):
        member.tenant("mine")


def test_penstock_run_without_an_agent_leaves_the_pools_devices_alone(
    make_member, manager, tmp_path
):
    member = make_member("--pool-devices=0")
    manager.wait_joined()
    member.stop()
    run = ["run", "--no-agent", "--simulate=h200,2", "--memory=1Gi", "--cores=10"]
    done = member(*run, "--device=0", "--", "true")
    assert done.returncode == 2
    assert "belongs to the compute pool" in done.stderr
    done = member(*run, "--", "true")
    assert "device 1" in done.stderr, done.stderr


def joins_without_the_first_device(member, options, manager):
    member.options = options
    member.start()
    manager.wait_joined()
    first, second = manager.report.cards
    assert "mine has shares of it that are not the pool's" in first.left_out
    assert second.left_out == ""


def test_a_device_with_shares_of_others_joins_once_they_have_ended(make_member, manager):
    member = make_member(start=False)
    in_pool, member.options = member.options, member.options[:1]
    member.start()
    member.tenant("mine", cores=100, devices=("0",))
    member.stop()
    joins_without_the_first_device(member, in_pool, manager)
    with pytest.raises(PenstockError, match="belongs to the compute pool"):
        member.tenant("another", devices=("0",))  # it would never become free
    assert member("revoke", "mine").returncode == 0
    manager.wait(lambda: manager.report.cards[0].left_out == "")


def test_a_released_tenant_keeps_its_device_out_of_the_pool_and_cannot_go_to_the_pools(
    make_member, manager
):
    member = make_member(start=False)
    in_pool, member.options = member.options, member.options[:1]
    member.start()
    member.tenant("mine", cores=100, devices=("0",))
    assert member("suspend", "mine", "--release-memory").returncode == 0
    member.stop()
    joins_without_the_first_device(member, in_pool, manager)
    done = member("resume", "mine", "--device", "1")
    assert done.returncode == 2
    assert "device 1 belongs to the compute pool" in done.stderr
    assert member("resume", "mine").returncode == 0
    assert manager.report.cards[0].left_out


def test_a_card_without_rated_tflops_is_left_out_and_stays_everybodys():
    device = Device(0, "GPU-1", "Unheard-of 1000", GIB, 1 << 20, None, simulated=True)
    node = SimpleNamespace(devices=[device], machine=None)
    registry = SimpleNamespace(grants=list)
    health = SimpleNamespace(health=lambda _: OK, report_of=lambda _: None)
    devices = PoolDevices(node, registry, health, PoolOptions())
    assert devices.choose() == frozenset()
    (card,) = devices.cards()
    assert "start the agent with --pool-tflops GPU-1=TFLOPS" in card.left_out
    devices.options = PoolOptions(tflops={"0": 60.0})
    assert devices.choose() == {"GPU-1"}
    assert devices.cards()[0].left_out == ""


def test_the_operator_rates_a_card(make_member, manager):
    member = make_member("--pool-tflops=1=60")
    manager.wait_joined()
    assert [card.tflops for card in manager.report.cards] == [989.5, 60.0]
    assert member.started["event"] == "started"


def test_the_operators_table_of_rates_comes_before_the_known_ones(make_member, manager, tmp_path):
    table = tmp_path / "rates.yaml"
    table.write_text("H200: {bf16: 500, fp8: 2000}\nX100: {bf16: 1}\n")
    make_member(f"--pool-rates={table}", "--pool-tflops=1=60")
    manager.wait_joined()
    assert [card.tflops for card in manager.report.cards] == [500, 60]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it has no model"),
        ("[1]", "it has no model"),
        ("H200: 5", "H200 has no rate"),
        ("5: {bf16: 1}", "5 is no name of a model"),
        ("H200: {bf17: 5}", "unknown precision 'bf17'"),
        ("H200: {bf16: .nan}", "nan is not a number from 1"),
        ("H200: {bf16: yes}", "True is not a number"),
        ("H200: {bf16: 0.5}", "0.5 is not a number"),
        ("H200: {bf16: ", "flow node"),
        ("\0", "cannot be used"),
        ("\U0001f600" * 300_000, "cannot be used"),
    ],
)
def test_a_table_of_rates_that_cannot_be_meant_is_refused(tmp_path, text, says):
    file = tmp_path / "rates.yaml"
    file.write_text(text)
    with pytest.raises(PenstockError, match=r"the rated TFLOPS in .* cannot be used") as raised:
        read_rates(file)
    assert says in str(raised.value)


def test_the_longest_name_of_a_model_decides_about_its_rate():
    table = {"H200": {"bf16": 500.0}, "H200 NVL": {"bf16": 400.0, "fp8": 800.0}}
    assert rate_in(table, "NVIDIA H200-NVL", "bf16") == 400
    assert rate_in(table, "NVIDIA H200", "bf16") == 500
    assert rate_in(table, "NVIDIA H200", "fp8") is None
    assert rate_in(table, "NVIDIA H2000", "bf16") is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--pool-rates=/nowhere"], "No such file"),
        (["--pool-devices=7"], "unknown device '7'"),
        (["--pool-tflops=7=60"], "unknown device '7'"),
        (["--pool-tflops=0=none"], "invalid value '0=none' for --pool-tflops"),
        (["--pool-tflops=0=nan"], "invalid rating nan"),
        (["--pool-tflops=60"], "invalid value '60' for --pool-tflops"),
        (["--pool=manager"], "invalid address of a pool: 'manager'"),
        (["--pool=manager:9472"], "the pool needs mutual TLS"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_at_the_start(make_member, options, says):
    member = make_member(*options, start=False)
    done = member(*member.agent_command())
    assert done.returncode == 2
    assert says in done.stderr


def test_tenants_of_the_pool_are_changed_by_the_pool_alone(member, manager, shares):
    manager.want("app1", shares((0, 8, 300)))
    manager.wait_for("app1", "running")
    for order in (
        ["quota", "set", "app1", "--cores", "20"],
        ["suspend", "app1"],
        ["resume", "app1"],
        ["revoke", "app1"],
    ):
        done = member(*order)
        assert done.returncode == 2, order
        assert "belongs to the compute pool" in done.stderr
        assert "penstock pool release app1" in done.stderr
    with member.client() as agent, pytest.raises(PenstockError, match="may not set the labels"):
        agent.grant(request("forged", labels={"penstock.io/pool": "pool-1"}))


def test_an_agent_without_pool_keeps_the_pools_tenants_and_devices_to_their_end(
    member, manager, shares
):
    manager.want("app1", shares((0, 8, 300)))
    manager.wait_for("app1", "running")
    member.stop()
    member.options = member.options[:1]
    member.start()
    assert list(member.tenants()) == ["app1"]
    wait_until(lambda: member.logged("tenants of a pool are left"))
    wait_until(lambda: [one.owner for one in member.devices()] == ["pool", ""])
    with pytest.raises(PenstockError, match="belongs to the compute pool"):
        member.tenant("mine", devices=("0",))
    assert member("revoke", "app1").returncode == 0  # now its administrator decides
    wait_until(lambda: [one.owner for one in member.devices()] == ["", ""])
    assert not (member.state / "pool.json").exists()
    member.tenant("mine", devices=("0",))


def test_devices_and_ps_show_whose_they_are(member, manager, shares):
    manager.want("app1", shares((0, 8, 300)))
    manager.wait_for("app1", "running")
    found = json.loads(member("devices", "-o", "json").stdout)
    simulated = next(one for one in found["kinds"] if one["kind"] == "simulated")
    assert [one["attributes"]["owner"] for one in simulated["devices"]] == ["pool", "pool"]
    for command in (["devices"], ["ps"]):
        said = " ".join(member(*command).stdout.split())
        assert "devices 0, 1 belong to the compute pool" in said
    assert "the compute pool's devices: 0, 1" in " ".join(member("doctor").stdout.split())
