"""Device profiles: those that come with Penstock, and the errors of bad ones."""

from __future__ import annotations

import os

import pytest
import yaml

from penstock_shim.simulator import (
    MachineError,
    ProfileError,
    create_machine,
    load_profile,
    profile_names,
)

FP32_LANES_PER_SM = {(7, 5): 64, (8, 0): 64, (8, 9): 128, (9, 0): 128}

SMALL = """\
name: Small GPU
rated_tflops: {source: made up, fp32: 1, fp16: 8}
device: {source: made up, compute_capability: "8.0", sm_count: 4}
memory: {source: made up, memory_mib: 1024, bandwidth_gb_per_s: 100}
board: {source: made up}
"""


def test_the_cards_that_the_documents_name_have_profiles():
    assert {"h200", "h100", "a100-80g", "l4", "t4"} <= set(profile_names())


@pytest.mark.parametrize("name", profile_names())
def test_the_rated_single_precision_rate_is_lanes_times_clock(name):
    profile = load_profile(name)
    lanes = profile.sm_count * FP32_LANES_PER_SM[profile.compute_capability]
    tflops = lanes * 2 * profile.figures["board.sm_clock_mhz"] * 1e6 / 1e12
    assert profile.rated_tflops.fp32 == pytest.approx(tflops, rel=0.01)


@pytest.mark.parametrize("name", profile_names())
def test_the_rated_bandwidth_is_bus_times_clock(name):
    profile = load_profile(name)
    bytes_per_s = (
        profile.figures["memory.bus_bits"] / 8 * 2 * profile.figures["board.memory_clock_mhz"] * 1e6
    )
    assert profile.memory_bytes_per_second == pytest.approx(bytes_per_s, rel=0.03)


@pytest.mark.parametrize("name", profile_names())
def test_every_group_of_figures_says_where_they_come_from(name):
    profile = load_profile(name)
    assert set(profile.sources) == {"rated_tflops", "device", "memory", "board", "estimates"}
    assert profile.sources["estimates"].startswith("estimated")


def test_rates_without_a_format_are_absent_not_zero():
    t4 = load_profile("T4")
    assert (t4.rated_tflops.tf32, t4.rated_tflops.fp8) == (None, None)


def test_an_unknown_name_is_answered_with_the_nearest_and_the_list():
    with pytest.raises(ProfileError, match=r"did you mean a100-80g\?.*h200, l4, t4"):
        load_profile("a100-80gb")


def test_a_file_of_ones_own_is_a_profile(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(
        SMALL + 'kernels:\n  - {pattern: "gemm*", duration_us: 1.5}\n'
        '  - {pattern: "spin", parameter: 0}\n'
    )
    profile = load_profile(path)
    assert profile.memory_bytes == 1 << 30
    assert [(rule.pattern, rule.duration_ns, rule.parameter) for rule in profile.kernels] == [
        ("gemm*", 1500, None),
        ("spin", 0, 0),
    ]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (SMALL.replace("sm_count", "sm_cuont"), 3, "did you mean 'sm_count'"),
        (SMALL.replace("fp32: 1,", ""), 2, "'fp32' is missing in rated_tflops"),
        (SMALL.replace("1024", "lots"), 4, "memory_mib must be a number from 64 to .*, not lots"),
        (SMALL.replace("1024", "-5"), 4, "not -5"),
        (SMALL.replace("1024", ".nan"), 4, "not .nan"),
        (SMALL.replace('"8.0"', "eight"), 3, 'must be like "9.0"'),
        (SMALL.replace("name: Small GPU\n", ""), 1, "'name' is missing"),
        (SMALL + "board: {source: again}\n", 6, "'board' is given twice"),
        (SMALL + "estimates: {source: x, context_mib: 0}\n", 6, "from 1 to"),
        (SMALL + "kernels: [{pattern: x}]\n", 6, "a duration_us or a parameter"),
        (SMALL + "memory\n", 6, "not YAML"),
        ("a: [1, 2\n", 1, "not YAML"),
        ("- 1\n", 1, "must be a mapping of keys to values"),
        ("", 1, "is empty"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path, text, line, problem):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=problem) as refused:
        load_profile(path)
    assert str(refused.value).startswith(f"{path}:{line}: ")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ProfileError, match=r"cannot read the device profile .*none\.yaml"):
        load_profile(tmp_path / "none.yaml")


@pytest.mark.parametrize("name", profile_names())
def test_profiles_are_plain_yaml(name):
    assert yaml.safe_load(load_profile(name).path.read_text())["name"] == load_profile(name).name


def test_a_profile_that_no_machine_can_be_made_of_is_named_by_its_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(SMALL + "estimates: {source: made up, reserved_mib: 4096}\n")
    with pytest.raises(MachineError) as caught:
        create_machine(tmp_path / "machine", str(file))
    assert str(file) in str(caught.value)
    assert ".machine-" not in str(caught.value)


def test_bounds_are_written_without_exponents(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(SMALL.replace("memory_mib: 1024", "memory_mib: 0"))
    with pytest.raises(ProfileError, match="from 64 to 16777216, not 0"):
        load_profile(file)


def test_a_pipe_as_a_profile_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "mine.yaml")
    with pytest.raises(ProfileError, match="not a regular file"):
        load_profile(tmp_path / "mine.yaml")
