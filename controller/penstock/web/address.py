"""Address of the web page: loopback, unless others may explicitly see it."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from penstock.model import PenstockError

DEFAULT = "127.0.0.1:9480"


@dataclass(frozen=True)
class Address:
    """Where the page is served. `is_open`: others than this machine may reach it."""

    host: str
    port: int
    is_open: bool = False

    def url(self, port: int) -> str:
        """The page's URL at the port that was opened."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{port}/"

    def names(self) -> frozenset[str]:
        """The names under which browsers may ask for the page; addresses are always allowed.

        Any other name may be a stranger's that now leads to this machine (DNS rebinding).
        """
        own = socket.gethostname().lower()
        names = {"localhost", self.host.lower()}
        return frozenset(names | {own, own.partition(".")[0]} if self.is_open else names)


def web_address(text: str, *, is_open: bool) -> Address:
    """The address in `ADDR:PORT`.

    Raises:
        PenstockError: it is no address, or others can reach it and `is_open` is false.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_number = port.isascii() and port.isdigit() and int(port) <= 65535
    if not is_number or not (host == "localhost" or is_ip(host)):
        raise PenstockError(
            f"invalid address {text!r} for the web page", "it is not ADDR:PORT",
            f"write it like {DEFAULT}, with an IP address or localhost",
        )  # fmt: skip
    if not is_open and not (host == "localhost" or ipaddress.ip_address(host).is_loopback):
        raise PenstockError(
            f"the web page is not served on {host}",
            "others could reach it there, and it asks nobody who they are",
            "leave the address out and use ssh -L, or allow it with --web-open",
        )  # fmt: skip
    return Address(host, int(port), is_open)


def is_ip(host: str) -> bool:
    """Whether `host` is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
