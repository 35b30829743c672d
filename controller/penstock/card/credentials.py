"""Credentials of a served card: how the program and the card's worker know each other."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.card.link import Agreement, TlsIdentity
from penstock.card.link.agreement import TOKEN_BYTES
from penstock.model import PenstockError

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM, WORKER = "penstock:card:program", "penstock:card:worker"  # names in certificates
SERVED = "served"  # the application of a link to a served card
_FILES = ("certificate.pem", "key.pem", "authority.pem")
_TOKEN = "token"  # noqa: S105 - the file's name


@dataclass(frozen=True)
class Credentials:
    """What one side has: its identity, and the token that both share."""

    identity: TlsIdentity
    token: bytes

    @classmethod
    def read(cls, folder: Path) -> Credentials:
        """Those that `write` wrote to a folder. Raises `PenstockError` if they cannot be used."""
        identity = TlsIdentity.from_files(*(folder / name for name in _FILES))
        try:
            token = bytes.fromhex((folder / _TOKEN).read_text("ascii"))
            Agreement(SERVED, token).check_token()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise PenstockError(
                f"cannot use {folder / _TOKEN}", str(why),
                "make credentials with penstock card credentials FOLDER",
            ) from error  # fmt: skip
        return cls(identity, token)


def write(folder: Path, days: int) -> None:
    """Makes credentials for both sides, in the new folders `program` and `worker`.

    Raises:
        PenstockError: there is such a folder already, or it cannot be written.
    """
    from penstock.card.link.issue import issue  # loads cryptography

    identities = issue([PROGRAM, WORKER], timedelta(days=days))
    token = secrets.token_bytes(TOKEN_BYTES)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, identity in (("program", identities[PROGRAM]), ("worker", identities[WORKER])):
            (folder / name).mkdir(mode=0o700)
            parts = (identity.certificate, identity.key, identity.authority)
            for file, content in zip(_FILES, parts, strict=True):
                _write(folder / name / file, content)
            _write(folder / name / _TOKEN, token.hex().encode())
    except OSError as error:
        raise PenstockError(
            f"cannot write credentials to {folder}", f"{error.filename}: {error.strerror}",
            "name another folder",
        ) from error  # fmt: skip


def _write(file: Path, content: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
