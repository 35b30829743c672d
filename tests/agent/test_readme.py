"""The README's commands for an agent, run as they are printed there."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ELSEWHERE = {  # lines that other tests try
    "podman": "tests/containers/test_agent.py",
    "agent install": "tests/daemon/test_service.py",
}


def lines() -> list[str]:
    section = (ROOT / "README.md").read_text().partition("## A node for many users")[2]
    block = section.partition("```console\n")[2].partition("```")[0]
    return [line.rstrip() for line in block.splitlines()]


def commands(line: str) -> list[list[str]]:
    """The commands in lines with a prompt, without comments."""
    words = line.partition("   #")[0].lstrip("$#").strip().rstrip("&")
    return [shlex.split(one) for one in words.split(";")]


def is_tried_elsewhere(line: str) -> bool:
    return any(f" {words} " in f"{line} " for words in ELSEWHERE)


def test_the_other_tests_are_there():
    assert all((ROOT / file).is_file() for file in ELSEWHERE.values())


def test_the_readmes_lines_work_without_a_gpu(make_node):
    first, *rest = [line for line in lines() if line and not is_tried_elsewhere(line)]
    node = make_node(start=False)
    ((_, *agent),) = commands(first)
    assert agent == ["agent", "--simulate", "h200"]  # what the node starts, but for its places
    node.start()
    assert len(rest) >= 7
    answer = ""
    for line in rest:
        if not line.startswith(("$ ", "# ")):
            assert answer.strip() == line  # what the command before has printed
            continue
        for program, *words in commands(line):
            assert program == "penstock"
            words = [sys.executable if word == "python" else word for word in words]  # noqa: PLW2901
            done = node(*words, cwd=ROOT)
            assert done.returncode == 0, (line, done.stderr)
            answer = done.stdout
            if words[0] == "top":
                assert "ranker" in answer
            if words[0] == "usage":
                assert "train" in answer
            if words[0] == "events":
                assert "granted" in answer
