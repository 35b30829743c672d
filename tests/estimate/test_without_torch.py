"""Where PyTorch and onnx are not installed, an estimate says what to install."""

import importlib.util
import subprocess
import sys

import pytest

MISSING = [one for one in ("torch", "onnx") if importlib.util.find_spec(one) is None]
needs_their_absence = pytest.mark.skipif(len(MISSING) < 2, reason="torch or onnx is installed")


def run(*arguments):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@needs_their_absence
def test_a_module_without_torch_says_what_to_install(tmp_path):
    (tmp_path / "train.py").write_text("import torch\n")
    model = f"{tmp_path}/train.py:make_model"
    done = run("-m", "penstock", "pool", "estimate", model, "--input", "8x16")
    assert done.returncode == 2
    assert "pip install 'penstock[torch]'" in done.stderr


@needs_their_absence
def test_an_onnx_file_without_onnx_says_what_to_install(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"")
    done = run("-m", "penstock", "pool", "estimate", tmp_path / "model.onnx")
    assert done.returncode == 2
    assert "pip install 'penstock[onnx]'" in done.stderr


def test_importing_penstock_imports_neither_torch_nor_the_estimate():
    code = (
        "import sys, penstock; assert 'penstock.estimation' not in sys.modules; "
        "penstock.estimate; print({'torch', 'onnx', 'numpy'} & set(sys.modules))"
    )
    done = run("-c", code)
    assert done.stdout == "set()\n", done.stderr
