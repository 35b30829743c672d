"""Opens many idle connections to a port: python idle_connections.py UID PORT MANY."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
import threading

uid, port, many = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (many + 100, many + 100))
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
kept = []
for _ in range(many):
    one = socket.socket()
    one.settimeout(0.2)
    with contextlib.suppress(OSError):
        one.connect(("127.0.0.1", port))
    kept.append(one)
print("ready", flush=True)
threading.Event().wait()
