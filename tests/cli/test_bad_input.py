"""Bad input: one clear message, exit code 2, nothing started, nothing lost."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import pytest

from penstock.model import nearest

from .conftest import hold

POLICY = """\
apiVersion: penstock.io/v1alpha1
kind: QuotaPolicy
metadata: {name: p}
spec:
  limits: {memory: 8Gi, cores: 30}
"""


def assert_refused(result, *words):
    assert result.returncode == 2, result.stderr
    for word in words:
        assert word in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.fixture
def started(tmp_path):
    """A command that leaves a file behind if it is started."""
    file = tmp_path / "started"
    yield ["--", "touch", str(file)]
    assert not file.exists()


@pytest.mark.parametrize(
    ("memory", "cores", "word"),
    [
        ("8GB", "30", "unknown unit 'GB'"),
        ("0", "30", "must be above 0"),
        ("-1Gi", "30", "must be above 0"),
        ("lots", "30", "not a quantity"),
        ("1", "30", "memory 1 is too little"),
        ("8", "30", "did you mean 8Gi?"),
        ("511", "30", "memory 511 is too little"),
        ("8Gi", "0", "must be above 0"),
        ("8Gi", "130", "more than a whole device"),
        ("8Gi", "-5", "must be above 0"),
        ("8Gi", "12.34", "finer than the step"),
        ("8Gi", "30 cores", "unknown unit 'cores'"),
        ("800Gi", "30", "more than the device has"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(penstock, started, memory, cores, word):
    assert_refused(penstock.run(*started, memory=memory, cores=cores), word)
    assert penstock.tenants() == []


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--device=7"], "unknown device '7'"),
        (["--device=GPU-ffff"], "unknown device 'GPU-ffff'"),
        (["--device=0,0"], "named twice"),
        (["--device="], "has an empty word"),
        (["--simulate=h300"], "did you mean h200?"),
        (["--simulate=h200,99"], "1 to 16 devices"),
        (["--simulate=/no/such.yaml"], "/no/such.yaml"),
        (["--name=a/b"], "not usable"),
        (["--name=.."], "not usable"),
        (["--mode=stric"], "'stric' is not strict or elastic; did you mean strict?"),
        (["--mode=best"], "'best' is not strict or elastic\n"),
        (["--mode=fast"], "'fast' is not strict or elastic\n"),
        (["--mode=el"], "did you mean elastic?"),
        (["--policy=/no/such.yaml"], "cannot be read"),
        (["--colour"], "--colour"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(penstock, started, arguments, word):
    assert_refused(penstock.run(*arguments, *started), word)
    assert penstock.tenants() == []


def test_a_missing_limit_is_refused_and_named(penstock, started):
    result = penstock("run", "--simulate=h200", "--memory=1Gi", *started)
    assert_refused(result, "no policy is given", "add --cores 30")


@pytest.mark.parametrize("memory", ["0x10", "1:30", "511"])
def test_policy_check_and_run_agree_on_the_least_memory(penstock, started, tmp_path, memory):
    file = tmp_path / "p.yaml"
    file.write_text(POLICY.replace("8Gi", memory))
    assert_refused(penstock("policy", "check", str(file)), "p.yaml:5:20", "is too little")
    assert_refused(penstock.run(f"--policy={file}", *started, memory=None), "is too little")


def test_the_amount_that_a_refusal_names_is_granted(penstock):
    refused = penstock("run", "--simulate=l4", "--memory=24Gi", "--cores=30", "--", "true")
    assert_refused(refused, "request at most ")
    most = refused.stderr.strip().rpartition(" ")[2]
    granted = penstock("run", "--simulate=l4", f"--memory={most}", "--cores=30", "--", "true")
    assert granted.returncode == 0, granted.stderr


@pytest.mark.parametrize("output", ["xml", "jason", "fast"])
def test_an_unknown_output_format_is_refused_and_a_near_one_suggested(penstock, output):
    result = penstock("ps", "-o", output)
    assert_refused(result, f"{output!r} is not table or json or yaml")
    assert ("did you mean json?" in result.stderr) == (output == "jason")
    assert ("did you mean" in result.stderr) == (output == "jason")
    assert "Value error" not in result.stderr


@pytest.mark.parametrize(("profile", "word"), [("nope", "no device profile"), ("none", "NVIDIA")])
def test_a_benchmark_of_a_device_that_does_not_exist_is_refused(penstock, tmp_path, profile, word):
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    result = penstock(
        "bench", "launch", f"--simulate={profile}", env={"LD_LIBRARY_PATH": str(tmp_path)}
    )
    assert_refused(result, word)
    assert "penstock-latency" not in result.stderr


def test_without_driver_and_without_simulation_nothing_starts(penstock, started, tmp_path):
    # An empty library path stands in front of any driver that the machine may have.
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    result = penstock(
        "run", "--memory=1Gi", "--cores=10", *started, env={"LD_LIBRARY_PATH": str(tmp_path)}
    )
    assert_refused(result, "no NVIDIA driver on this machine", "--simulate h200")
    assert penstock.tenants() == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (POLICY.replace("cores: 30", "coers: 30"), ["p.yaml:5:25: spec.limits.coers", "cores?"]),
        (POLICY.replace("8Gi", "8GB"), ["p.yaml:5:20: spec.limits.memory", "unknown unit 'GB'"]),
        (POLICY[:-8], ["p.yaml:5:28", "not valid YAML (cut short?)"]),
        (POLICY[:60], ["spec: is missing"]),
        ("", ["it is empty"]),
        (POLICY + "  selector: {command: other}\n", ["no policy matches the command 'touch'"]),
        (POLICY + "---\n" + POLICY.replace("name: p", "name: q"), ["2 policies match"]),
        (POLICY.replace("cores: 30", "tflops: 5000"), ["more than the 989.5 TFLOPS"]),
        (POLICY.replace(", cores: 30", ""), ["neither given nor in policy p", "add --cores 30"]),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_used_is_refused(penstock, started, tmp_path, content, words):
    (tmp_path / "p.yaml").write_text(content)
    result = penstock.run(f"--policy={tmp_path}/p.yaml", *started, memory=None)
    assert_refused(result, *words)
    assert penstock.tenants() == []


def test_policy_check_reports_and_never_tracebacks(penstock, tmp_path):
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(POLICY)
    bad.write_text(POLICY.replace("8Gi", "8GB"))
    assert penstock("policy", "check", str(good)).stdout == f"{good}:1: QuotaPolicy p: ok\n"
    assert_refused(penstock("policy", "check", str(good), str(bad)), "unknown unit 'GB'")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nobody", "--cores=20"], "no tenant 'nobody'"),
        (["t"], "nothing to change"),
        (["t", "--cores=0"], "must be above 0"),
        (["t", "--memory=8GB"], "unknown unit 'GB'"),
        (["t", "--memory=1"], "memory 1 is too little"),
        (["t", "--memory=800Gi"], "more than the device has"),
        (["t", "--cores=20", "--device=3"], "unknown device '3'"),
    ],
)
def test_a_resize_that_makes_no_sense_changes_nothing(penstock, arguments, word):
    directory = hold(penstock)
    before = (directory / "grant.yaml").read_text()
    assert_refused(penstock("quota", "set", *arguments), word)
    assert (directory / "grant.yaml").read_text() == before


def test_a_quota_page_of_another_version_is_refused(penstock):
    page = hold(penstock) / "quota"
    with page.open("r+b") as stream:
        stream.seek(8)
        stream.write((99).to_bytes(4, "little"))
    assert_refused(penstock("quota", "show", "t"), str(page), "another version")
    before = (page.parent / "grant.yaml").read_text()
    assert_refused(penstock("quota", "set", "t", "--cores=20"), str(page), "another version")
    assert (page.parent / "grant.yaml").read_text() == before
    (row,) = penstock.ps()
    assert "another version" in row["problem"]


def test_a_truncated_quota_page_is_refused(penstock):
    page = hold(penstock) / "quota"
    os.truncate(page, 100)
    assert_refused(penstock("quota", "show", "t"), str(page))


def test_a_truncated_usage_page_never_ends_the_tenant(penstock):
    directory = hold(penstock)
    os.truncate(directory / "usage", 100)
    (row,) = penstock.ps()
    assert str(directory / "usage") in row["problem"]
    assert penstock.started[0].poll() is None


def test_a_state_directory_that_others_can_write_is_refused(penstock, started):
    penstock.state.mkdir(mode=0o777)
    penstock.state.chmod(0o777)
    result = penstock.run(*started)
    assert_refused(result, "cannot be trusted as a state directory", "name another directory with")
    assert "remove" not in result.stderr


def test_an_empty_state_directory_is_refused_and_not_taken_for_the_current_one(penstock, started):
    for command in (["ps"], penstock.run_arguments(started, "1Gi", "10")):
        result = penstock(command[0], "--state-dir", "", *command[1:])
        assert_refused(result, "--state-dir", "its name is empty")


def test_doctor_gives_its_advice_on_the_state_directory_once(penstock):
    penstock.state.mkdir(mode=0o700)
    (penstock.state / "machines").write_text("")
    found = json.loads(penstock("doctor", "-o", "json").stdout)["findings"]
    (said,) = [one for one in found if one["check"] == "state directory"]
    assert f"{penstock.state}/machines cannot be trusted" in said["seen"]
    assert "--state-dir" not in said["seen"]
    assert "--state-dir" in said["advice"]


def test_a_state_directory_that_cannot_be_made_is_refused(penstock, started, tmp_path):
    penstock.state.write_text("a file")
    assert_refused(penstock.run(*started), "as a state directory")


@pytest.mark.parametrize("name", ["lock", "machines/h200x1"])
def test_a_directory_in_the_place_of_a_file_is_refused_with_advice(penstock, started, name):
    (penstock.state / name).mkdir(parents=True)
    for folder in (penstock.state, *penstock.state.rglob("*")):
        folder.chmod(0o700)
    assert_refused(penstock.run(*started), str(penstock.state / name), "rename that directory")


def test_files_and_links_among_the_tenants_are_left_alone(penstock, tmp_path):
    hold(penstock)
    folder = penstock.state / "tenants"
    (folder / "notes").write_text("mine")
    (folder / ".gone-notes").write_text("mine")
    (folder / "link").symlink_to(tmp_path)
    (folder / ".gone-link").symlink_to(tmp_path)
    (folder / ".gone-old-1").mkdir()
    assert [row["tenant"] for row in penstock.ps()] == ["t"]
    assert penstock.tenants() == [".gone-link", ".gone-notes", "link", "notes", "t"]
    assert tmp_path.is_dir()
    assert_refused(penstock.run("--name=notes", "--", "true"), "'notes' already exists")


def test_a_damaged_grant_is_an_error_that_names_the_file(penstock, started):
    directory = hold(penstock)
    (directory / "grant.yaml").write_text("spec: [")
    assert_refused(penstock.run(*started), str(directory / "grant.yaml"))


def test_a_full_disk_is_an_error_and_leaves_nothing_behind(penstock, started):
    # A limit on file sizes stands for the full disk: writing the pages fails.
    arguments = penstock.run_arguments(started, "1Gi", "10")
    limited = f"ulimit -f 8; exec {sys.executable} -m penstock {shlex.join(arguments)}"
    result = subprocess.run(
        ["bash", "-c", limited],
        env=penstock.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert_refused(result)
    assert penstock.tenants() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--name="], "name"), (["--device=0,"], "has an empty word")],
    ids=["empty name", "comma at the end"],
)
def test_an_empty_argument_is_an_error_and_not_ignored(penstock, options, words):
    result = penstock.run(*options, "--", "true")
    assert result.returncode == 2
    assert words in result.stderr
    assert penstock.tenants() == []


def test_a_profile_that_is_not_there_is_named_once_without_an_error_number(penstock):
    result = penstock("simulate", "./none.yaml", "--", "true")
    assert result.returncode == 2
    assert "No such file or directory" in result.stderr
    assert "Errno" not in result.stderr
    assert result.stderr.count("none.yaml") == 1


READERS = [
    ["ps"],
    ["ps", "-o", "json"],
    ["top"],
    ["top", "-o", "json"],
    ["quota", "show", "t"],
    ["quota", "set", "t", "--cores=20"],
]


@pytest.mark.parametrize("arguments", READERS, ids=" ".join)
def test_a_mistyped_state_directory_is_an_error_and_is_not_made(penstock, tmp_path, arguments):
    folder = tmp_path / "typo"
    result = penstock(*arguments, f"--state-dir={folder}")
    assert_refused(result, f"there is no state directory {folder}", "check its spelling")
    assert not folder.exists()


@pytest.mark.parametrize("arguments", READERS[:4], ids=" ".join)
def test_without_the_default_state_directory_there_are_no_tenants(penstock, arguments):
    result = penstock(*arguments)
    assert result.returncode == 0, result.stderr
    assert ("json" in arguments) == (result.stdout == "[]\n")
    assert not penstock.state.exists()


def test_commands_that_only_read_create_nothing_in_a_directory_that_is_no_state_directory(
    penstock, tmp_path
):
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o700)
    assert penstock("ps", f"--state-dir={folder}").stdout == "no tenants\n"
    assert_refused(
        penstock("quota", "set", "t", "--cores=20", f"--state-dir={folder}"), "no tenant"
    )
    assert list(folder.iterdir()) == []


def test_a_directory_is_no_command(penstock, tmp_path):
    for result in (
        penstock.run("--", str(tmp_path)),
        penstock("simulate", "h200", "--", str(tmp_path)),
    ):
        assert result.returncode == 126
        assert f"cannot run '{tmp_path}': Is a directory" in result.stderr


def test_simulate_without_a_command_says_that_it_is_missing(penstock):
    assert_refused(penstock("simulate", "h200", "--"), "the command is missing", "-- COMMAND")


def test_only_near_words_are_suggested():
    assert nearest("stric", ["strict", "elastic"]) == "strict"
    assert nearest("Memroy", ["memory", "cores"]) == "memory"
    assert nearest("el", ["strict", "elastic"]) == "elastic"
    assert nearest("fast", ["strict", "elastic"]) is None
    assert nearest("xml", ["table", "json", "yaml"]) is None
    assert nearest("", ["strict"]) is None
