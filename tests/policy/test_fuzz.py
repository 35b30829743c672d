"""Policy files made up and damaged at random: a checked policy or a PolicyError, nothing else."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.policy import PolicyError, QuotaPolicy
from penstock.policy.load import load_text

SAMPLES = [
    path.read_text()
    for path in sorted((Path(__file__).parents[2] / "examples" / "policies").glob("*.yaml"))
]
WORDS = st.sampled_from(
    [
        *("apiVersion: penstock.io/v1alpha1", "kind: QuotaPolicy", "metadata:", "spec:", "limits:"),
        *("memory: 8Gi", "cores: 30", "mode: elastic", "&a", "*a", "<<: *a", "!!python/object:os"),
        *("- ", ": ", "? ", "{", "}", "[", "]", "|", ">", "\t", "---", "...", "%YAML 1.2", "~"),
        *(".nan", "1e999", "0x10", "-1", "9" * 400, "\u2028", "\ufeff", "\x00", '"', "'", "#"),
        *("\n", "\n  ", "    "),
    ]
)


def check(text: str) -> None:
    problems, loaded, said = (), [], "fuzzed.yaml"
    try:
        loaded = load_text(text, "fuzzed.yaml")
    except PolicyError as error:
        problems, said = error.problems, str(error)
    assert bool(problems) or all(isinstance(each.policy, QuotaPolicy) for each in loaded)
    assert "fuzzed.yaml" in said


@given(st.lists(WORDS | st.text(string.printable, max_size=5), max_size=60).map("".join))
@settings(max_examples=300)
def test_a_random_document_is_refused_or_read(text):
    check(text)


@given(
    st.sampled_from(SAMPLES),
    st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 30), WORDS | st.text(max_size=3)), max_size=6
    ),
)
@settings(max_examples=300)
def test_a_damaged_policy_is_refused_or_read(text, changes):
    for where, cut, inserted in changes:
        at = int(where * len(text))
        text = text[:at] + inserted + text[at + cut :]
    check(text)


@pytest.mark.parametrize("depth", [50, 1000, 20_000])
def test_deep_nesting_is_an_error_and_no_crash(depth):
    check("a: " + "[" * depth)
    check("a: " + "{b: " * depth + "1" + "}" * depth)


def test_aliases_that_multiply_are_an_error_and_take_no_time():
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    check("\n".join(lines))
