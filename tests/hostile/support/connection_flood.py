"""Connects faster than any program accepts: python connection_flood.py UID SOCKET."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import deque

KEPT = 900

uid, path = int(sys.argv[1]), sys.argv[2]
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
kept: deque[socket.socket] = deque()
full = False
while True:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        one.connect(path)
    except BlockingIOError:
        one.close()
        if not full:
            full = True
            print("full", flush=True)
        time.sleep(0.0005)
        continue
    kept.append(one)
    if len(kept) > KEPT:
        kept.popleft().close()
