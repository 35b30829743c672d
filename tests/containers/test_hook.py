"""The hook reads what a runtime tells it, and refuses rather than let a container go without."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_shim import paths

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "shim/native"
PATHS = st.text(st.characters(exclude_characters="\0", max_codepoint=0xD7FF), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | PATHS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PATHS, inner, max_size=3),
    max_leaves=6,
)


class Finder:
    """`find.c` as a running program."""

    def __init__(self, program: Path, *names: str) -> None:
        self._running = subprocess.Popen(
            [program, *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __call__(self, document: bytes) -> str | None:
        self._running.stdin.write(document.replace(b"\0", b" ") + b"\0")
        self._running.stdin.flush()
        answer = self._running.stdout.readline().decode().strip()
        assert answer, "it ended: a sanitizer's finding is above"
        return None if answer == "none" else os.fsdecode(bytes.fromhex(answer[1:]))

    def close(self) -> None:
        self._running.stdin.close()
        self._running.stdout.close()
        assert self._running.wait(20) == 0


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    output = tmp_path_factory.mktemp("find") / "find"
    flags = ["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all"]
    sources = [HERE / "programs/find.c", NATIVE / "container/json.c"]
    command = ["gcc", "-D_GNU_SOURCE", *flags, "-fsanitize=address,undefined", f"-I{NATIVE}"]
    subprocess.run([*command, *sources, "-o", output], check=True)
    return output


@pytest.fixture(scope="module")
def root_path(program):
    finder = Finder(program, "root", "path")
    yield finder
    finder.close()


@given(path=PATHS, others=st.dictionaries(PATHS, VALUES, max_size=3), ascii_only=st.booleans())
@settings(max_examples=300)
def test_a_path_is_found_among_any_other_content(root_path, path, others, ascii_only):
    document = {**others, "root": {**others, "path": path, "readonly": True}, "x": {"path": "no"}}
    text = json.dumps(document, ensure_ascii=ascii_only)
    assert root_path(text.encode()) == path


WHOLE = json.dumps({"a": [{}], "root": {"path": "/x\\\u20ac"}}).encode()


@given(st.binary(max_size=40), st.integers(0, len(WHOLE)))
@settings(max_examples=300)
def test_no_document_breaks_the_reader(root_path, garbage, cut):
    known = "/x\\\u20ac" if cut > WHOLE.rindex(b'"') else None
    assert root_path(WHOLE[:cut]) == known
    for document in (garbage, WHOLE[:cut] + garbage, b"[" * cut + garbage):
        root_path(document)  # which fails when the reader has ended


@pytest.mark.parametrize(
    "document",
    ['{"root":{"path":1}}', '{"root":"path"}', '{"path":"/x"}', '{"a":{"root":{"path":"/x"}}}',
     '{"root":{"path":"\\ud800"}}', '{"root":{"path":"\\u0000"}}', "", "[]", '{"root":{"path":"/x'],
)  # fmt: skip
def test_a_value_that_is_no_path_is_not_taken_for_one(root_path, document):
    assert root_path(document.encode()) is None


def hook(state: str) -> subprocess.CompletedProcess[str]:
    command = [paths.container_hook_path(), "/run/penstock-shim/preload", "/run/libpenstock.so"]
    return subprocess.run(
        command, input=state, capture_output=True, text=True, timeout=20, check=False
    )


def test_a_state_that_names_no_container_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"root":{"path":"missing"}}')
    states = {
        "": "no OCI state",
        '{"id":"x"}': "no OCI state",
        '{"bundle":"/nowhere"}': "names no root",
        json.dumps({"bundle": str(tmp_path)}): "cannot enter the container's root",
    }
    for state, reason in states.items():
        done = hook(state)
        assert done.returncode == 1
        assert reason in done.stderr
        assert "not started without its quota" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="entering another root needs root")
def test_a_root_without_the_shims_mount_is_refused_and_left_alone(tmp_path):
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "config.json").write_text('{"root":{"path":"root"}}')
    done = hook(json.dumps({"bundle": str(tmp_path)}))
    assert done.returncode == 1
    assert "the shim is not mounted" in done.stderr
    assert list((tmp_path / "root").rglob("*")) == [tmp_path / "root/etc"]
