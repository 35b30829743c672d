"""Loading and validation of policy files; errors have the file, line, column and key path."""

from __future__ import annotations

from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from penstock.model import nearest
from penstock.policy.document import (
    Document,
    KeyPath,
    PolicyError,
    Position,
    Problem,
    format_path,
    parse,
    read_text,
)
from penstock.policy.schema import API_VERSION, KIND, QuotaPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pydantic_core import ErrorDetails


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
            loaded.append(LoadedPolicy(QuotaPolicy.model_validate(document.value), file, start))
        except ValidationError as error:
            problems.extend(_problem(detail, document, file) for detail in error.errors())
    if problems:
        raise PolicyError(sorted(problems, key=lambda problem: problem.position or Position(0, 0)))
    return loaded


def _problem(detail: ErrorDetails, document: Document, file: str) -> Problem:
    path = _path_in_document(detail["loc"], document)
    kind = detail["type"]
    if kind == "extra_forbidden":
        return Problem(file, document.position(path, of_key=True), path, _unknown_key(path))
    if kind == "missing":
        message = f"is missing{_example_of(path)}"
        return Problem(file, document.position(path), path, message)
    return Problem(file, document.position(path), path, _message(detail))


def _path_in_document(location: tuple[int | str, ...], document: Document) -> KeyPath:
    """An error's location as a key path in the file, without the names of union members."""
    path: KeyPath = ()
    for part in location[:-1]:
        if (*path, part) in document.values:
            path = (*path, part)
    return (*path, location[-1]) if location else path


def _message(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "value_error":
        return str(context.get("error", detail["msg"]))
    given = detail["input"]
    if kind == "literal_error":
        expected = str(context.get("expected", ""))
        near = nearest(str(given), expected.replace("'", "").replace(" or ", ", ").split(", "))
        return f"{given!r} is not valid: use {expected}" + (
            f"; did you mean {near}?" if near else ""
        )
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"must be a mapping of keys to values, not {given!r}"
    if kind == "string_pattern_mismatch":
        return f"{given!r} is not a name: use lower-case letters, digits, '-' and '.'"
    message = detail["msg"]
    return f"{given!r} is not valid: {message[0].lower()}{message[1:]}"


def _unknown_key(path: KeyPath) -> str:
    names = _keys_at(path[:-1])
    given = str(path[-1])
    near = nearest(given, names)
    hint = f"; did you mean {near}?" if near else ""
    return f"unknown key{hint} (valid here: {', '.join(names)})"


def _example_of(path: KeyPath) -> str:
    return {"apiVersion": f": write {API_VERSION}", "kind": f": write {KIND}"}.get(
        format_path(path), ""
    )


def _keys_at(path: KeyPath) -> list[str]:
    """The keys that the schema allows inside `path`."""
    model: type[BaseModel] | None = QuotaPolicy
    for part in path:
        fields = (
            {f.alias or name: f.annotation for name, f in model.model_fields.items()}
            if model
            else {}
        )
        model = _model_in(fields.get(str(part)))
    return [f.alias or name for name, f in model.model_fields.items()] if model else []


def _model_in(annotation: object) -> type[BaseModel] | None:
    if get_origin(annotation) in (Union, UnionType):
        return next((model for model in map(_model_in, get_args(annotation)) if model), None)
    return (
        annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    )
