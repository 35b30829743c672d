"""Where this machine's programs reach a compute pool: an address, the agent, or the manager."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model import PenstockError

if TYPE_CHECKING:
    from penstock.node.rpc import PoolClaim, PoolClient

POOL, CERTIFICATE, KEY, AUTHORITY = (
    "PENSTOCK_POOL",
    "PENSTOCK_POOL_CERT",
    "PENSTOCK_POOL_KEY",
    "PENSTOCK_POOL_CA",
)
# Where `penstock pool serve` has its socket, by default.
MANAGER_SOCKET = "pool.sock"
SYSTEM_FOLDER = Path("/var/lib/penstock")


@dataclass(frozen=True)
class PoolPlace:
    """Which pool is meant. What is None is looked for in the environment, then on this machine."""

    pool: str | None = None  # HOST:PORT[,HOST:PORT…], or the path of a socket
    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None
    state_dir: Path | None = None

    def connect(self, *, as_admin: bool = False) -> PoolClient:
        """A client of the pool.

        Args:
            as_admin: An administrator of a manager on this machine calls the manager itself, as
                calls that an agent passes on are those of an ordinary user.

        Raises:
            PenstockError: no pool is found, or the options are unusable.
        """
        named = self.pool if self.pool is not None else os.environ.get(POOL)
        if named is None:
            self._refuse_files_alone()
            return self._on_this_machine(as_admin=as_admin)
        from penstock.node.rpc import PoolClient

        if not named.strip():
            raise PenstockError(
                "the pool's address is empty", "perhaps a shell variable is not set",
                "give HOST:PORT or the path of a socket, or leave it out to use this machine's",
            )  # fmt: skip
        if "/" in named:
            return PoolClient.local(_checked_socket(Path(named)), "manager")
        return PoolClient.remote(named, *self._files(named))

    def local_agent(self) -> PoolClient | None:
        """A client of this machine's agent, None if none runs."""
        from penstock.node.tenants.state import agent_sockets

        if not agent_sockets(self.state_dir):
            return None
        from penstock.node.rpc import PoolClient, find_agent_socket

        found = find_agent_socket(self.state_dir)
        return None if found is None else PoolClient.local(found, "agent")

    def on_this_node(self, claim: PoolClaim) -> PoolClaim:
        """`claim`, for blocks of the node of this machine's agent alone. Raises `PenstockError`."""
        if claim.span != "pool":  # then the agent itself adds its node
            return claim
        from penstock.node.rpc import find_agent

        agent = find_agent(self.state_dir)
        if agent is None:
            raise PenstockError(
                "no agent answers here any more", "it has just ended", "start it again",
                reason="unavailable",
            )  # fmt: skip
        with agent:
            return dataclasses.replace(claim, node=agent.node().name)

    def _on_this_machine(self, *, as_admin: bool) -> PoolClient:
        """The agent of a pool, or the manager, whose socket all users may use if it is root's."""
        manager = self._manager_socket()
        is_admins = manager is not None and os.geteuid() in {0, manager.lstat().st_uid}
        agent = None if as_admin and is_admins else self.local_agent()
        if agent is not None and (manager is None or _serves_a_pool(agent)):
            return agent
        if manager is not None:
            from penstock.node.rpc import PoolClient

            return PoolClient.local(manager, "manager")
        raise PenstockError(
            "no compute pool is found", "neither an agent nor a pool's manager runs here",
            "start the agent of a pool (penstock agent --pool), or name the manager: "
            "--pool HOST:PORT with --pool-cert, --pool-key and --pool-ca",
            reason="unavailable",
        )  # fmt: skip

    def _manager_socket(self) -> Path | None:
        named = self.state_dir or os.environ.get("PENSTOCK_STATE_DIR")
        home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        folders = [Path(named)] if named else [Path(home) / "penstock", SYSTEM_FOLDER]
        for folder in folders:
            file = folder / MANAGER_SOCKET
            if file.is_socket() and os.access(file, os.W_OK):
                from penstock.node.rpc.client import is_trusted, listens

                if is_trusted(file) and listens(file):
                    return file
        return None

    def _files(self, named: str) -> tuple[Path, Path, Path]:
        given = {
            "--pool-cert": self.certificate or _file(CERTIFICATE),
            "--pool-key": self.key or _file(KEY),
            "--pool-ca": self.authority or _file(AUTHORITY),
        }
        files = [file for file in given.values() if file is not None]
        if len(files) < len(given):
            missing = ", ".join(option for option, file in given.items() if file is None)
            raise PenstockError(
                f"cannot connect to the pool at {named}",
                f"a manager is reached with mutual TLS, and {missing} is missing",
                "give all three files (PEM), or $PENSTOCK_POOL_CERT, $PENSTOCK_POOL_KEY and "
                "$PENSTOCK_POOL_CA",
            )
        certificate, key, authority = files
        return certificate, key, authority

    def _refuse_files_alone(self) -> None:
        if self.certificate or self.key or self.authority:
            raise PenstockError(
                "certificates are given without an address", "--pool is missing",
                "add --pool HOST:PORT, or leave the certificates out",
            )  # fmt: skip


def _file(variable: str) -> Path | None:
    named = os.environ.get(variable)
    return Path(named) if named else None


def _checked_socket(file: Path) -> Path:
    """`file` if it can be connected to. Raises `PenstockError`."""
    fix = "name the socket of a running manager (penstock pool serve says which), or HOST:PORT"
    if not file.exists():
        raise PenstockError(
            f"no manager of a pool answers at {file}", "there is no such file", fix,
            reason="unavailable",
        )  # fmt: skip
    if not file.is_socket():
        raise PenstockError(f"{file} leads to no pool", "it is not a socket", fix)
    if not os.access(file, os.W_OK):
        raise PenstockError(
            f"cannot connect to {file}", "this user may not use it",
            "call as root or as the manager's user, or use this machine's agent: leave --pool out",
            reason="not-allowed",
        )  # fmt: skip
    return file


def _serves_a_pool(agent: PoolClient) -> bool:
    """Whether the agent passes calls on; if it does, but nobody answers, that is its error."""
    try:
        agent.pool(summary=True)
    except PenstockError as error:
        return error.reason == "unavailable"
    return True
