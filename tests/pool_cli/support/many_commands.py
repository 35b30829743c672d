"""Runs many command lines, each in a fork of one process that has loaded the command already.

many_commands.py < JSON list of argument lists > JSON list of [exit code, standard error]
"""

from __future__ import annotations

import json
import os
import sys

from penstock.cli import main
from penstock.cli.app import command_line


def one(arguments: list[str]) -> tuple[int, str]:
    """Runs one command line."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.close(reading)
        os.close(writing)
        sys.argv = ["penstock", *arguments]
        try:
            main()
        except SystemExit as ended:
            sys.stderr.flush()
            os._exit(ended.code if isinstance(ended.code, int) else 1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        said = stream.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


if __name__ == "__main__":
    command_line("pool")
    print(json.dumps([one(arguments) for arguments in json.load(sys.stdin)]))
