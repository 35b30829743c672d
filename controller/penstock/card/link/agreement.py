"""Agreement: what both sides of a link must know to belong together."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

TOKEN_BYTES = 32


@dataclass(frozen=True)
class Agreement:
    """The application's name and a secret token, which never crosses the connection itself."""

    application: str
    token: bytes = field(repr=False, default=b"")  # may be empty on an inherited connection alone

    @classmethod
    def new(cls, application: str) -> Agreement:
        """An agreement with a new token."""
        return cls(application, secrets.token_bytes(TOKEN_BYTES))

    def check_token(self) -> None:
        """Raises ValueError unless the token is long enough for a connection that others reach."""
        if len(self.token) != TOKEN_BYTES:
            raise ValueError(f"the application's token must have {TOKEN_BYTES} bytes")
