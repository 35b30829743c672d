"""Runner for vendors' tools, which may be missing, hang, print too much or fail."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from penstock.devices.inventory.figure import NotAvailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.devices.inventory.figure import Figure

TIMEOUT_S = 10.0  # these tools first start a runtime, which takes seconds on large machines
MOST_BYTES = 8 << 20
_REAP_S = 1.0


def ask(command: Sequence[str], *, package: str, timeout_s: float = TIMEOUT_S) -> Figure[str]:
    """The standard output of `command`. `package` is what to install if the command is missing.

    The command runs in the C locale, without input, in its own process group, which is killed after
    `timeout_s`. A process that the kernel cannot kill is left behind.
    """
    words = " ".join(command)
    environment = {**os.environ, "LC_ALL": "C", "LANG": "C", "LANGUAGE": "C"}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except FileNotFoundError:
        return NotAvailable(f"{command[0]} is not installed", f"install {package}")
    except PermissionError:
        return NotAvailable(
            f"{command[0]} may not be run by this user", "run it as root, or get permission"
        )
    except OSError as error:
        return NotAvailable(f"{command[0]} cannot be run: {error.strerror}", f"reinstall {package}")
    try:
        output, problems, late = _collect(process, time.monotonic() + timeout_s)
    finally:
        _end(process)
    if late is not None:
        return NotAvailable(f"{words} {late}", "check whether the device's driver responds at all")
    if process.returncode != 0:
        said = (problems.strip() or output.strip()).splitlines()
        last = f": {said[-1].strip()[:200]}" if said else ""
        return NotAvailable(
            f"{words} failed (exit code {process.returncode}){last}",
            "run it by hand; some tools need root, or a group that may use the device",
        )
    return output


def _collect(process: subprocess.Popen[bytes], until: float) -> tuple[str, str, str | None]:
    """Both outputs, and the reason why the rest of them was not read, or None."""
    assert process.stdout is not None  # noqa: S101 - for mypy: it is a pipe
    assert process.stderr is not None  # noqa: S101
    parts: dict[int, bytearray] = {}
    late = None
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdout, process.stderr):
            selector.register(stream, selectors.EVENT_READ)
            parts[stream.fileno()] = bytearray()
        while selector.get_map() and late is None:
            ready = selector.select(max(0.0, until - time.monotonic()))
            if not ready:
                late = "did not respond in time"
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                parts[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fileobj)
                elif len(parts[key.fd]) > MOST_BYTES:
                    late = f"printed more than {MOST_BYTES >> 20} MiB"
    if late is None:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = "closed its output and did not end"
    output, problems = (bytes(part).decode(errors="replace") for part in parts.values())
    return output, problems, late


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the remaining processes of the group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)


def nothing_there(what: str, lacking: NotAvailable) -> NotAvailable:
    """Why a kind has no device, if the bus shows none and its tool did not respond."""
    return NotAvailable(f"no {what} is on the PCI bus, and {lacking.why}", lacking.fix)
