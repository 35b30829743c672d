"""Requests to an agent by any uid."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.agent.conftest import Node

ASK = """
import os, sys
from pathlib import Path
from penstock.node.rpc import AgentClient
from penstock.model import PenstockError
from penstock.node.admission.admit import Request
uid = {uid}
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
agent = AgentClient.local(Path(sys.argv[1]))
for name in {names}:
    try:
        {order}
        print("done")
    except PenstockError as error:
        print(error.reason, error)
"""


GRANT = (
    "agent.grant(Request(command=('x',), memory_bytes=[1 << 20], cores_permille=[{cores}], "
    "name=name, lifetime='until-revoked'))"
)


def ask(node: Node, uid: int, order: str, *names: str) -> list[str]:
    """The agent's answers to requests of that uid."""
    code = ASK.format(uid=uid, order=order, names=list(names))
    command = [sys.executable, "-c", code, str(node.socket)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
