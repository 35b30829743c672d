"""Fixtures: web servers of a source that a test writes, and one browser for the tests of a file."""

from __future__ import annotations

import pytest
from tests.containers.support.images import NotToBeHadError
from tests.pool.conftest import make_manager, make_node, manager  # noqa: F401 - fixtures
from tests.web.support import browser as browsers

from penstock.web.address import Address
from penstock.web.server import WebServer


@pytest.fixture
def serve():
    """Serves the page of a source, and stops after the test."""
    servers = []

    def start(source, address=None, **options):
        failures = []
        server = WebServer(
            address or Address("127.0.0.1", 0),
            source,
            lambda event, **fields: failures.append((event, fields)),
            **options,
        )
        server.failures = failures
        servers.append(server)
        server.start()
        return server

    yield start
    for one in servers:
        one.stop()


@pytest.fixture(scope="module")  # not for longer: timed tests of other folders come after it
def opened_browser():
    try:
        with browsers.browser() as opened:
            yield opened
    except NotToBeHadError as error:
        pytest.skip(f"Chromium is not to be had: {error}")


@pytest.fixture
def browser(opened_browser):
    """The browser, on an empty page with a wide screen. What it complains of fails the test."""
    browsers.screen(opened_browser, 1280, 900)
    opened_browser.get("about:blank")
    opened_browser.get_log("browser")
    opened_browser.expected_complaints = ()
    yield opened_browser
    complaints = [
        one["message"]
        for one in opened_browser.get_log("browser")
        if not any(word in one["message"] for word in opened_browser.expected_complaints)
    ]
    opened_browser.get("about:blank")
    assert not complaints
