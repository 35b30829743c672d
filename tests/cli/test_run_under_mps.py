"""`penstock run` where programs become clients of MPS."""

from __future__ import annotations

import os
import sys

import pytest

ASK = 'import ctypes; print(ctypes.CDLL("libcuda.so.1").cuInit(0))'


@pytest.mark.parametrize(("cores", "answer"), [("30", "801\n"), ("100", "0\n")])
def test_a_cores_quota_is_refused_beside_mps_with_the_reason(penstock, tmp_path, cores, answer):
    os.mkfifo(tmp_path / "control")
    words = ["run", "--simulate=h200", "--memory=1Gi", f"--cores={cores}"]
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    done = penstock(*words, "--", sys.executable, "-c", ASK, env=environment)
    assert done.stdout == answer
    assert f"MPS runs here ({tmp_path})" in done.stderr
    assert "CUDA_ERROR_NOT_SUPPORTED" in done.stderr


def test_without_a_control_daemon_mps_is_not_mentioned(penstock, tmp_path):
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    words = ["run", "--simulate=h200", "--memory=1Gi", "--cores=30", "--", sys.executable]
    done = penstock(*words, "-c", ASK, env=environment)
    assert done.stdout == "0\n"
    assert "MPS" not in done.stderr
