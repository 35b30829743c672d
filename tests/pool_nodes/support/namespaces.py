"""Network namespaces on one bridge, inside other namespaces that end with their first process.

`run` starts a scenario as the first process of new process, network and mount namespaces. When that
process ends, the kernel ends all others in its process namespace, and with them the network and all
mounts go. It ends by itself when the test that started it is gone, even after SIGKILL: its
standard input is a pipe whose other end only the test has.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
NAMESPACES = ("unshare", "--pid", "--net", "--mount", "--fork", "--kill-child", "--mount-proc")
NETWORK = "10.191.0"
TOOLS = ("unshare", "ip", "tc", "mount", "openssl")


def run(scenario: str, folder: Path, timeout_s: float, **arguments: object) -> dict:
    """Runs a function of `scenarios` in new namespaces; returns what it returned."""
    process, lifeline = start(scenario, folder, **arguments)
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        pytest.fail(f"{scenario} took more than {timeout_s:g} s: {errors[-3000:]}")
    finally:
        os.close(lifeline)
    assert process.returncode == 0, errors[-4000:]
    return json.loads(output.splitlines()[-1])


def start(scenario: str, folder: Path, **arguments: object) -> tuple[subprocess.Popen[str], int]:
    """Starts it. It ends when the descriptor that is returned is closed, or with this process."""
    if os.geteuid() != 0:
        pytest.skip("nodes in network namespaces need root")
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        pytest.skip(f"nodes in network namespaces need {', '.join(missing)}")
    module = "tests.pool_nodes.support.inside"
    words = [sys.executable, "-m", module, scenario, str(folder), json.dumps(arguments)]
    theirs, ours = os.pipe()  # neither is inherited but as standard input
    try:
        process = subprocess.Popen(
            [*NAMESPACES, *words],
            cwd=PROJECT,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        os.close(theirs)
    return process, ours


# Inside.


def end_with_the_test() -> None:
    """Ends this process, and so everything in its namespaces, when standard input ends."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def build(names: list[str]) -> dict[str, str]:
    """Makes the bridge and a namespace for each name; returns their addresses."""
    _run("mount", "--make-rprivate", "/")
    _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    _ip("link set lo up")
    _ip("link add lan type bridge")
    _ip(f"address add {NETWORK}.1/24 dev lan")
    _ip("link set lan up")
    addresses = {}
    for number, name in enumerate(names, 10):
        _ip(f"netns add {name}")
        addresses[name] = f"{NETWORK}.{number}"
        port = _port(addresses[name])
        _ip(f"link add eth0 netns {name} type veth peer name {port}")
        _ip(f"link set {port} master lan up")
        for line in (
            "link set lo up",
            f"address add {addresses[name]}/24 dev eth0",
            "link set eth0 up",
        ):
            _ip(f"-netns {name} {line}")
    return addresses


def name_hosts(folder: Path, addresses: dict[str, str]) -> None:
    """Makes the addresses known by name, in /etc/hosts of these namespaces alone."""
    hosts = folder / "hosts"
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    hosts.write_text("\n".join(lines) + "\n")
    _run("mount", "--bind", str(hosts), "/etc/hosts")


def cut(name: str, address: str) -> None:
    """Drops all packets from and to a namespace, without an error to either side."""
    # A queue of one byte: no packet fits in. Not every kernel has netem.
    _run("tc", *f"qdisc add dev {_port(address)} root bfifo limit 1".split())
    _run("tc", *f"-netns {name} qdisc add dev eth0 root bfifo limit 1".split())


def mend(name: str, address: str) -> None:
    """Ends `cut`."""
    _run("tc", *f"qdisc del dev {_port(address)} root".split())
    _run("tc", *f"-netns {name} qdisc del dev eth0 root".split())


def set_link(name: str, state: str) -> None:
    """Sets the network device of a namespace "up" or "down"."""
    _ip(f"-netns {name} link set eth0 {state}")


def within(name: str, *command: object) -> list[str]:
    """A command line that runs in the namespace of that name; its process is the command's."""
    return ["ip", "netns", "exec", name, *map(str, command)]


def _port(address: str) -> str:
    """The port of the bridge to which the namespace of this address is connected."""
    return f"port{address.rpartition('.')[2]}"


def _ip(line: str) -> None:
    _run("ip", *line.split())


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=30, stdout=sys.stderr)
