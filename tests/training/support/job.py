"""A job whose ranks are processes of this machine, each with a program as its user starts it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from penstock.training.names import VARIABLE, Place

# As a user's shell has it: tests of the virtual card change these for their own processes.
OURS = {"PENSTOCK_CARD", "TORCH_DEVICE_BACKEND_AUTOLOAD"}
ALONE = {name: value for name, value in os.environ.items() if name not in OURS}
ALONE["OMP_NUM_THREADS"] = "1"
AS_RANK = """
import runpy, sys, torch
from penstock.training.pytorch.start import start
start()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def run_job(program, *arguments, weights=(3, 2, 1), timeout_s=120):
    """What each rank printed. Fails if one did not end well."""
    store = f"127.0.0.1:{free_port()}"
    started = []
    for rank in range(len(weights)):
        place = Place(rank, len(weights), store, 5, tuple(map(float, weights)))
        environment = {**ALONE, VARIABLE: str(place), "GLOO_SOCKET_IFNAME": "lo"}
        started.append(subprocess.Popen(
            [sys.executable, "-c", AS_RANK, program, *arguments], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ))  # fmt: skip
    try:
        said = [one.communicate(timeout=timeout_s) for one in started]
    finally:
        for one in started:
            one.kill()
    return [(one.returncode, *texts) for one, texts in zip(started, said, strict=True)]


def run_alone(program, *arguments):
    """What the program prints on one machine."""
    done = subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True,
                          check=True, env=ALONE)  # fmt: skip
    return done.stdout
