"""The `penstock` command. Each sub-command has its own file; `app.py` lists them.

Users start every GPU program through `penstock run`, so its start-up time matters: sub-commands
import the modules they need when they run, not when the command line is parsed.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line; a user error prints one message and exits with code 2."""
    from penstock.cli.app import command_line
    from penstock.cli.errors import user_message
    from penstock.cli.say import say

    _fill_closed_descriptors()
    try:
        try:
            command_line(*sys.argv[1:2])()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # a failed write is reported here, not at exit
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader closed the pipe (`penstock ps | head`). Exit quietly, as other tools do.
        _give_up_output()
        sys.exit(141)
    except Exception as error:
        message = user_message(error)
        if message is None:
            raise
        say(message)
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError:
            _give_up_output()
        sys.exit(2)


def _fill_closed_descriptors() -> None:
    """Opens /dev/null on closed standard streams so that no other file gets descriptors 0 to 2."""
    descriptor = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)  # the lowest free number
    while descriptor <= 2:
        descriptor = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.close(descriptor)


def _give_up_output() -> None:
    """Redirects stdout to /dev/null so that a failed flush at exit cannot change the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
