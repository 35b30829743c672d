"""Chromium of Debian's packages, driven headless over WebDriver."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import contextmanager

from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from tests.containers.support.images import NotToBeHadError, install

PACKAGES = ("chromium", "chromium-driver", "fonts-dejavu-core")
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--no-proxy-server", "--hide-scrollbars", "--disable-extensions",
    "--disable-background-networking", "--lang=en",
)  # fmt: skip


def programs():
    """The paths of chromium and chromedriver; installs them first. Raises NotToBeHadError."""
    for attempt in range(2):
        found = [shutil.which("chromium"), shutil.which("chromedriver")]
        if all(found):
            return found
        if attempt == 0:
            install(*PACKAGES)
    raise NotToBeHadError("Debian's chromium has no program of that name")


@contextmanager
def browser():
    """A browser for several pages. Raises NotToBeHadError if there is none."""
    chromium, driver = programs()
    options = ChromeOptions()
    options.binary_location = chromium
    for one in OPTIONS:
        options.add_argument(one)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = ChromeService(executable_path=driver, log_output=subprocess.DEVNULL)
    opened = Chrome(options=options, service=service)
    try:
        opened.set_page_load_timeout(30)
        yield opened
    finally:
        opened.quit()


def screen(opened, width, height, *, dark=False, scale=1):
    """Sets the size of the screen, and which scheme its user prefers."""
    opened.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600},
    )
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
