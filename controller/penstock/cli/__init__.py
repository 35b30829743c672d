"""The `penstock` command. One file a sub-command; `app.py` lists them.

`penstock run` wraps every command of a user, so start-up time counts: sub-commands import what they
need when they run, not when the command line is parsed.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line; errors that a user can put right are one message and exit code 2."""
    from penstock.cli.app import app
    from penstock.cli.errors import user_message

    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of a pipe went away (`penstock ps | head`): end quietly, as other tools do.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        message = user_message(error)
        if message is None:
            raise
        print(f"penstock: {message}", file=sys.stderr)
        sys.exit(2)
