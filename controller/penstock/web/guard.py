"""Guard of the web page: which requests are answered, and the headers of every answer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aiohttp import web

from penstock.web.address import is_ip

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler, Middleware

_HOST = re.compile(
    r"(\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(:[0-9]{1,5})?", re.ASCII
)
# Text of users (names of applications) reaches the page. Even if a script of theirs got into it,
# the browser would neither run it nor connect to anything.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def guard(names: frozenset[str]) -> Middleware:
    """A middleware that answers requests for addresses and `names` alone, and only reads."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = _refusal(request, names)
        if refusal is not None:
            return refusal
        try:
            return await handler(request)
        except web.HTTPException as error:
            error.headers.update(HEADERS)
            raise

    return guarded


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Adds the headers to an answer; a signal handler of aiohttp."""
    response.headers.update(HEADERS)


def _refusal(request: web.Request, names: frozenset[str]) -> web.Response | None:
    if request.method not in {"GET", "HEAD"}:
        text = "This page only shows; it takes no orders. Use penstock pool.\n"
        return web.Response(status=405, text=text, headers={"Allow": "GET, HEAD"})
    host = host_of(request.headers.get("Host", ""))
    if not (is_ip(host) or host in names):
        text = "This name is not known here: use the address that the server has printed.\n"
        return web.Response(status=421, text=text)
    # Older browsers do not say where a request comes from; the headers above protect them, too.
    if request.path == "/events" and request.headers.get("Sec-Fetch-Site", "none") not in {
        "same-origin", "none",
    }:  # fmt: skip
        return web.Response(status=403, text="Pages of other sites may not read this.\n")
    return None


def host_of(header: str) -> str:
    """The host in a Host header, without its port; empty if it is malformed."""
    found = _HOST.fullmatch(header)
    return (found["v6"] or found["name"]).lower() if found else ""
