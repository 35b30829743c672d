"""Policy files: what is valid is read exactly; what is not is refused with file, line and key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import PenstockError
from penstock.policy import PolicyError, json_schema, load_files, load_text, policy_for_command

GOOD = """\
apiVersion: penstock.io/v1alpha1
kind: QuotaPolicy
metadata: {name: small-inference}
spec:
  selector: {matchLabels: {app: ranker}}
  devices: {kind: gpu, count: 1}
  limits: {memory: 8Gi, cores: 30}
  mode: elastic
  priority: 100
  onExceed: {request: deny, measured: terminate, grace: 10s}
  scale:
    min: 1
    max: 8
    metrics: {cpu: {up: 80, down: 40}, memory: {up: 85, down: 50},
              cores: {up: 80, down: 30}, qps: {up: 100, down: 20}}
    stabilization: 60s
"""


def problems_of(text):
    with pytest.raises(PolicyError) as caught:
        load_text(text, "p.yaml")
    return caught.value.problems


def only_problem_of(text):
    problems = problems_of(text)
    assert len(problems) == 1, [str(problem) for problem in problems]
    return problems[0]


def minimal(limits="memory: 1Gi", extra="", name="p"):
    return (
        "apiVersion: penstock.io/v1alpha1\nkind: QuotaPolicy\n"
        f"metadata: {{name: {name}}}\nspec:\n  limits: {{{limits}}}\n{extra}"
    )


def test_the_whole_schema_is_read_into_exact_integers():
    (loaded,) = load_text(GOOD, "p.yaml")
    spec = loaded.policy.spec
    assert (spec.limits.memory, spec.limits.cores) == (8 << 30, 300)
    assert (spec.mode, spec.priority, spec.on_exceed.grace) == ("elastic", 100, 10**10)
    assert spec.scale is not None
    assert spec.scale.metrics.qps is not None
    assert (spec.scale.max, spec.scale.metrics.qps.up, spec.scale.stabilization) == (
        8,
        100,
        60 * 10**9,
    )


def test_several_documents_in_one_file_are_several_policies():
    text = minimal(name="a") + "---\n" + minimal(name="b") + "---\n"
    loaded = load_text(text, "p.yaml")
    assert [policy.name for policy in loaded] == ["a", "b"]
    assert [policy.position.line for policy in loaded] == [1, 7]


def test_an_unknown_key_is_named_with_its_line_and_the_nearest_valid_key():
    problem = only_problem_of(
        GOOD.replace("limits:", "limit:  ").replace("limit:  ", "limits: {memory: 1Gi}\n  limit:")
    )
    assert str(problem).startswith("p.yaml:8:3: spec.limit: unknown key; did you mean limits?")


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "message"),
    [
        ("memory: 8Gi", "memory: 8GB", 7, "spec.limits.memory", "unknown unit 'GB'"),
        ("memory: 8Gi", "memory: 0", 7, "spec.limits.memory", "must be above 0"),
        ("memory: 8Gi", "memory: -8Gi", 7, "spec.limits.memory", "must be above 0"),
        ("cores: 30", "cores: 0", 7, "spec.limits.cores", "must be above 0"),
        ("cores: 30", "cores: 130", 7, "spec.limits.cores", "more than a whole device"),
        ("cores: 30", "cores: 30, tflops: 120", 7, "spec.limits", "both cores and tflops"),
        ("{memory: 8Gi, cores: 30}", "{}", 7, "spec.limits", "is empty"),
        ("{memory: 8Gi, cores: 30}", "8Gi", 7, "spec.limits", "must be a mapping"),
        ("count: 1", "count: 0", 6, "spec.devices.count", "greater than or equal to 1"),
        ("count: 1", "count: yes", 6, "spec.devices.count", "valid integer"),
        ("kind: gpu", "kind: fpga", 6, "spec.devices.kind", "use 'gpu'"),
        ("mode: elastic", "mode: elastc", 8, "spec.mode", "did you mean elastic?"),
        ("priority: 100", "priority: high", 9, "spec.priority", "valid integer"),
        ("grace: 10s", "grace: 10", 10, "spec.onExceed.grace", "no unit"),
        ("measured: terminate", "measured: kill", 10, "spec.onExceed.measured", "'terminate'"),
        ("min: 1", "min: 9", 11, "spec.scale", "min (9) must be at most max (8)"),
        ("up: 80, down: 40", "up: 40, down: 80", 14, "spec.scale.metrics.cpu", "above down"),
        ("up: 80, down: 40", "up: 180, down: 40", 14, "spec.scale.metrics.cpu.up", "equal to 100"),
        ("stabilization: 60s", "stabilization: 9 hours", 16, "spec.scale.stabilization", "unit"),
        ("{name: small-inference}", "{name: Small_Inference}", 3, "metadata.name", "is not a name"),
        ("{name: small-inference}", "{}", 3, "metadata.name", "is missing"),
        ("v1alpha1", "v2", 1, "apiVersion", "use 'penstock.io/v1alpha1'"),
        ("{matchLabels: {app: ranker}}", "{}", 5, "spec.selector", "is empty"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_at_its_line(old, new, line, key, message):
    assert old in GOOD
    problem = only_problem_of(GOOD.replace(old, new, 1))
    assert problem.position is not None
    assert problem.position.line == line or (key == "spec.scale" and problem.position.line == 12)
    assert f": {key}: " in str(problem)
    assert message in problem.message


def test_all_problems_of_all_files_are_reported_at_once(tmp_path):
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(GOOD.replace("8Gi", "8GB").replace("elastic", "elastc"))
    second.write_text(GOOD.replace("cores: 30", "cores: 0"))
    with pytest.raises(PolicyError) as caught:
        load_files([first, second, tmp_path / "missing.yaml"])
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        str(first),
        str(first),
        str(second),
        str(tmp_path / "missing.yaml"),
    ]
    assert "cannot be read: No such file" in lines[3]


def test_a_key_given_twice_is_refused_with_both_lines():
    problem = only_problem_of(GOOD + "  mode: strict\n")
    assert str(problem) == "p.yaml:17:3: spec.mode: is given twice (first on line 8): keep one"


def test_two_policies_of_one_name_are_refused(tmp_path):
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(minimal(name="same"))
    with pytest.raises(PolicyError, match=r"is also the name of the policy at .*a\.yaml:1"):
        load_files([tmp_path / "a.yaml", tmp_path / "b.yaml"])


@pytest.mark.parametrize("length", range(0, len(GOOD.rstrip()) - 12, 7))
def test_a_truncated_policy_is_refused_or_is_itself_a_whole_policy(length):
    try:
        (loaded,) = load_text(GOOD[:length], "p.yaml")
    except PolicyError as caught:
        error = caught
        loaded = None
    if loaded is None:
        assert error.problems
        assert all(problem.message for problem in error.problems)
    else:
        # Cut at a line's end, the rest may still be a policy; then nothing of it was guessed.
        assert loaded.policy.spec.limits.memory == 8 << 30


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"# nothing\n---\n", "it is empty"),
        (b"\xff\xfe\x00", "is not UTF-8"),
        (b"just words", "a policy is a mapping"),
        (b"a: [1, 2", "is not valid YAML"),
        (b"a: &x [*x, *x]", "is not valid YAML"),
        (b"\x00", "is not valid YAML"),
        (b"? [a]\n: b\n", "plain word"),
        (b"x" * (1 << 21), "is larger than 1 MiB"),
    ],
)
def test_a_file_that_is_no_policy_is_refused_with_the_reason(tmp_path, content, message):
    file = tmp_path / "p.yaml"
    file.write_bytes(content)
    with pytest.raises(PolicyError) as caught:
        load_files([file])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("[" * 3000, ["nested too deeply", "write the values out"]),
        ("9" * 5000, ["p.yaml:1:4: a: ", "(5000 characters)", "write a plain value"]),
        ("2026-13-45", ["p.yaml:1:4: a: ", "'2026-13-45'", "write a plain value"]),
        ("!!foo x", ["p.yaml:1:4: a: ", "'foo'", "write a plain value"]),
        ("&a [*a]", ["inside its own anchor", "write the values out"]),
        ("]\nb: c", ["p.yaml:1:4", "check indentation"]),
        ("[1,", ["(cut short?)"]),
    ],
)
def test_yaml_that_cannot_be_read_is_refused_with_what_to_do(value, words):
    with pytest.raises(PolicyError) as caught:
        load_text(f"a: {value}\n", "p.yaml")
    text = str(caught.value).splitlines()[0]
    for word in words:
        assert word in text
    assert ("cut short" in text) == ("(cut short?)" in words)
    assert len(text) < 250


def test_a_small_file_that_expands_without_bound_is_refused():
    levels = "\n".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 12))
    with pytest.raises(PolicyError, match=r"every use of an alias .* use fewer aliases") as caught:
        load_text(f"l0: &l0 [x]\n{levels}\n", "p.yaml")
    assert "UTF-8" not in str(caught.value)


@given(st.text(max_size=200) | st.text(alphabet="{}[]:,-&*!|>'\"\n #ab1", max_size=80))
def test_no_text_makes_the_reader_fail_in_another_way(text):
    problems = []
    try:
        policies_read = load_text(text, "p.yaml")
    except PolicyError as error:
        problems, policies_read = error.problems, []
    assert problems or policies_read


def test_the_json_schema_accepts_the_keys_that_the_reader_accepts():
    schema = json.loads(json.dumps(json_schema()))
    assert schema["additionalProperties"] is False
    spec = schema["$defs"]["Spec"]["properties"]
    assert set(spec) == {
        *("selector", "devices", "limits", "mode", "allowUnknown", "priority", "onExceed", "scale")
    }
    assert "TFLOPS" in schema["$defs"]["Limits"]["properties"]["tflops"]["description"]


def policies(*selectors):
    texts = [
        minimal(extra=f"  selector: {s}\n" if s else "", name=f"p{i}")
        for i, s in enumerate(selectors)
    ]
    return load_text("---\n".join(texts), "p.yaml")


def test_the_policy_is_chosen_by_command_and_user():
    loaded = policies("{command: 'python*'}", "{command: bash}", "{user: bob, command: '*'}")
    assert policy_for_command(loaded, "/usr/bin/python3", "alice", 1000).name == "p0"
    assert policy_for_command(loaded, "sleep", "bob", 1001).name == "p2"


def test_two_matching_policies_are_an_error_that_names_both():
    with pytest.raises(PenstockError, match=r"2 policies match.*p0 \(p.yaml:1\); p1 \(p.yaml:8\)"):
        policy_for_command(policies("{command: python}", None), "python", "alice", 1000)


def test_a_policy_for_pods_never_applies_to_a_plain_command():
    with pytest.raises(PenstockError, match="selects Pods labelled"):
        policy_for_command(policies("{matchLabels: {app: a}}"), "python", "alice", 1000)


def test_the_example_policies_are_valid():
    examples = Path(__file__).parents[2] / "examples" / "policies"
    names = [loaded.name for loaded in load_files(sorted(examples.glob("*.yaml")))]
    assert names == ["inference", "training-tools", "small-inference", "ranker"]
