"""`penstock usage`, run as people run it."""

from __future__ import annotations

import json
import time

import pytest
import yaml
from tests.meter.support.metering import GIB, UUID, S, another, reading

from penstock.node.metering import clock
from penstock.node.metering.clock import Moment
from penstock.node.metering.meter import Meter

OTHER = UUID[:-1] + "2"


@pytest.fixture
def metered(tmp_path):
    """Half an hour ago two tenants worked for ten minutes; three hours ago another one did."""
    directory = tmp_path / "meter"
    real = clock.now()

    def ago(seconds: float) -> Moment:
        back = round(seconds * S)
        return Moment(real.wall_ns - back, 10**15 - back, "some-boot")

    meter = Meter(directory, at=ago(10_801))
    for who, uuid, begin, spent, held in (
        (another(0, tenant="old", user="carol"), UUID, 10_800, 500, 0),
        (another(1, tenant="train", user="alice", policy="batch"), UUID, 1800, 300, 4 * GIB),
        (another(2, tenant="infer", user="bob"), OTHER, 1800, 120, GIB),
    ):
        zero = reading(0, held, who=who, uuid=uuid, origin_ns=ago(begin).mono_ns)
        meter.observe(ago(begin), [zero])
        meter.close_tenant(
            ago(begin - 600), reading(spent, held, who=who, uuid=uuid, origin_ns=0), wait_s=10
        )
    assert meter.close(ago(0), wait_s=10)
    return directory


def usage(penstock, directory, *arguments):
    done = penstock("usage", "--meter-dir", str(directory), *arguments, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_last_hour_by_tenant_user_policy_and_device(penstock, metered):
    said = usage(penstock, metered)
    assert [row["tenant"] for row in said["usage"]] == ["train", "infer"]
    train = said["usage"][0]
    assert train["device_seconds"] == 300.0
    assert train["device_ns"] == 300 * S
    assert train["memory_byte_seconds"] == 600 * 4 * GIB
    assert train["metered_seconds"] == 600.0
    assert (train["user"], train["policy"]) == ("alice", "batch")
    by_user = usage(penstock, metered, "--by", "user", "--since", "7d")["usage"]
    assert {row["user"]: row["device_seconds"] for row in by_user} == {
        "carol": 500.0, "alice": 300.0, "bob": 120.0,
    }  # fmt: skip
    by_device = usage(penstock, metered, "--by", "device", "--since", "4h")["usage"]
    assert {row["device_uuid"]: row["device_seconds"] for row in by_device} == {
        UUID: 800.0, OTHER: 120.0,
    }  # fmt: skip
    by_policy = usage(penstock, metered, "--by", "policy")["usage"]
    assert {row["policy"]: row["devices"] for row in by_policy} == {"batch": 1, "small": 1}


def test_a_time_between_two_dates_and_one_tenant(penstock, metered):
    def date(ago_s: float) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - ago_s))

    said = usage(penstock, metered, "--since", date(14_000), "--until", date(9000))
    assert [row["tenant"] for row in said["usage"]] == ["old"]
    said = usage(penstock, metered, "infer", "--since", "1d", "--until", "2m")
    assert [row["tenant"] for row in said["usage"]] == ["infer"]


def test_table_and_yaml_say_the_same(penstock, metered):
    table = penstock("usage", "--meter-dir", str(metered))
    assert "train" in table.stdout
    assert "300.000s" in table.stdout
    assert "0.667 GiBh" in table.stdout
    assert "old" not in table.stdout
    plain = penstock("usage", "--meter-dir", str(metered), "-o", "yaml").stdout
    assert yaml.safe_load(plain)["usage"][0]["device_seconds"] == 300.0
    none = penstock("usage", "--meter-dir", str(metered), "--since", "1m", "--until", "now")
    assert "no usage since" in none.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--since", "yesterday"], "invalid time 'yesterday' for --since"),
        (["--since", "1h", "--until", "2h"], "empty time range"),
        (["tran"], "did you mean train?"),
        (["--since", "99999999999999999d"], "invalid time"),
        (["--by", "usr"], "did you mean user?"),
    ],
)
def test_options_that_make_no_sense_are_refused(penstock, metered, arguments, words):
    done = penstock("usage", "--meter-dir", str(metered), *arguments)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_where_nothing_was_ever_metered_the_command_makes_nothing(penstock, tmp_path):
    done = penstock("usage", "--meter-dir", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "start penstock agent" in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_file_of_rubbish_is_reported_as_unreadable(penstock, tmp_path):
    (tmp_path / "meter.db").write_bytes(b"\xa5" * 20_000)
    done = penstock("usage", "--meter-dir", str(tmp_path))
    assert done.returncode == 2
    assert "cannot be read" in done.stderr
