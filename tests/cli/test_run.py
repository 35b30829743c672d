"""`penstock run`: the command runs as if it had been started by itself, under a quota."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from penstock_shim import paths
from penstock_shim.pages import read_quota

from .conftest import alive, wait_until

PYTHON = sys.executable


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_is_that_of_the_command(penstock, code):
    assert penstock.run("--", "sh", "-c", f"exit {code}").returncode == code
    assert penstock.tenants() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_command_that_a_signal_ended_exits_with_128_and_its_number(penstock, number):
    assert penstock.run("--", "sh", "-c", f"kill -{int(number)} $$").returncode == 128 + number


@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_run_is_reported_as_a_shell_reports_it(penstock, command, code):
    result = penstock.run("--", command)
    assert result.returncode == code
    assert f"cannot run '{command}'" in result.stderr
    assert "Traceback" not in result.stderr
    assert penstock.tenants() == []


def test_a_command_that_did_not_start_is_not_announced(penstock):
    limits = ["--simulate=h200", "--memory=8Gi", "--cores=30"]
    result = penstock("run", *limits, "--", "no-such-command")
    assert result.returncode == 127
    assert result.stderr.splitlines() == [result.stderr.strip()]
    assert "cooperative" not in result.stderr


def test_input_output_and_arguments_pass_through(penstock):
    script = "import sys; print(sys.argv[1:], sys.stdin.read()); print('e', file=sys.stderr)"
    result = penstock.run("--", PYTHON, "-c", script, "-x", "--memory", "a b", input="in")
    assert result.stdout == "['-x', '--memory', 'a b'] in\n"
    assert result.stderr == "e\n"


def test_arguments_that_are_not_utf_8_pass_through_and_are_shown_escaped(penstock):
    script = "import os, sys; print(os.fsencode(sys.argv[1]).hex(), flush=True); sys.stdin.read()"
    program = penstock.start("--", PYTHON, "-c", script, "a\udcff", stdin=subprocess.PIPE)
    assert program.stdout.readline() == "61ff\n"
    (row,) = penstock.ps()
    assert row["command"][-1] == "a\\xff"
    program.communicate()


def test_a_summary_says_that_the_quota_is_cooperative(penstock):
    result = penstock("run", "--simulate", "h200", "--memory", "8Gi", "--cores", "30", "--", "true")
    assert (
        "tenant true: 8Gi and 30 cores of simulated device 0 (NVIDIA H200), strict" in result.stderr
    )
    assert "cooperative" in result.stderr


def test_the_command_finds_shim_quota_and_device_in_its_environment(penstock):
    result = penstock.run("--name", "mine", "--", "env", env={"LD_PRELOAD": "libm.so.6"})
    environment = dict(line.split("=", 1) for line in result.stdout.splitlines())
    preloads = environment["LD_PRELOAD"].split(":")
    assert preloads == [str(paths.so_path()), str(paths.nvml_so_path()), "libm.so.6"]
    assert environment["PENSTOCK_TENANT_DIR"] == str(penstock.state / "tenants" / "mine")
    assert environment["CUDA_VISIBLE_DEVICES"].startswith("GPU-")
    assert environment["PENSTOCK_SIM_TAG"] == "mine"
    assert environment["LD_LIBRARY_PATH"].split(":")[0] == str(paths.sim_dir())


def test_the_quota_page_holds_what_was_granted(penstock):
    process = penstock.start(
        "--name=t", "--", "sh", "-c", "echo ready; read x", stdin=subprocess.PIPE
    )
    assert process.stdout.readline() == "ready\n"
    quota = read_quota(penstock.state / "tenants" / "t" / "quota")
    assert quota.tenant == "t"
    assert quota.limits.mode == "strict"
    (device,) = quota.limits.devices
    assert (device.memory_bytes, device.cores_permille, device.allowance) == (8 << 30, 300, 300)
    assert device.context_reserve_bytes > 0
    assert quota.driver_path == str(paths.sim_dir() / "libcuda.so.1")
    first = quota.heartbeat_ns
    wait_until(lambda: read_quota(penstock.state / "tenants" / "t" / "quota").heartbeat_ns > first)
    process.communicate("\n", timeout=30)
    assert process.returncode == 0
    assert penstock.tenants() == []


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGWINCH,
    ],
)
def test_a_signal_sent_to_penstock_run_reaches_the_command_once(penstock, number):
    script = (
        "import signal, sys\n"
        f"signal.pthread_sigmask(signal.SIG_BLOCK, [{int(number)}, signal.SIGALRM])\n"
        "print('ready', flush=True)\n"
        f"first = signal.sigwait([{int(number)}])\n"
        f"again = signal.sigtimedwait([{int(number)}], 0.2)\n"
        "sys.exit(40 if again is None else 41)"
    )
    process = penstock.start("--", PYTHON, "-c", script)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.wait(30) == 40


def test_a_command_that_ignores_a_signal_runs_on(penstock):
    script = "trap '' TERM; echo ready; read line; echo $line"
    process = penstock.start("--", "sh", "-c", script, stdin=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    out, _ = process.communicate("still here\n", timeout=30)
    assert (out, process.returncode) == ("still here\n", 0)


def test_a_signal_that_the_caller_ignores_stays_ignored_in_the_command(penstock):
    shell = (
        "trap '' HUP; exec "
        f"{PYTHON} -m penstock {' '.join(penstock.run_arguments([], '1Gi', '10'))} -- "
        "sh -c 'kill -HUP $$; echo survived'"
    )
    environment = penstock.environment
    result = subprocess.run(
        ["sh", "-c", shell], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == "survived\n"


def test_the_whole_process_tree_is_the_tenant(penstock):
    script = "sh -c 'sh -c \"sleep 100 & echo \\$!; wait \\$!\"'"
    process = penstock.start("--name=tree", "--", "sh", "-c", script)
    grandchild = int(process.stdout.readline())
    (row,) = penstock.ps()
    assert row["tenant"] == "tree"
    assert grandchild in row["members"]
    os.kill(grandchild, signal.SIGKILL)
    assert process.wait(30) == 137


def test_children_left_behind_keep_the_tenant_and_penstock_run_returns_at_once(penstock):
    script = f"{PYTHON} -c 'import time; time.sleep(1000)' >/dev/null 2>&1 & echo $!"
    result = penstock.run("--name=left", "--", "sh", "-c", script)
    child = int(result.stdout)
    assert result.returncode == 0
    assert alive(child)
    assert penstock.tenants() == ["left"]
    page = penstock.state / "tenants" / "left" / "quota"
    first = read_quota(page).heartbeat_ns
    wait_until(lambda: read_quota(page).heartbeat_ns > first)
    (row,) = penstock.ps()
    assert (row["supervised"], row["members"]) == (True, [child])
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: penstock.tenants() == [])


def test_a_reader_sees_the_end_when_the_command_closes_its_output(penstock):
    script = "echo ready; exec >&- 2>&-; read x"
    process = penstock.start(
        "--", "sh", "-c", script, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.read() == "ready\n"
    assert process.stderr.read() == ""
    assert process.poll() is None
    process.communicate("\n", timeout=30)
    process.stderr.close()


def test_killing_penstock_run_leaves_the_tenant_running_until_its_end(penstock):
    process = penstock.start("--name=orphan", "--", "sh", "-c", "echo $$; exec sleep 1000")
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    (row,) = penstock.ps()
    assert (row["tenant"], row["supervised"], row["members"]) == ("orphan", False, [child])
    assert alive(child)
    refused = penstock.run("--name=orphan", "--", "true")
    assert refused.returncode == 2
    assert "already exists" in refused.stderr
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: not alive(child))
    assert penstock.ps() == []
    assert penstock.tenants() == []


def test_a_tenant_does_not_start_tenants(penstock):
    inner = penstock.run_arguments(["--", "true"], "1Gi", "10")
    result = penstock.run("--", PYTHON, "-m", "penstock", *inner)
    assert result.returncode == 2
    assert "already a tenant" in result.stderr


def test_a_command_without_a_gpu_never_notices(penstock):
    script = "git --version; bash -c 'echo $((1+1))'; " + f"{PYTHON} -c 'print(6*7)'"
    assert penstock.run("--", "sh", "-c", script).stdout.splitlines()[1:] == ["2", "42"]


def test_simulate_runs_a_command_without_shim_and_quota(penstock):
    result = penstock("simulate", "l4,2", "--", "env")
    environment = dict(line.split("=", 1) for line in result.stdout.splitlines())
    assert environment["PENSTOCK_SIM_MACHINE"] == str(penstock.state / "machines" / "l4x2")
    assert "LD_PRELOAD" not in environment
    assert "PENSTOCK_TENANT_DIR" not in environment
    assert penstock.tenants() == []


def test_simulate_becomes_the_command(penstock):
    assert penstock("simulate", "h200", "--", "sh", "-c", "kill -9 $$").returncode == -9
    assert penstock("simulate", "h200", "sh", "-c", "exit 5").returncode == 5
    result = penstock("simulate", "h200", "--", "no-such-command")
    assert (result.returncode, "cannot run" in result.stderr) == (127, True)


def test_run_inside_simulate_uses_the_same_machine(penstock):
    inner = [PYTHON, "-m", "penstock", "run", "-q", "--memory=1Gi", "--cores=10", "--", "env"]
    result = penstock("simulate", "t4", "--", *inner)
    assert f"PENSTOCK_SIM_MACHINE={penstock.state}/machines/t4x1\n" in result.stdout
