"""Outputs: the files and folders that a run keeps of what its program has made."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from penstock.model import PenstockError, listing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.training.run import Run

FOLDER = "outputs"


def keep_outputs(run: Run, folder: Path, outputs: Sequence[str]) -> None:
    """Copies files and folders, which lie below `folder`, into the run's folder, all or none.

    They are copies: a link would follow what the next run writes into the same file.

    Raises:
        PenstockError: some are not there, or there is no room for them.
    """
    missing = [one for one in outputs if not (folder / one).exists()]
    if missing:
        raise PenstockError(
            f"the program ended well and has not made {listing(missing)}",
            f"not in {folder}", "leave it out of outputs, or see that the program makes it",
        )  # fmt: skip
    aside = run.folder / f"{FOLDER}.new"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        for one in outputs:
            _copy(folder / one, aside / one)
        aside.rename(run.folder / FOLDER)
    except OSError as error:  # shutil.Error, too
        shutil.rmtree(aside, ignore_errors=True)
        raise PenstockError(
            "the outputs of the run cannot be kept", error.strerror or str(error),
            f"they are still in {folder}: make room where runs are kept",
        ) from error  # fmt: skip


def _copy(source: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, to, dirs_exist_ok=True)
    else:
        shutil.copy2(source, to)
