"""The `penstock` command. One file a sub-command; `app.py` lists them.

`penstock run` wraps every command of a user, so start-up time counts: sub-commands import what they
need when they run, not when the command line is parsed.
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
        # The reader of a pipe went away (`penstock ps | head`): end quietly, as other tools do.
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
    """Opens /dev/null on closed standard streams, so that no file of ours takes their numbers."""
    descriptor = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)  # the lowest free number
    while descriptor <= 2:
        descriptor = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.close(descriptor)


def _give_up_output() -> None:
    """Points stdout at /dev/null: a failed last flush would print more and change the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
