"""Commands and Python programs that run as applications: a real agent, and a manager for tests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from tests.agent.support.other_user import NOBODY, needs_root
from tests.agent.support.programs import open_folder
from tests.pool_cli.conftest import Commands

from penstock_api.v1 import pool_pb2

SHOW = """
import ctypes, json, os
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
"""
QUOTA = 8 << 30


@pytest.fixture
def ready(member, manager, shares):
    """The commands on a node whose manager grants `app1` 8 GiB and 30 % of device 0."""
    manager.updates["app1"] = shares((0, 8, 300))
    made = Commands(member.state)
    made.member, made.manager = member, manager
    yield made
    made.close()


def acquire(*command):
    return ("acquire", "--tflops", "50", "--name", "app1", "--", *command)


def python(code, commands, *arguments, **options):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=commands.environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        **options,
    )


def is_released(commands):
    return [one[2].name for one in commands.manager.callers if one[0] == "Release"] == ["app1"]


def test_a_command_runs_under_the_quota_and_is_released_at_its_end(ready):
    code = SHOW + "print(total.value, os.environ['PENSTOCK_TENANT_DIR'])"
    done = ready(*acquire(sys.executable, "-c", code))
    assert done.returncode == 0, done.stderr
    total, directory = done.stdout.split()
    assert int(total) == QUOTA
    assert directory == str(ready.member.state / "tenants" / "app1")
    assert "application app1 is waiting" in done.stderr
    assert is_released(ready)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -9 $$"], 137),
        (["/nowhere/program"], 127),
        (["/etc/passwd"], 126),
    ],
)
def test_the_exit_code_is_the_commands(ready, command, code):
    assert ready(*acquire(*command)).returncode == code
    assert is_released(ready)


def run(commands, *options):
    return subprocess.run(
        [sys.executable, "-m", "penstock", "run", *options],
        env=commands.environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_penstock_run_with_tflops_gives_the_program_a_card_and_no_part_of_this_node(ready):
    code = "import os; print(*map(os.environ.get, ('PENSTOCK_CARD', 'CUDA_VISIBLE_DEVICES')))"
    done = run(ready, "--tflops", "50", "--name", "app1", "--", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"pool:app1@\d+ \n", done.stdout), done.stdout
    assert is_released(ready)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tflops", "50", "--cores", "30"], "--cores cannot be given with --tflops"),
        (["--tflops", "50", "--simulate", "h200"], "--simulate cannot be given with --tflops"),
        (["--priority", "3"], "--tflops is missing or empty"),
        (["--tflops", "50TF"], "write it without a unit: 50"),
    ],
)
def test_penstock_run_says_which_options_contradict_each_other(ready, options, message):
    done = run(ready, *options, "--", "true")
    assert done.returncode == 2
    assert message in done.stderr
    assert not ready.manager.callers


def test_signals_reach_the_command(ready):
    script = "trap 'echo got it; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    process = ready.start(*acquire("sh", "-c", script))
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "got it\n"
    assert process.wait(30) == 3
    assert is_released(ready)


def test_the_agent_notices_that_a_killed_holder_and_its_command_are_gone(ready):
    process = ready.start(*acquire("sleep", "600"), start_new_session=True)
    ready.manager.wait(lambda: "app1" in ready.manager.report.alive)
    ready.manager.wait_for("app1", "running")
    os.killpg(process.pid, signal.SIGKILL)
    ready.manager.wait(lambda: "app1" not in ready.manager.report.alive)


def test_who_ran_a_command_is_told_why_it_was_ended_also_after_its_agent_was_started_anew(ready):
    process = ready.start(*acquire("sh", "-c", "echo ready; exec sleep 600"))
    assert process.stdout.readline() == "ready\n"
    ready.manager.wait_for("app1", "running")
    ready.member.kill()  # with it the stream of events ends
    joins = ready.manager.joins
    ready.member.start()
    ready.manager.wait(lambda: ready.manager.joins > joins)
    ready.manager.wait_for("app1", "running")
    lost = pool_pb2.PoolEvent(event="lost", application="app1", reason="node n0 has left the pool")
    lost.time.GetCurrentTime()
    ready.manager.events.append(lost)
    ready.manager.end("app1")
    assert process.wait(60) in {137, 143}
    assert "application app1 is lost: node n0 has left the pool" in process.stderr.read()


def test_a_signal_while_it_waits_starts_no_command(ready, tmp_path):
    started = tmp_path / "started"
    process = ready.start(
        "acquire", "--tflops=5", "--wait=5m", "--name=waits-1", "--", "touch", str(started)
    )
    assert "waits-1 is waiting" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    ready.manager.wait(lambda: ready.manager.withdrawn == ["waits-1"])
    assert not started.exists()


def test_it_goes_on_waiting_when_the_agent_is_killed_and_started_again(ready):
    process = ready.start("acquire", "--tflops=5", "--wait=5m", "--name=waits-1", "--", "true")
    process.stderr.readline()
    claims = [one for one in ready.manager.callers if one[0] == "Acquire"]
    ready.member.kill()
    assert "asking again for the same claim" in process.stderr.readline()
    ready.member.start()
    acquired = lambda: [one for one in ready.manager.callers if one[0] == "Acquire"]  # noqa: E731
    ready.manager.wait(lambda: len(acquired()) > len(claims), 60)
    assert len({one[2].request_id for one in acquired()}) == 1
    assert process.poll() is None


LIBRARY = """
import json, os, sys
import penstock
with penstock.acquire(tflops=50, priority=10, wait="5m", name="app1") as card:
    import numpy
    from numba import cuda
    free, total = cuda.current_context().get_memory_info()
    first = cuda.to_device(numpy.arange(1000, dtype=numpy.float32))
    assert (first.copy_to_host() == numpy.arange(1000)).all()
    try:
        cuda.device_array(9 << 30, dtype=numpy.uint8)
        is_bounded = False
    except Exception as error:
        is_bounded = "OUT_OF_MEMORY" in str(error)
    print(json.dumps({"total": total, "is_bounded": is_bounded, "name": card.name,
                      "is_local": card.is_local, "tenant": os.environ["PENSTOCK_TENANT_DIR"]}))
    sys.stdout.flush()
    released = card.release()
print(json.dumps({"released": released, "tenant": os.environ.get("PENSTOCK_TENANT_DIR"),
                  "preload": os.environ.get("LD_PRELOAD")}))
"""


def test_a_python_program_runs_under_the_quota_that_it_acquires(ready):
    done = python(LIBRARY, ready)
    assert done.returncode == 0, done.stderr
    inside, after = map(json.loads, done.stdout.splitlines())
    assert inside == {
        "total": QUOTA,
        "is_bounded": True,
        "name": "app1",
        "is_local": True,
        "tenant": str(ready.member.state / "tenants" / "app1"),
    }
    # It has used the device, so that it belongs to the application until it ends.
    assert after == {"released": False, "tenant": None, "preload": None}
    (claim,) = [one[2] for one in ready.manager.callers if one[0] == "Acquire"]
    assert (claim.blocks, claim.priority, claim.wait.seconds) == (50, 10, 300)
    assert not is_released(ready)
    ready.manager.wait(lambda: "app1" not in ready.manager.report.alive)


def test_cuda_core_runs_under_the_quota_too(ready):
    code = """
import penstock
with penstock.acquire(50, name="app1"):
    from cuda.core import Device
    from cuda.bindings import driver
    Device(0).set_current()
    print(driver.cuMemGetInfo()[2], driver.cuMemAlloc(9 << 30)[0].name)
"""
    done = python(code, ready)
    assert done.stdout.split() == [str(QUOTA), "CUDA_ERROR_OUT_OF_MEMORY"], done.stderr


def test_a_program_that_has_not_used_the_device_releases_at_the_end_of_the_block(ready):
    code = """
import os, penstock
with penstock.acquire(50, name="app1") as card:
    print(card.is_local)
print(card.release(), "LD_PRELOAD" in os.environ)
"""
    done = python(code, ready)
    assert done.stdout.split() == ["True", "True", "False"], done.stderr
    assert is_released(ready)


def test_children_of_the_program_run_under_the_quota(ready):
    code = f"""
import subprocess, sys, penstock
with penstock.acquire(50, name="app1"):
    subprocess.run([sys.executable, "-c", {SHOW + "print(total.value)"!r}], check=True)
"""
    done = python(code, ready)
    assert done.stdout.split() == [str(QUOTA)], done.stderr


def test_a_forked_child_does_not_release_what_its_parent_holds(ready):
    code = """
import os, penstock
with penstock.acquire(50, name="app1") as card:
    child = os.fork()
    if child == 0:
        with card:
            pass
        card.release()
        import sys
        sys.exit(0)
    os.waitpid(child, 0)
    print("forked", flush=True)
    input()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=ready.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    ready.started.append(process)
    assert "forked" in process.stdout.readline()
    assert not is_released(ready)
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.wait(30) == 0
    assert is_released(ready)


@pytest.mark.parametrize(
    "ending", ["sys.exit(4)", "raise ValueError('bad')", "os._exit(5)", "os.kill(os.getpid(), 9)"]
)
def test_however_a_program_ends_its_blocks_are_given_back(ready, ending):
    code = f"import os, sys, penstock\ncard = penstock.acquire(50, name='app1')\n{ending}"
    done = python(code, ready)
    assert done.returncode != 0
    ready.manager.wait(lambda: "app1" not in ready.manager.report.alive)


def test_a_program_that_has_loaded_the_driver_is_told_to_acquire_first(ready):
    code = """
import ctypes, penstock
from penstock_shim import paths
ctypes.CDLL(str(paths.sim_dir() / "libcuda.so.1"))
penstock.acquire(50, name="app1")
"""
    done = python(code, ready)
    assert done.returncode == 1
    assert "it has already loaded the driver" in done.stderr
    assert "call penstock.acquire first, before anything uses CUDA" in done.stderr
    assert not ready.manager.callers


def test_a_process_is_one_application_at_a_time(ready):
    code = """
import penstock
card = penstock.acquire(50, name="app1")
try:
    penstock.acquire(50)
except penstock.PenstockError as error:
    print(error)
"""
    done = python(code, ready)
    assert "this process already runs under a quota" in done.stdout, done.stderr


def test_senseless_arguments_raise_before_anything_is_claimed(ready):
    code = """
import penstock
for arguments in ({"tflops": 0}, {"tflops": "x"}, {"tflops": True}, {"tflops": float("nan")},
                  {"tflops": 5, "wait": "soon"}, {"tflops": 5, "wait": -1},
                  {"tflops": 5, "wait": True},
                  {"tflops": 5, "memory": "40GB"}, {"tflops": 5, "span": "rack"},
                  {"tflops": 5, "priority": 1.5}, {"tflops": 5, "name": "a/b"},
                  {"tflops": 5, "kind": "?"}, {"tflops": 5, "pool": "nowhere"}):
    try:
        penstock.acquire(**arguments)
    except penstock.PenstockError as error:
        assert error.what and error.why and error.fix, error
        print("refused")
"""
    done = python(code, ready)
    assert done.stdout.split() == ["refused"] * 13, done.stderr
    assert not ready.manager.callers


def test_importing_penstock_loads_neither_grpc_nor_the_shim():
    code = (
        "import sys, penstock;"
        "print(sorted(m for m in sys.modules if m.startswith(('grpc', 'pens'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['penstock']"


AS_NOBODY = f"""
import os, sys
import penstock.cli.pool_waiting, penstock.cli.render.pool_table
import penstock.node.launch.child, penstock.node.tenants.environment
from penstock.cli.pool_application import run_application
from penstock.client.connect import PoolPlace
from penstock.node.rpc import PoolClaim
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})  # from here on it cannot read the interpreter's folder
sys.exit(run_application(PoolPlace(), PoolClaim(50, name="app1"), sys.argv[1:], quiet=False))
"""


@needs_root
def test_a_user_runs_a_command_as_an_application(ready):
    open_folder(ready.member.state)
    show = "id -u; echo $PENSTOCK_TENANT_DIR; echo $LD_PRELOAD"
    done = python(AS_NOBODY, ready, "sh", "-c", show)
    assert done.returncode == 0, done.stderr
    uid, directory, preload = done.stdout.splitlines()
    assert uid == str(NOBODY)
    assert directory == str(ready.member.state / "tenants" / "app1")
    assert "libpenstock.so" in preload
    assert is_released(ready)
    callers = {(one[0], one[1].uid) for one in ready.manager.callers}
    assert {("Acquire", NOBODY), ("Release", NOBODY)} <= callers


def test_without_a_command_blocks_of_this_node_are_claimed_or_with_anywhere_of_any(ready):
    for options, node in (
        ([], ready.member.started["node"]),
        (["--node", "other"], "other"),
        (["--anywhere"], ""),
    ):
        done = ready("acquire", "--tflops", "5", "--name", "app1", *options)
        assert done.returncode == 0, done.stderr
        request = [one[2] for one in ready.manager.callers if one[0] == "Acquire"][-1]
        assert (request.node, request.lifetime) == (node, 1)


def test_the_driver_cannot_be_loaded_past_the_shim_under_another_name(ready):
    code = """
import ctypes, penstock
from penstock_shim import paths
with penstock.acquire(50, name="app1"):
    for name in ("libcuda.so", str(paths.sim_dir() / "libcuda.so.1")):
        try:
            ctypes.CDLL(name)
        except OSError as error:
            print("application of a compute pool" in str(error))
"""
    done = python(code, ready)
    assert done.stdout.split() == ["True", "True"], done.stderr
