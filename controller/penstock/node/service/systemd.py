"""systemd control: reloads the agent's unit, and starts and stops its service."""

from __future__ import annotations

import subprocess
from pathlib import Path

from penstock.model import PenstockError
from penstock.node.service.installation import UNIT

STARTED_WITHIN_S = 120


def runs_systemd() -> bool:
    """Whether this machine was booted by systemd."""
    return Path("/run/systemd/system").is_dir()


def restart_service() -> list[str]:
    """Reloads, enables and restarts the unit; returns the commands. Tenants keep running.

    Raises:
        PenstockError: a command failed.
    """
    return [_systemctl("daemon-reload"), _systemctl("enable", UNIT), _systemctl("restart", UNIT)]


def stop_service() -> list[str]:
    """Disables and stops the unit; returns the commands. Tenants keep running.

    Raises:
        PenstockError: a command failed.
    """
    return [_systemctl("disable", "--now", UNIT)]


def _systemctl(*words: str) -> str:
    command = ["systemctl", *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=STARTED_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(command, str(error)) from error
    if done.returncode:
        raise _failed(command, done.stderr.strip().replace("\n", " "))
    return " ".join(command)


def _failed(command: list[str], why: str) -> PenstockError:
    return PenstockError(f"{' '.join(command)} failed", why, f"see journalctl -u {UNIT}")
