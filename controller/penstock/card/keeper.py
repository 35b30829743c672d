"""Helper process of a program whose cards a compute pool starts: `python -m penstock.card.keeper`.

It calls the node's agent, so that the program itself needs no gRPC, whose threads do not go well
with programs that fork. It reads requests from standard input and writes answers and the phases of
the application to standard output, each a line of JSON. It ends with its program.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.client.connect import PoolPlace
from penstock.model import PenstockError

if TYPE_CHECKING:
    from penstock.node.rpc import ApplicationMessage, PoolClient

AGAIN_S = 0.5  # after an error
LOOKS_S = 5.0  # between looks, beside those at each event
GONE = {"phase": "ended", "reason": "the pool does not have it any more", "parts": []}


class Keeper:
    """Answers the program, and tells it of each change of its application."""

    def __init__(self, application: str, claimed_ns: int, state_dir: Path | None) -> None:
        self._application = application
        self._claimed_ns = claimed_ns
        self._place = PoolPlace(state_dir=state_dir)
        self._writing = threading.Lock()
        self._last: dict[str, Any] | None = None
        self._looking = threading.Lock()

    def run(self) -> None:
        """Until the program ends."""
        for follow in (self._follow, self._look_often):
            threading.Thread(target=follow, daemon=True).start()
        for line in sys.stdin:
            # Cards start at the same time.
            threading.Thread(target=self._answer, args=(json.loads(line),), daemon=True).start()

    def _say(self, said: dict[str, Any]) -> None:
        with self._writing:
            try:
                sys.stdout.write(json.dumps(said) + "\n")
                sys.stdout.flush()
            except OSError:  # the program has ended
                os._exit(0)

    def _answer(self, request: dict[str, Any]) -> None:
        try:
            self._say({"id": request["id"], "started": self._started(request["card"])})
        except PenstockError as error:
            words = {"what": error.what, "why": error.why, "fix": error.fix}
            self._say({"id": request["id"], "error": words})
        except Exception as error:  # noqa: BLE001 - the program waits for an answer
            words = {"what": "a card cannot be started", "why": f"{type(error).__name__}: {error}"}
            self._say({"id": request["id"], "error": words})

    def _started(self, card: dict[str, str]) -> dict[str, Any]:
        """Starts a card. Raises `PenstockError`."""
        from penstock.node.rpc import find_agent_socket
        from penstock.node.rpc.card_client import CardClient
        from penstock_api.v1 import cards_pb2 as pb

        found = find_agent_socket(self._place.state_dir)
        if found is None:
            raise PenstockError(
                "no agent runs here", "cards are started through it",
                "start it: penstock agent --pool …", reason="unavailable",
            )  # fmt: skip
        request = pb.StartCardRequest(
            application=self._application, node=card["node"], device_uuid=card["device_uuid"],
            token=bytes.fromhex(card["token"]), peer=card["peer"],
            certificate=card["certificate"].encode(), key=card["key"].encode(),
            authority=card["authority"].encode(),
        )  # fmt: skip
        request.claimed.FromNanoseconds(self._claimed_ns)
        with CardClient(found) as client:
            answer = client.start(request)
        return {"address": answer.address, "host": answer.host, "is_stand_in": answer.is_stand_in}

    def _follow(self) -> None:
        """Looks at the application whenever something happens to it."""
        while True:
            with contextlib.suppress(PenstockError), self._client() as client:
                for event in client.watch([self._application], follow=True):
                    if event.time.ToNanoseconds() >= self._claimed_ns:
                        self._look(client)
            time.sleep(AGAIN_S)

    def _look_often(self) -> None:
        while True:
            with contextlib.suppress(PenstockError), self._client() as client:
                while True:
                    self._look(client)
                    time.sleep(LOOKS_S)
            time.sleep(AGAIN_S)

    def _client(self) -> PoolClient:
        return self._place.connect()

    def _look(self, client: PoolClient) -> None:
        """Tells the program how its application is, if that has changed."""
        with self._looking:
            try:
                one = client.why(self._application).application
                is_it = one.claimed.ToNanoseconds() == self._claimed_ns
                now = _state(one) if is_it else GONE
            except PenstockError as error:
                if error.reason != "no-such-tenant":
                    raise
                now = GONE
            if now != self._last:
                self._last = now
                self._say(now)


def _state(one: ApplicationMessage) -> dict[str, Any]:
    blocks: dict[tuple[str, str], int] = {}
    for part in one.parts:
        key = (part.node, part.device_uuid)
        blocks[key] = blocks.get(key, 0) + part.last - part.first + 1
    parts = [{"node": node, "device_uuid": uuid, "blocks": count}
             for (node, uuid), count in blocks.items()]  # fmt: skip
    return {"phase": one.phase, "reason": one.reason if one.phase != "running" else "",
            "parts": parts}  # fmt: skip


def main() -> None:
    """Runs the keeper of one application."""
    parser = argparse.ArgumentParser(prog="penstock.card.keeper", description=__doc__)
    parser.add_argument("application")
    parser.add_argument("claimed_ns", type=int)
    parser.add_argument("--state-dir", type=Path)
    options = parser.parse_args()
    Keeper(options.application, options.claimed_ns, options.state_dir).run()


if __name__ == "__main__":
    main()
