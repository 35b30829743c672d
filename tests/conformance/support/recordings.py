"""Recordings of the names that programs request from the shim."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ask:
    """One request of a program to `cuGetProcAddress`, and the answer."""

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
    """The output and the requests of a program."""

    output: str
    looked_up: list[str]  # through dlsym
    asks: list[Ask]

    @property
    def passed_by(self) -> list[Ask]:
        """Requests that got a function which is not the shim's."""
        return [ask for ask in self.asks if ask.symbol == "elsewhere"]

    @property
    def answered(self) -> int:
        """Requests that got a function."""
        return sum(ask.symbol != "-" for ask in self.asks)
