"""`penstock top` and `ps` beside an agent: their output, by user and on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from tests.agent.conftest import GIB, wait_until
from tests.agent.support.programs import backlogged, open_to_nobody

NOBODY = 65534
LEAVES = b"\x1b[?1049l"  # the alternate screen


class Terminal:
    """`penstock top` on its own terminal."""

    def __init__(self, node, columns: int = 80, lines: int = 24) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(node.environment, TERM="xterm-256color")
            os.environ.pop("NO_COLOR", None)
            for number in (signal.SIGINT, signal.SIGTSTP):  # who started us may ignore them
                signal.signal(number, signal.SIG_DFL)
            top = [sys.executable, "-m", "penstock", "top", "--interval=0.2"]
            os.execv(sys.executable, top)  # noqa: S606 - the terminal's program
        self.settings = termios.tcgetattr(self.fd)
        self.resize(columns, lines)
        self.written = b""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, text: bytes) -> None:
        os.write(self.fd, text)

    def read(self) -> bool:
        """Reads new output. False: the terminal is closed."""
        ready, _, _ = select.select([self.fd], [], [], 0.05)
        with contextlib.suppress(OSError):
            got = os.read(self.fd, 65536) if ready else None
            self.written += got or b""
            return got != b""
        return False

    def screens(self) -> list[list[str]]:
        """The complete screens, without colours, oldest first."""
        pictures = self.written.split(b"\x1b[H")[1:-1]
        plain = [re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", one).decode() for one in pictures]
        return [[line.rstrip() for line in one.split("\n")] for one in plain]

    def shows(self, condition) -> list[str]:
        """The first new screen for which `condition` holds."""
        self.written = b""

        def found():
            assert self.read(), "it ended"
            return next((one for one in self.screens() if condition(one)), None)

        try:
            return wait_until(found, 10)
        except AssertionError:
            raise AssertionError(self.screens()[-1:]) from None

    def end(self) -> int:
        """Waits for its end; returns the exit status."""
        deadline = time.monotonic() + 20
        while self.read():
            assert time.monotonic() < deadline, "it does not end"
        self.status = os.waitpid(self.pid, 0)[1]
        return os.waitstatus_to_exitcode(self.status)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def terminal(node):
    opened = []

    def start(**options) -> Terminal:
        opened.append(Terminal(node, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def line_of(picture, name):
    return next((line for line in picture if line.startswith(name)), "")


def test_top_is_live_sorts_resizes_and_goes_on_over_a_restart_of_the_agent(node, terminal):
    node.launch(node.tenant("worker", cores=300, memory=4 * GIB), *backlogged(120))
    node.tenant("idle", cores=100, memory=20 * GIB, command=("/opt/srv", "--port\x1b[2J", "1"))
    with node.client() as agent:
        agent.suspend("idle")
    wait_until(lambda: node.usage("worker").devices[0].launches > 50)
    top = terminal()
    seen = top.shows(lambda one: re.search(r"\b(2\d|3[0-3])\.\d/30\b", line_of(one, "worker")))
    assert max(map(len, seen)) <= 80
    assert re.match(r"0 H200 \(sim\) +[█▉▊▋▌▍▎▏▒░]+ +\d+\.\d% ", line_of(seen, "0 H200"))
    assert "█" in line_of(seen, "worker")
    assert line_of(seen, "idle").split()[1] == "root" or os.geteuid()
    assert "suspended: srv --port" in line_of(seen, "idle")
    order = [line.split()[0] for line in seen if line.startswith(("worker", "idle"))]
    assert order == ["worker", "idle"]
    top.type(b"n")
    top.shows(lambda one: "\n".join(one).index("idle") < "\n".join(one).index("worker"))
    with node.client() as agent:
        agent.resume("idle")
    top.resize(60, 9)
    narrow = top.shows(lambda one: len(one) <= 9 and max(map(len, one)) <= 60)
    assert "USER" not in "\n".join(narrow)
    top.resize(80, 24)
    node.kill()
    top.shows(lambda one: any("trying again" in line for line in one))
    node.start()
    top.shows(lambda one: line_of(one, "worker") and not any("trying again" in x for x in one))
    top.type(b"q")
    assert top.end() == 0
    assert LEAVES in top.written
    assert b"\x1b[2J" not in top.written  # nothing is blanked, so nothing flickers
    assert b"\x1b[3" in top.written  # and there are colours


def test_ctrl_z_and_signals_give_the_terminal_back_as_it_was(node, terminal):
    top = terminal()
    top.shows(lambda one: any("no tenants" in line for line in one))
    assert not termios.tcgetattr(top.fd)[3] & termios.ICANON
    top.written = b""
    top.type(b"\x1a")
    wait_until(lambda: top.read() and os.waitid(os.P_PID, top.pid, os.WSTOPPED | os.WNOHANG))
    assert LEAVES in top.written
    assert termios.tcgetattr(top.fd)[3] & termios.ICANON
    os.kill(top.pid, signal.SIGCONT)
    top.shows(lambda one: any("no tenants" in line for line in one))
    top.written = b""
    os.kill(top.pid, signal.SIGTERM)
    assert top.end() == 128 + signal.SIGTERM
    assert LEAVES in top.written


def test_without_a_terminal_there_is_one_picture_without_colours(node):
    node.tenant("t", cores=100, memory=GIB)
    for arguments in (["top"], ["top", "--once"]):
        done = node(*arguments, env={"TERM": "xterm-256color"})
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
        assert line_of(done.stdout.splitlines(), "t ").split()[-1] == "launcher"
    plain = node("top", env={"PYTHONIOENCODING": "ascii"})
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.isascii()
    assert node("top", "--state-dir", str(node.state / "none")).returncode == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="changes its user: needs root")
def test_a_user_sees_the_tenants_of_roots_agent(node):
    node.tenant("roots", memory=GIB)
    open_to_nobody(node)
    # Run once as root, so that all is imported: the interpreter's own files may be root's alone.
    code = f"""
import contextlib, io, os, sys
import penstock.node.rpc, penstock.cli.render.feed
from penstock.cli.app import command_line
app = command_line(sys.argv[1])
with contextlib.redirect_stdout(io.StringIO()):
    app(sys.argv[1:], standalone_mode=False)
os.setgid({NOBODY}); os.setuid({NOBODY})
app(sys.argv[1:], standalone_mode=False)
"""

    def penstock(*arguments):
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(
            command, env=node.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    for command in ("top", "ps"):
        (row,) = json.loads(penstock(command, "-o", "json"))
        assert (row["tenant"], row["user"]) == ("roots", "root")
        assert row["memory"] == {
            "quota_bytes": GIB, "used_bytes": 0, "peak_bytes": 0, "device_measured_bytes": None,
        }  # fmt: skip
        assert "roots" in penstock(command)
    assert json.loads(penstock("top", "-o", "json"))[0]["suspended"] is False
