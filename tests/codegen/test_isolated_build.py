"""The build as pip isolates it: what it needs is found by $PYTHONPATH alone."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig

from tests.native.support.builds import configure


def test_the_headers_are_found_where_only_pythonpath_leads_to_them(tmp_path):
    bare = tmp_path / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    python = bare / "bin" / "python"
    seen = subprocess.run([python, "-c", "import nvidia"], capture_output=True, check=False)
    assert seen.returncode != 0
    packages = os.pathsep.join({sysconfig.get_path(name) for name in ("purelib", "platlib")})
    configure(
        tmp_path / "build", f"-DPython_EXECUTABLE={python}", variables={"PYTHONPATH": packages}
    )
