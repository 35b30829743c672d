"""gRPC without its own messages on standard error, where users read ours.

gRPC's core reads its variable when it is loaded: import this module before `grpc`.
"""

from __future__ import annotations

import os

VARIABLE = "GRPC_VERBOSITY"


def load() -> None:
    """Loads gRPC. The variable is not left to the programs that this process starts."""
    if VARIABLE in os.environ:  # the user wants other messages
        return
    os.environ[VARIABLE] = "ERROR"
    try:
        import grpc  # noqa: F401
    finally:
        del os.environ[VARIABLE]


load()
