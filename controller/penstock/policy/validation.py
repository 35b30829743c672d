"""Validation of YAML documents by a schema; problems have the file, line, column and key path."""

from __future__ import annotations

from types import UnionType
from typing import TYPE_CHECKING, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from penstock.model import nearest
from penstock.policy.document import Document, KeyPath, Problem, format_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

_Model = TypeVar("_Model", bound=BaseModel)


class InvalidError(Exception):
    """A document does not fit its schema; `problems` says where and why."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)
        self.problems = problems


def validated(
    document: Document, file: str, schema: type[_Model], examples: Mapping[str, str]
) -> _Model:
    """The document as the schema's type.

    `examples`: what to write for keys that are missing, by their path.

    Raises:
        InvalidError: it does not fit.
    """
    try:
        return schema.model_validate(document.value)
    except ValidationError as error:
        check = _Check(document, file, schema, examples)
        raise InvalidError([check.problem(detail) for detail in error.errors()]) from None


class _Check:
    """What turns errors of pydantic into problems of a document."""

    def __init__(
        self, document: Document, file: str, schema: type[BaseModel], examples: Mapping[str, str]
    ) -> None:
        self._document, self._file, self._schema = document, file, schema
        self._examples = examples

    def problem(self, detail: ErrorDetails) -> Problem:
        document, file = self._document, self._file
        path = _path_in_document(detail["loc"], document)
        kind = detail["type"]
        if kind == "extra_forbidden":
            text = self._unknown_key(path)
            return Problem(file, document.position(path, of_key=True), path, text)
        if kind == "missing":
            example = self._examples.get(format_path(path))
            message = f"is missing: write {example}" if example else "is missing"
            return Problem(file, document.position(path), path, message)
        return Problem(file, document.position(path), path, _message(detail))

    def _unknown_key(self, path: KeyPath) -> str:
        names = self._keys_at(path[:-1])
        given = str(path[-1])
        near = nearest(given, names)
        hint = f"; did you mean {near}?" if near else ""
        return f"unknown key{hint} (valid here: {', '.join(names)})"

    def _keys_at(self, path: KeyPath) -> list[str]:
        """The keys that the schema allows inside `path`."""
        model: type[BaseModel] | None = self._schema
        for part in path:
            if isinstance(part, int):  # of a list, whose items have one model
                continue
            fields = (
                {f.alias or name: f.annotation for name, f in model.model_fields.items()}
                if model
                else {}
            )
            model = _model_in(fields.get(str(part)))
        return [f.alias or name for name, f in model.model_fields.items()] if model else []


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


def _model_in(annotation: object) -> type[BaseModel] | None:
    if get_origin(annotation) in (Union, UnionType, list):
        return next((model for model in map(_model_in, get_args(annotation)) if model), None)
    return (
        annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    )
