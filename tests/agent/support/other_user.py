"""Requests to an agent by another user than root: nobody."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.agent.support.programs import open_to_nobody

NOBODY = 65534


AS_NOBODY = """
import os, sys
from penstock.node.rpc import AgentClient
from penstock.model import PenstockError
from penstock.node.admission.admit import Request
from penstock.node.admission.resize import Resize
os.setgid({uid}); os.setuid({uid})
agent = AgentClient.local(__import__("pathlib").Path(sys.argv[1]))
try:
    {order}
    print("done")
except PenstockError as error:
    print(error.reason, error)
"""


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes its user: needs root")


def as_nobody(node, order: str) -> str:
    code = AS_NOBODY.format(uid=NOBODY, order=order)
    open_to_nobody(node)
    command = [sys.executable, "-c", code, str(node.socket)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
