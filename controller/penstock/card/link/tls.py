"""Mutual TLS 1.3 between a program and its cards on other nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class TlsIdentity:
    """A certificate, its key and the authority of the other side's certificate, all in PEM."""

    certificate: bytes
    key: bytes = field(repr=False)
    authority: bytes

    @classmethod
    def from_files(cls, certificate: Path, key: Path, authority: Path) -> TlsIdentity:
        """Reads PEM files. Raises `PenstockError` if one cannot be read."""
        raise NotImplementedError
