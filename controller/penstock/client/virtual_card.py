"""Virtual card of an application: how a program learns that a pool starts its cards."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.node.rpc import ApplicationMessage

VARIABLE = "PENSTOCK_CARD"  # also in penstock.card.names, which loads nothing else


def variables_of(application: ApplicationMessage, state_dir: Path | None) -> dict[str, str]:
    """The variables of a program whose device is made of the application's cards.

    The program itself has no part of this node's devices: it may be on other nodes tomorrow.
    """
    text = f"pool:{application.name}@{application.claimed.ToNanoseconds()}"
    if state_dir is not None:
        text += f"@{state_dir.absolute()}"
    return {"CUDA_VISIBLE_DEVICES": "", VARIABLE: text}


def use(application: ApplicationMessage, state_dir: Path | None) -> None:
    """Makes the application's cards the device "penstock" of this process."""
    os.environ.update(variables_of(application, state_dir))
    if "torch" in sys.modules:  # it has looked for devices when it was loaded
        for found in entry_points(group="torch.backends", name="penstock"):
            found.load()()
