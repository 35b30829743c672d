"""A viewer of the page without a browser: requests, and the events of a stream."""

from __future__ import annotations

import http.client
import json
import socket
from urllib.parse import urlencode, urlsplit

TIMEOUT_S = 20


def ask(url, path="/", method="GET", **headers):
    """The answer to one request; a header `Host` replaces the usual one."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
    connection.putrequest(method, path, skip_host=True)
    for name, value in {"Host": urlsplit(url).netloc, **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    answer.text = answer.read().decode()
    connection.close()
    return answer


class Viewer:
    """One open stream."""

    def __init__(self, url, buffer=None, **query):
        where = urlsplit(url)
        self._socket = socket.socket()
        if buffer:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self._socket.settimeout(TIMEOUT_S)
        self._socket.connect((where.hostname, where.port))
        line = f"GET /events?{urlencode(query)} HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n"
        self._socket.sendall(line.encode())
        self._answer = http.client.HTTPResponse(self._socket)

    def begin(self):
        """Reads the head of the answer."""
        self._answer.begin()
        return self

    def event(self):
        """(kind, data) of the next event; None at the end."""
        kind = ""
        while line := self._answer.readline():
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            if name == "data":
                return kind, json.loads(value or "null")
        return None

    def states(self):
        """All further states."""
        while (event := self.event()) is not None:
            if event[0] == "state":
                yield event[1]

    def close(self):
        self._answer.close()
        self._socket.close()

    def __enter__(self):
        return self.begin()

    def __exit__(self, *_):
        self.close()
