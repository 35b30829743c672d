"""YAML parser that returns plain values with the line and column of every key and value.

A duplicate key is an error, whereas PyYAML silently keeps the last value. Every error is a
`Problem` with file, line, column and key path, so that several errors can be shown at once.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import yaml

from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KeyPath = tuple[str | int, ...]
MAX_POLICY_BYTES = 1 << 20
MAX_NODES = 20_000  # a limit is needed because aliases can expand a small file enormously


@dataclass(frozen=True, order=True)
class Position:
    """Line and column, both counted from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Problem:
    """One error in a file."""

    file: str
    position: Position | None
    path: KeyPath
    message: str

    def __str__(self) -> str:
        where = (
            f"{self.file}:{self.position.line}:{self.position.column}"
            if self.position
            else self.file
        )
        key = format_path(self.path)
        return f"{where}: {key}: {self.message}" if key else f"{where}: {self.message}"


class _TooManyValuesError(Exception):
    """Aliases expand to more values than any real policy has."""


class PolicyError(PenstockError):
    """An unusable policy file, with all its problems."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"policy not usable ({count})")

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


@dataclass
class Document:
    """One YAML document: its value, and the position of each key and value."""

    value: object
    keys: dict[KeyPath, Position] = field(default_factory=dict)
    values: dict[KeyPath, Position] = field(default_factory=dict)

    def position(self, path: KeyPath, *, of_key: bool = False) -> Position | None:
        """Position of `path`, or of the nearest enclosing value whose position is known."""
        if of_key and path in self.keys:
            return self.keys[path]
        for length in range(len(path), -1, -1):
            found = self.values.get(path[:length])
            if found is not None:
                return found
        return None


def format_path(path: KeyPath) -> str:
    """A key path as text: `("spec", "tenants", 0, "name")` becomes `spec.tenants[0].name`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def read_text(file: Path) -> str:
    """The text of a document's file. Raises `PolicyError` if it cannot be read."""

    def refused(reason: str) -> PolicyError:
        return PolicyError([Problem(str(file), None, (), reason)])

    try:
        # Open without blocking, because opening a pipe that has no writer would wait for ever.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise refused("is not a regular file: write the document to a file and name that")
            raw = stream.read(MAX_POLICY_BYTES + 1)
    except OSError as error:
        raise refused(
            f"cannot be read: {error.strerror or error}; check the path and its permissions"
        ) from error
    if len(raw) > MAX_POLICY_BYTES:
        raise refused(
            f"is larger than {MAX_POLICY_BYTES >> 20} MiB: no document of Penstock is so large"
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise refused(f"is not UTF-8 text (byte {error.start}): save it as UTF-8") from error


def parse(text: str, file: str) -> list[Document]:
    """The non-empty documents in `text`. Raises `PolicyError` for bad YAML and duplicate keys."""
    problems: list[Problem] = []
    documents = []
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        while loader.check_node():
            node = loader.get_node()
            if node is None:
                continue
            document = _Builder(loader, file, problems).build(node)
            if document.value is not None:
                documents.append(document)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = Position(mark.line + 1, mark.column + 1) if mark else None
        detail = " ".join(part for part in (error.context, error.problem) if part)
        at_end = mark is not None and mark.index >= len(text.rstrip())
        advice = "(cut short?): " if at_end else "(check indentation, brackets and quotes there): "
        problems.append(Problem(file, position, (), f"is not valid YAML {advice}{detail}"))
    except RecursionError:
        reason = (
            "is not valid YAML: nested too deeply, or an alias (*) is inside its own anchor (&)"
        )
        problems.append(Problem(file, None, (), f"{reason}; write the values out"))
    except _TooManyValuesError:
        reason = f"holds more than {MAX_NODES} values, every use of an alias (*) counted"
        problems.append(
            Problem(file, None, (), f"{reason}: this is not a policy; use fewer aliases")
        )
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        problems.append(
            Problem(file, None, (), f"is not valid YAML: {reason}; save it as plain UTF-8 text")
        )
    finally:
        if loader is not None:
            loader.dispose()
    if problems:
        raise PolicyError(problems)
    return documents


class _Builder:
    """Builds a `Document` from one tree of YAML nodes."""

    def __init__(self, loader: yaml.SafeLoader, file: str, problems: list[Problem]) -> None:
        self.loader = loader
        self.file = file
        self.problems = problems
        self.visited = 0

    def build(self, root: yaml.Node) -> Document:
        document = Document(None)
        document.value = self._value(root, (), document)
        return document

    def _value(self, node: yaml.Node, path: KeyPath, document: Document) -> object:
        self.visited += 1
        if self.visited > MAX_NODES:
            raise _TooManyValuesError
        document.values[path] = _position(node)
        if isinstance(node, yaml.MappingNode):
            return dict(self._items(node, path, document))
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, i), document) for i, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _scalar(self, node: yaml.Node, path: KeyPath) -> object:
        try:
            return self.loader.construct_object(node)
        except (ValueError, OverflowError, yaml.constructor.ConstructorError) as error:
            given = str(node.value)
            short = given if len(given) <= 40 else f"{given[:40]}… ({len(given)} characters)"
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            reason = "" if len(given) > 40 or isinstance(error, yaml.YAMLError) else f": {error}"
            message = f"{short!r} cannot be read as YAML's {kind!r}{reason}; write a plain value"
            self.problems.append(Problem(self.file, _position(node), path, message))
            return None

    def _items(
        self, node: yaml.MappingNode, path: KeyPath, document: Document
    ) -> Iterator[tuple[str, object]]:
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                problem = Problem(
                    self.file, _position(key_node), path, "a key must be a plain word"
                )
                self.problems.append(problem)
                continue
            key = str(key_node.value)
            here = (*path, key)
            if here in document.keys:
                first = document.keys[here].line
                message = f"is given twice (first on line {first}): keep one"
                self.problems.append(Problem(self.file, _position(key_node), here, message))
                continue
            document.keys[here] = _position(key_node)
            yield key, self._value(value_node, here, document)


def _position(node: yaml.Node) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)
