"""Step record: what a step of the preparation was done with, so that it is done once.

A project keeps its records in the folder `.prepared`, each named by what its step makes: who makes
the same files does it in turn, by the lock beside the record.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from penstock.training.contents import Content, changed, contents
from penstock.training.run import write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from penstock.training.data import Step

VERSION = 1
FOLDER = ".prepared"
_CONTENTS = TypeAdapter(dict[str, Content])


class StepRecord:
    """The record of one step, in its project's folder.

    Attributes:
        outputs: The files and folders that the step makes.
        inputs: Those that it reads.
    """

    def __init__(
        self, project: Path, step: Step, folder: Path, environment: Mapping[str, str]
    ) -> None:
        """`folder`: where the step runs. `environment`: what the job's document sets."""
        self.inputs = [folder / one for one in step.inputs]
        self.outputs = [folder / one for one in step.outputs]
        self._done_with = {"version": VERSION, "command": list(step.command),
                           "folder": str(folder), "environment": dict(environment)}  # fmt: skip
        key = hashlib.sha256("\0".join(sorted(map(str, self.outputs))).encode()).hexdigest()[:32]
        self._file = project / FOLDER / f"{key}.json"
        self._former = _Former(self._file)
        self._read: dict[str, Content] = {}  # what is in the inputs

    @contextlib.contextmanager
    def locked(self, wait: Callable[[], None]) -> Iterator[int]:
        """Only one process at a time is inside; gives the descriptor that holds the lock.

        A process that inherits the descriptor holds the lock, too, until this ends: a step that
        goes on when its run was killed is waited for. `wait` is called while another is inside.

        Raises:
            OSError: the folder cannot be written.
        """
        self._file.parent.mkdir(mode=0o700, exist_ok=True)
        file = self._file.with_suffix(".lock")
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    wait()
            self._former = _Former(self._file)
            yield descriptor
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for who has inherited it
            os.close(descriptor)

    def why_not_done(self) -> str | None:
        """Why the step has to be done, in words; None: it was, and nothing has changed.

        Raises:
            OSError: what it reads is not there, or cannot be read.
        """
        inputs = self._read = self._now(self.inputs)
        former = self._former
        if former.done_with is None:
            return "it was not done before"
        for name, now in self._done_with.items():
            if former.done_with.get(name) != now:
                return f"its {name} is another one"
        if one := changed(former.inputs, inputs):
            return f"{one} has changed"
        try:
            outputs = self._now(self.outputs)
        except OSError as error:
            return f"{error.filename} {strerror(error)}"
        if one := changed(former.outputs, outputs):
            return f"{one} has changed since"
        if (inputs, outputs) != (former.inputs, former.outputs):
            self._write(outputs)  # these files need not be read next time
        return None

    def keep(self) -> None:
        """Notes that the step was done with the inputs that `why_not_done` has found.

        Raises:
            OSError: what it makes is not there, or the record cannot be written.
        """
        self._write(self._now(self.outputs))

    def _write(self, outputs: Mapping[str, Content]) -> None:
        write_json(self._file, {**self._done_with, "inputs": self._read, "outputs": outputs})

    def _now(self, paths: Sequence[Path]) -> dict[str, Content]:
        found: dict[str, Content] = {}
        for one in paths:
            found |= contents(one, self._former.known)
        return found


class _Former:
    """What a record's file says; a file that says nonsense says nothing."""

    def __init__(self, file: Path) -> None:
        self.done_with: dict[str, Any] | None = None
        self.inputs: dict[str, Content] = {}
        self.outputs: dict[str, Content] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            said = json.loads(file.read_bytes())
            self.inputs = _CONTENTS.validate_python(said.pop("inputs"))
            self.outputs = _CONTENTS.validate_python(said.pop("outputs"))
            self.done_with = said

    @property
    def known(self) -> dict[str, Content]:
        """What each of its files held, by path."""
        return {**self.inputs, **self.outputs}


def strerror(error: OSError) -> str:
    """Why a file cannot be used, in words."""
    if error.errno == errno.ENOENT:
        return "is not there"
    return f"cannot be used: {error.strerror}"
