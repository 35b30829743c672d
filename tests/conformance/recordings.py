"""What the recorder above the shim wrote down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ask:
    """One question of a program to `cuGetProcAddress`, and what it was given."""

    name: str
    version: str
    flags: str
    result: str
    status: str
    symbol: str  # the shim's export; "-": nothing; "elsewhere": a function that is not the shim's

    @property
    def line(self) -> str:
        return "\t".join((self.name, self.version, self.flags, self.symbol))


@dataclass(frozen=True)
class Recording:
    """What a program printed and asked."""

    output: str
    looked_up: list[str]  # through dlsym
    asks: list[Ask]

    @property
    def passed_by(self) -> list[Ask]:
        """Asks that got a function which is not the shim's."""
        return [ask for ask in self.asks if ask.symbol == "elsewhere"]

    @property
    def answered(self) -> int:
        """Asks that got a function."""
        return sum(ask.symbol != "-" for ask in self.asks)
