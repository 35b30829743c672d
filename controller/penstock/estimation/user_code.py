"""The user's own functions: loading `train.py:make_model`, and naming the line that failed."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.model import PenstockError, nearest, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType, TracebackType

_OURS = str(Path(__file__).parents[1])
_STDLIB = sysconfig.get_path("stdlib")
_NO_DATA = "tensors have no data in an estimate: leave out what reads their values"
_ON_CPU = "leave .cuda() and the like out: nothing is computed, so no device is needed"
_OUTSIDE = "outside your files"
_FITTING = "see whether the function takes no arguments, and --input fits the model"
_MOST_CHARACTERS = 300  # of another's error text


def load_function(text: str) -> Callable[..., Any]:
    """The function that `text` names: FILE.py:NAME.

    Raises:
        PenstockError: there is no such file or function, or loading the file failed.
    """
    path_text, _, name = text.rpartition(":")
    if not path_text or not name.isidentifier():
        raise PenstockError(
            f"invalid function {printable(text)!r}", "a file and a name in it are needed",
            "write it like train.py:make_model",
        )  # fmt: skip
    module = _load_file(Path(path_text))
    found = getattr(module, name, None)
    if not callable(found):
        names = [one for one, value in vars(module).items() if callable(value)]
        near = nearest(name, names)
        raise PenstockError(
            f"{path_text} has no function {name!r}",
            f"did you mean {near!r}?" if near else "that name is not in it, or is no function",
            "name a function, or a class, that takes no arguments and returns the model",
        )
    return found


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise PenstockError(
            f"cannot read {path}",
            "it is no file" if path.exists() else "there is no such file",
            "name a Python file, like train.py",
        )
    known = sys.modules.get(_module_name(path))
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(_module_name(path), path)
    if spec is None or spec.loader is None:
        raise PenstockError(
            f"cannot load {path}", "its name does not end in .py", "name a Python file"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    if str(path.parent.resolve()) not in sys.path:
        sys.path.insert(0, str(path.parent.resolve()))  # as for `python train.py`
    try:
        with naming_the_line(f"loading {path}"):
            spec.loader.exec_module(module)
    except PenstockError:
        del sys.modules[spec.name]
        raise
    return module


def _module_name(path: Path) -> str:
    """A name of its own, so that a file called json.py does not replace a library."""
    return f"_penstock_estimate_{path.stem}_{abs(hash(path.resolve()))}"


@contextlib.contextmanager
def naming_the_line(doing: str) -> Iterator[None]:
    """Turns whatever the user's code raises, or an exit, into an error with its file and line."""
    try:
        yield
    except (PenstockError, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise PenstockError(
            f"{doing} failed", f"{_place(error.__traceback__)} ends the program ({error.code})",
            'keep what should not run on import behind `if __name__ == "__main__":`',
        ) from error  # fmt: skip
    except BaseException as error:
        text = " ".join(str(error).split())[:_MOST_CHARACTERS]
        place = _place(error.__traceback__)
        raise PenstockError(
            f"{doing} failed", f"{place}: {type(error).__name__}: {text}",
            _advice(text, is_own=place != _OUTSIDE),
        ) from error  # fmt: skip


def _advice(text: str, *, is_own: bool) -> str:
    if "cuda" in text.lower():
        return _ON_CPU
    if "tensor subclasses" in text:
        return _NO_DATA
    return "correct that line" if is_own else _FITTING


def _place(trace: TracebackType | None) -> str:
    """The last line of the user's own code in a traceback; of a library where there is none."""
    frames = traceback.extract_tb(trace)
    own = [one for one in frames if is_users(one.filename)]
    if not own:
        return _OUTSIDE
    return f"{own[-1].filename}:{own[-1].lineno}"


def is_users(filename: str) -> bool:
    """Whether a file is neither Penstock's nor Python's nor PyTorch's."""
    torch = sys.modules.get("torch")
    libraries = [_OURS, *([str(Path(torch.__file__).parent)] if torch and torch.__file__ else [])]
    if filename.startswith("<") or any(filename.startswith(one) for one in libraries):
        return False
    return not filename.startswith(_STDLIB) or "site-packages" in filename


def users_place() -> str:
    """File and line of the user's code that is running now; "" if none is."""
    frame = sys._getframe(1)  # inspect.stack() reads every source file
    here: Any = frame
    while here is not None:
        if is_users(here.f_code.co_filename):
            return f"{here.f_code.co_filename}:{here.f_lineno}"
        here = here.f_back
    return ""
