"""Tools of other vendors as real programs on PATH, and sysfs as their drivers make it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


class Machine:
    """A made-up root of sysfs and proc, and a folder that is all of PATH."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.bin = folder / "bin"
        self.root.mkdir()
        self.bin.mkdir()

    def tool(self, name: str, script: str) -> Path:
        """A program `name` that does what the shell script says."""
        file = self.bin / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        return file

    def prints(self, name: str, text: str) -> None:
        """A program that prints `text`, with any arguments."""
        answer = self.bin / f"{name}.txt"
        answer.write_text(text)
        self.tool(name, f"exec /bin/cat {answer}")

    def file(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def pci(self, address: str, vendor: int, device: int, code: int, driver: str | None = None):
        """A PCI function, with the driver bound to it."""
        folder = f"sys/bus/pci/devices/{address}"
        self.file(f"{folder}/vendor", f"0x{vendor:04x}\n")
        self.file(f"{folder}/device", f"0x{device:04x}\n")
        self.file(f"{folder}/class", f"0x{code:06x}\n")
        if driver:
            (self.root / folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
        return self.root / folder


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin))
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert os.environ["PATH"] == str(made.bin)
    return made
