"""Child process that runs a command transparently: signals, job control, exit code, terminal.

The command stays in our process group, so the terminal's signals and job control reach it directly;
signals sent only to us are forwarded. All signals are blocked and read by `sigtimedwait`, whose
timeout is also the supervisor's clock, so no signal handler ever runs.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGALRM,
    signal.SIGCONT,
    signal.SIGTSTP,
)
# Stop signals from the terminal: if one of these stops the command, we stop ourselves with it.
JOB_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_SENT_BY_KERNEL = 0x80  # si_code of the terminal's signals
_RESET = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores these signals, but our parent did not


def why_not(command: str, error: OSError) -> str:
    """Why `command` could not be started. The kernel reports a directory as EACCES."""
    if error.errno == errno.EACCES and "/" in command and Path(command).is_dir():
        return os.strerror(errno.EISDIR)
    return error.strerror or str(error)


class CommandNotStartedError(PenstockError):
    """The command could not be started. `exit_code` is 127 if it was not found, else 126."""

    def __init__(self, command: str, error: OSError) -> None:
        self.exit_code = 127 if error.errno == errno.ENOENT else 126
        super().__init__(f"cannot run {command!r}", why_not(command, error), "check the command")


WATCHED = frozenset({*PASSED_ON, *JOB_STOPS, signal.SIGCHLD})


def block_signals() -> set[int]:
    """Blocks the signals that a `Child` waits for; returns the old mask, to use for the command.

    Call it before any thread is started, because an earlier thread would receive the signals.
    """
    return signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)


def unblock_signals(blocked: set[int]) -> None:
    """Restores the signal mask `blocked`, which `block_signals` returned."""
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


class Child:
    """A running command."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        blocked: set[int] | None = None,
    ) -> None:
        """Starts `command`. From here on, the signals stay blocked in this process.

        `blocked`: the command's signal mask, as returned by `block_signals`; None for the current
        mask.

        Raises:
            CommandNotStartedError: the command cannot be executed.
        """
        watched = set(WATCHED)
        before = block_signals() if blocked is None else blocked
        # If SIGCHLD were ignored, as our parent may have set it, the exit code would be lost.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            self.pid = os.posix_spawnp(
                command[0], list(command), dict(environment), setsigmask=before, setsigdef=_RESET
            )
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            raise CommandNotStartedError(command[0], error) from error
        self._watched = watched
        self._exit_code: int | None = None

    def wait(self, tick: Callable[[], None], period_s: float) -> int:
        """The exit code, 128+n if signal n killed the command; calls `tick` every `period_s`."""
        due = time.monotonic()
        while self._exit_code is None:
            now = time.monotonic()
            if now >= due:
                tick()
                due = max(due + period_s, now + period_s / 2)
            received = signal.sigtimedwait(self._watched, max(0.0, due - time.monotonic()))
            if received is None:
                continue
            if received.si_signo == signal.SIGCHLD:
                self._look_at_child()
            else:
                self._pass_on(received)
        return self._exit_code

    def _look_at_child(self) -> None:
        """Handles an exit or stop of the command, and ignores children that we did not start."""
        options = os.WEXITED | os.WSTOPPED | os.WNOHANG
        while self._exit_code is None:
            result = os.waitid(os.P_PID, self.pid, options)
            if result is None:
                return
            if result.si_code == os.CLD_EXITED:
                self._exit_code = result.si_status
            elif result.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
                self._exit_code = 128 + result.si_status
            elif result.si_status in JOB_STOPS:
                self._stop_by(result.si_status)

    @staticmethod
    def _stop_by(number: int) -> None:
        """Stops this process with the signal that stopped the command, so that the shell notices.

        The SIGCONT that wakes us stays pending because it is blocked, and is then forwarded like
        others.
        """
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})  # this process stops here
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})

    def _pass_on(self, received: signal.struct_siginfo) -> None:
        """Forwards a signal that neither the command sent nor the terminal sent to the command."""
        if received.si_pid == self.pid and received.si_code != _SENT_BY_KERNEL:
            return
        try:
            if received.si_code == _SENT_BY_KERNEL and os.getpgid(self.pid) == os.getpgrp():
                return
            os.kill(self.pid, received.si_signo)
        except ProcessLookupError:
            return
