"""Source line: the line of the program that led to an operation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from types import FrameType

_TORCH = str(Path(torch.__file__).parent) + "/"
_OWN = str(Path(__file__).parents[1]) + "/"
_others: tuple[str, ...] = (_TORCH, _OWN, "<frozen ", "<eval_with_key")
_BACKWARD = _TORCH + "autograd/graph.py"  # the file whose function runs the whole of backward


class SourceLine(NamedTuple):
    """A line of the program.

    Attributes:
        is_backward: Whether it called backward, which led to the operation.
    """

    file: str
    number: int
    is_backward: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.number}{' (backward)' if self.is_backward else ''}"


def leave_out(folder: str) -> None:
    """A framework's files, whose lines are not the program's."""
    global _others  # noqa: PLW0603 - as the program has its frameworks, this module has them
    _others = (*_others, folder)


def source_line() -> SourceLine | None:
    """The innermost line that is not torch's or Penstock's; None if nobody knows it.

    torch computes gradients in threads of its own. They have no line, so that of the thread that
    waits for them is taken. It takes some microseconds: too long for each operation.
    """
    found = _line_of(sys._getframe(1))
    if found is not None or torch._C._current_graph_task_id() == -1:
        return found
    for frame in sys._current_frames().values():
        if _is_in_backward(frame):
            found = _line_of(frame)
            if found is not None:
                return found._replace(is_backward=True)
    return None


def _line_of(frame: FrameType | None) -> SourceLine | None:
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_others) and not _is_threading(frame):
            return SourceLine(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def _is_threading(frame: FrameType) -> bool:
    """Whether it is the start of a thread, which is nobody's line."""
    return frame.f_globals.get("__name__") == "threading"


def _is_in_backward(start: FrameType) -> bool:
    frame: FrameType | None = start
    while frame is not None:
        if frame.f_code.co_filename == _BACKWARD:
            return True
        frame = frame.f_back
    return False
