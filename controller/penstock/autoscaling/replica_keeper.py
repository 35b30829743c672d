"""Replica keeper: runs one replica like `penstock run`, in a process that outlives the scaler.

Each replica has a keeper, which admits and supervises the replica and records its state in the
set's files, so that a later scaler knows which replicas an earlier scaler started.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from penstock.autoscaling.set_store import Record, RecordPhase, SetSpec, SetStore
from penstock.devices import open_devices, open_machine
from penstock.model import PenstockError
from penstock.node.admission.admit import admit
from penstock.node.launch.child import CommandNotStartedError
from penstock.node.launch.run import run_tenant
from penstock.node.tenants.state import State

REFUSED_EXIT_CODE = 125  # the exit code by which `timeout` and `env` report their own failure
# Run with `python -c`, so a user's file in the working directory must not shadow a module.
PROGRAM = (
    "import sys\n"
    "if sys.path and sys.path[0] == '': del sys.path[0]\n"
    "from penstock.autoscaling.replica_keeper import main; main(sys.argv)"
)


# Runs a replica as a tenant until it ends, and returns its exit code. It calls the function passed
# to it when the command has started; an exception before that says why the replica did not start.
Runner = Callable[["SetStore", "SetSpec", int, Callable[[], None]], int]


def run_here(store: SetStore, spec: SetSpec, number: int, started: Callable[[], None]) -> int:
    """The `Runner` for nodes without an agent."""
    if store.state.has_agent():
        raise PenstockError("an agent owns the devices now", "only the agent may create tenants")
    # Not `simulated_machine`, because keepers that start together must share the scaler's machine.
    source = open_machine(Path(spec.machine)) if spec.machine else open_devices()
    request = spec.request_of(number)
    admitted = admit(store.state, request, source)
    return run_tenant(store.state, admitted, request.command, source, started)


def main(arguments: list[str], run: Runner = run_here) -> None:
    """`keeper STATE_DIRECTORY SET NUMBER`: runs the replica until it ends; exits with its code."""
    try:
        store, number = SetStore(State.open(Path(arguments[1])), arguments[2]), int(arguments[3])
        lock = store.lock_replica(number)
    except (PenstockError, OSError) as error:  # for example a full disk, or no descriptors left
        print(f"penstock: cannot keep a replica: {error}", file=sys.stderr)
        sys.exit(REFUSED_EXIT_CODE)
    if lock is None:  # another scaler's keeper was first
        sys.exit(0)
    sys.exit(keep(store, number, run))


def keep(store: SetStore, number: int, run: Runner) -> int:
    """Runs replica `number` and returns its exit code. The caller must hold the replica's lock."""
    has_started = False

    def say(phase: RecordPhase, reason: str = "", exit_code: int | None = None) -> None:
        # On a full disk the record is lost, but the replica runs.
        with contextlib.suppress(OSError):
            store.write_record(number, Record(phase, os.getpid(), exit_code, reason))

    def started() -> None:
        nonlocal has_started
        has_started = True
        say("running")

    say("starting")
    spec = store.read_spec()
    if spec is None:
        say("refused", f"{store.directory / 'set.json'} cannot be read")
        return REFUSED_EXIT_CODE
    try:
        code = run(store, spec, number, started)
    except CommandNotStartedError as error:
        say("ended", str(error), error.exit_code)
        return error.exit_code
    except Exception as error:  # the scaler reports any error and retries
        if has_started:
            raise
        text = f"{error.what}: {error.why}" if isinstance(error, PenstockError) else str(error)
        say("refused", text or type(error).__name__)
        return REFUSED_EXIT_CODE
    say("ended", exit_code=code)
    return code
