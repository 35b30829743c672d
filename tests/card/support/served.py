"""`penstock card serve` as a process."""

import contextlib
import re
import subprocess
import sys


class Served:
    """A card that is served. `first`: its first line; `port`: 0 if it is not served."""

    def __init__(self, credentials, port=0, card="cpu", more=()):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "card", "serve", f"--listen=127.0.0.1:{port}",
             f"--credentials={credentials}", f"--card={card}", *more],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.first = self.process.stderr.readline()
        found = re.search(r"at 127\.0\.0\.1:(\d+)", self.first)
        self.port = int(found[1]) if found else 0

    @property
    def card(self):
        return f"tcp:127.0.0.1:{self.port}=1"

    def end(self):
        """Its last words."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            return self.process.communicate(timeout=20)[1]
        finally:
            self.process.kill()
