"""Two nodes in network namespaces, and a link between them whose network breaks.

`python -m tests.card_link.support.network FOLDER` is started as the first process of new namespaces
(`tests/pool_nodes/support/namespaces.py`); it prints what happened, as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.card_link.support.cards import AGREEMENT, MODULE, write_identity
from tests.card_link.support.worker import ECHO, KINDS, SLEEP
from tests.pool_nodes.support import namespaces

from penstock.card.link import CardError, CardLink, TcpEndpoint, issue


def main(folder: Path) -> dict:
    """A short break, then a break for good while a request waits."""
    addresses = namespaces.build(["a", "b"])
    made = issue.issue(["front-end", "worker"])
    files = write_identity(folder / "worker", made["worker"])
    command = namespaces.within(
        "b", sys.executable, "-m", MODULE, "--tcp", f"{addresses['b']}:0", "--identity", files,
        "--peer", "front-end", "--silent-s", 2.5,
    )  # fmt: skip
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    endpoint = TcpEndpoint(
        addresses["b"], int(worker.stdout.readline()), made["front-end"], "worker"
    )
    link = CardLink("card 1", endpoint, AGREEMENT, kinds=KINDS)
    said = {"first": bytes(link.request(ECHO, b"on").result()).decode()}

    _set_link("down")
    waiting = link.request(ECHO, b"after a short break")
    threading.Timer(0.5, _set_link, ("up",)).start()
    said["short"] = bytes(waiting.result()).decode()

    waiting = link.request(SLEEP, b"60")
    time.sleep(0.3)
    broken_s = time.monotonic()
    _set_link("down")
    try:
        waiting.result()
    except CardError as error:
        said["error"] = str(error)
    said["noticed_s"] = time.monotonic() - broken_s
    said["code"] = worker.wait(20)
    return said


def _set_link(state: str) -> None:
    """The port of node b at the bridge: bytes vanish, and no side is told."""
    subprocess.run(["ip", "link", "set", "port11", state], check=True)


if __name__ == "__main__":
    namespaces.end_with_the_test()
    print(json.dumps(main(Path(sys.argv[1]))), flush=True)
