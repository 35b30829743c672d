"""Web page beside a command: its address from the options, and its server."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.web.address import DEFAULT, web_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.web.address import Address
    from penstock.web.server import WebServer
    from penstock.web.states import Source


def address_of(web: bool, text: str | None, is_open: bool) -> Address | None:
    """The address that the options name; None: no page is wanted.

    Raises:
        PenstockError: an option is invalid, or the page's web server is not installed.
    """
    if not (web or text):
        if is_open:
            raise PenstockError("--web-open is given without a page", "--web is missing",
                                "add --web-address ADDR:PORT")  # fmt: skip
        return None
    address = web_address(text or DEFAULT, is_open=is_open)
    if importlib.util.find_spec("aiohttp") is None:
        raise PenstockError(
            "the web page is missing", "the extra `web` is not installed",
            "run pip install 'penstock[web]'",
        )  # fmt: skip
    return address


def page_of(
    address: Address,
    source: Source,
    report: Callable[..., None],
    idle_s: float | None = None,
) -> WebServer:
    """The server of the page, which is to be started and stopped."""
    from penstock.web.server import WebServer

    return WebServer(address, source, report, idle_s)
