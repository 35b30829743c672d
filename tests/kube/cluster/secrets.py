"""Who is who in a cluster: an authority, certificates signed by it, tokens, kubeconfigs."""

from __future__ import annotations

import secrets
import subprocess
from typing import TYPE_CHECKING

import yaml
from tests.kube.cluster.layout import (
    API_ADDRESS,
    API_PORT,
    API_SERVICE,
    NODES,
    Layout,
    node_address,
)

if TYPE_CHECKING:
    from pathlib import Path

DAYS = "365"
USERS = {  # name of the kubeconfig: user, groups
    "admin": ("penstock-admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kube-proxy": ("system:kube-proxy", ""),
    **{node: (f"system:node:{node}", "system:nodes") for node in NODES},
}
API_NAMES = (
    f"IP:127.0.0.1,IP:{API_ADDRESS},IP:{API_SERVICE},DNS:localhost,DNS:kubernetes,"
    "DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
)


def make(layout: Layout, port: int) -> None:
    """Writes all of them; `port` is where this machine's loopback reaches the API server."""
    folder = layout.secrets
    folder.mkdir(mode=0o700)
    _key(folder / "ca.key")
    _openssl(
        "req", "-x509", "-new", "-key", folder / "ca.key", "-days", DAYS,
        "-subj", "/CN=penstock-test", "-out", folder / "ca.crt",
        "-addext", "keyUsage=critical,digitalSignature,keyCertSign,cRLSign",
    )  # fmt: skip
    _certificate(folder, "apiserver", "/CN=kube-apiserver", API_NAMES)
    _certificate(folder, "kubelet-client", "/O=system:masters/CN=apiserver-kubelet-client")
    _certificate(folder, "front-proxy", "/CN=front-proxy")
    for node in NODES:
        names = f"IP:{node_address(node)},DNS:{node}"
        _certificate(folder, node, f"/O=system:nodes/CN=system:node:{node}", names)
    _key(folder / "service-accounts.key")
    public = folder / "service-accounts.pub"
    _openssl("pkey", "-in", folder / "service-accounts.key", "-pubout", "-out", public)
    lines = []
    for name, (user, groups) in USERS.items():
        token = secrets.token_hex(24)
        lines.append(f'{token},{user},{user},"{groups}"')
        _kubeconfig(folder / f"{name}.kubeconfig", folder, API_ADDRESS, API_PORT, token)
        if name == "admin":
            _kubeconfig(layout.kubeconfig, folder, "127.0.0.1", port, token)
    _private(folder / "tokens.csv", "\n".join(lines) + "\n")


def _kubeconfig(path: Path, folder: Path, address: str, port: int, token: str) -> None:
    server = {
        "server": f"https://{address}:{port}",
        "certificate-authority": str(folder / "ca.crt"),
    }
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "penstock-test", "cluster": server}],
        "users": [{"name": "me", "user": {"token": token}}],
        "contexts": [{"name": "it", "context": {"cluster": "penstock-test", "user": "me"}}],
        "current-context": "it",
    }
    _private(path, yaml.safe_dump(content))


def _private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def _key(path: Path) -> None:
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path)


def _certificate(folder: Path, name: str, subject: str, names: str = "") -> None:
    """`name`.key and `name`.crt, signed by the authority; a server's has `names`."""
    key, request, extensions = (folder / f"{name}.{kind}" for kind in ("key", "csr", "ext"))
    _key(key)
    _openssl("req", "-new", "-key", key, "-subj", subject, "-out", request)
    use = "serverAuth" if names else "clientAuth"
    lines = ["authorityKeyIdentifier=keyid", f"extendedKeyUsage={use}"]
    extensions.write_text("\n".join([*lines, *([f"subjectAltName={names}"] if names else [])]))
    _openssl(
        "x509", "-req", "-in", request, "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key",
        "-CAcreateserial", "-days", DAYS, "-extfile", extensions, "-out", folder / f"{name}.crt",
    )  # fmt: skip


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=30)
