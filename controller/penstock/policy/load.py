"""Loading and validation of policy files; errors have the file, line, column and key path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.policy.document import PolicyError, Position, Problem, parse, read_text
from penstock.policy.schema import API_VERSION, KIND, QuotaPolicy
from penstock.policy.validation import InvalidError, validated

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_EXAMPLES = {"apiVersion": API_VERSION, "kind": KIND}


@dataclass(frozen=True)
class LoadedPolicy:
    """A validated policy with its position in a file."""

    policy: QuotaPolicy
    file: str
    position: Position

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.policy.metadata.name

    def __str__(self) -> str:
        return f"{self.name} ({self.file}:{self.position.line})"


def load_files(files: Iterable[Path]) -> list[LoadedPolicy]:
    """All policies in `files`. Raises `PolicyError`, with the problems of all files, if any."""
    problems: list[Problem] = []
    loaded: list[LoadedPolicy] = []
    for file in files:
        try:
            loaded.extend(load_text(read_text(file), str(file)))
        except PolicyError as error:  # noqa: PERF203 - collects the problems of all files
            problems.extend(error.problems)
    seen: dict[str, LoadedPolicy] = {}
    for policy in loaded:
        first = seen.setdefault(policy.name, policy)
        if first is not policy:
            other = f"{first.file}:{first.position.line}"
            message = f"{policy.name!r} is also the name of the policy at {other}"
            problems.append(Problem(policy.file, policy.position, ("metadata", "name"), message))
    if problems:
        raise PolicyError(problems)
    return loaded


def load_text(text: str, file: str) -> list[LoadedPolicy]:
    """The policies in `text`. Raises `PolicyError` if one of them is invalid."""
    documents = parse(text, file)
    if not documents:
        raise PolicyError(
            [
                Problem(
                    file,
                    None,
                    (),
                    f"holds no policy: it is empty; a policy starts with apiVersion: {API_VERSION}",
                )
            ]
        )
    problems: list[Problem] = []
    loaded = []
    for document in documents:
        start = document.values.get((), Position(1, 1))
        if not isinstance(document.value, dict):
            problems.append(
                Problem(
                    file,
                    start,
                    (),
                    f"a policy is a mapping that starts with apiVersion: {API_VERSION}",
                )
            )
            continue
        try:
            policy = validated(document, file, QuotaPolicy, _EXAMPLES)
        except InvalidError as error:
            problems.extend(error.problems)
        else:
            loaded.append(LoadedPolicy(policy, file, start))
    if problems:
        raise PolicyError(sorted(problems, key=lambda problem: problem.position or Position(0, 0)))
    return loaded
