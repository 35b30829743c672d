"""Job control under a real shell: Ctrl-C and Ctrl-Z reach the command, `fg` wakes it."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest

from .conftest import wait_until

COMMAND = """
import os, signal, sys
counts = {signal.SIGINT: 0, signal.SIGCONT: 0}
def count(number, _frame):
    counts[number] += 1
for number in counts:
    signal.signal(number, count)
print('rea' + 'dy', os.getpid(), flush=True)
for line in iter(sys.stdin.readline, ''):
    print('cou' + 'nts', counts[signal.SIGINT], counts[signal.SIGCONT], flush=True)
    if line.startswith('end'):
        sys.exit(9)
"""


class Terminal:
    """An interactive bash on a terminal of its own, with `penstock run` as its foreground job."""

    def __init__(self, penstock, folder):
        script = folder / "command.py"
        script.write_text(COMMAND)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            for number in (signal.SIGINT, signal.SIGQUIT):  # our own parent may ignore them
                signal.signal(number, signal.SIG_DFL)
            shell = ["bash", "--norc", "--noprofile", "-i"]
            os.execvpe("bash", shell, penstock.environment)  # noqa: S606 - the terminal's shell
        self.seen = ""
        command = [sys.executable, "-m", "penstock"]
        command += penstock.run_arguments(["--", sys.executable, str(script)], "1Gi", "10")
        self.type(shlex.join(command) + "; echo 'exit code' $?\n")
        self.expect("ready ")
        self.child = int(self.expect("\n"))

    def type(self, text):
        os.write(self.fd, text.encode())

    def expect(self, text):
        """The output up to the end of `text`."""
        deadline = time.monotonic() + 20
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{text!r} not seen in {self.seen!r}"
            self.seen += os.read(self.fd, 4096).decode()
        before, self.seen = self.seen.split(text, 1)
        return before + text

    def counts(self):
        self.type("tell\n")
        self.expect("counts ")
        interrupts, continues = self.expect("\n").split()
        return int(interrupts), int(continues)

    def end(self):
        """Ends the command; its exit code as the shell saw it."""
        self.type("end\n")
        self.expect("counts ")
        self.expect("exit code ")
        return int(self.expect("\n"))


@pytest.fixture
def terminal(penstock, tmp_path):
    opened = Terminal(penstock, tmp_path)
    yield opened
    with contextlib.suppress(ProcessLookupError):
        os.kill(opened.child, signal.SIGKILL)
    os.kill(opened.pid, signal.SIGKILL)
    os.waitpid(opened.pid, 0)
    os.close(opened.fd)


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def test_ctrl_c_reaches_the_command_once(terminal):
    terminal.type("\x03")
    wait_until(lambda: terminal.counts()[0])
    assert terminal.counts()[0] == 1
    assert terminal.end() == 9


def test_ctrl_z_stops_the_job_and_fg_wakes_it(terminal):
    terminal.type("\x1a")
    terminal.expect("Stopped")
    assert state_of(terminal.child) == "T"
    assert state_of(parent_of(terminal.child)) == "T"
    terminal.type("fg\n")
    wait_until(lambda: state_of(terminal.child) != "T")
    assert terminal.counts()[1] >= 1
    terminal.type("end\n")
    terminal.expect("counts ")
    terminal.type("echo 'now' $?\n")
    terminal.expect("now 9")


def test_a_stop_and_a_continue_sent_to_penstock_run_alone_reach_the_command(penstock):
    # A process group of its own, with its parent in this session: one that may be stopped.
    process = penstock.start("--", "sh", "-c", "echo $$; exec sleep 1000", preexec_fn=os.setpgrp)
    child = int(process.stdout.readline())
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: state_of(child) == "T")
    wait_until(lambda: state_of(process.pid) == "T")
    stopped = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert stopped.si_status == signal.SIGTSTP
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: state_of(child) == "S")
    wait_until(lambda: state_of(process.pid) == "S")
    process.terminate()
    assert process.wait(30) == 143


def test_ctrl_backslash_ends_the_command_and_its_code_is_131(terminal):
    terminal.type("\x1c")
    terminal.expect("exit code ")
    assert int(terminal.expect("\n")) == 131
