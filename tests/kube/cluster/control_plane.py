"""The command lines of etcd and of what talks to it."""

from __future__ import annotations

from tests.kube.cluster.layout import API_ADDRESS, API_PORT, DOMAIN, SERVICES, Layout

ETCD = "http://127.0.0.1:2379"  # in the control plane's own namespace
ISSUER = "https://kubernetes.default.svc.cluster.local"


def etcd(layout: Layout) -> list[str]:
    """Without fsync: what is written outlives a killed process, and nobody pulls the plug here."""
    return [
        str(layout.programs / "etcd"),
        f"--data-dir={layout.state}/etcd",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def api_server(layout: Layout) -> list[str]:
    """Webhooks are reached at their Pods' addresses: no kube-proxy runs beside the API server."""
    secrets = layout.secrets
    return [
        str(layout.programs / "kube-apiserver"),
        f"--etcd-servers={ETCD}",
        f"--advertise-address={API_ADDRESS}",
        f"--secure-port={API_PORT}",
        f"--tls-cert-file={secrets}/apiserver.crt",
        f"--tls-private-key-file={secrets}/apiserver.key",
        f"--client-ca-file={secrets}/ca.crt",
        f"--token-auth-file={secrets}/tokens.csv",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--service-cluster-ip-range={SERVICES}",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={secrets}/service-accounts.pub",
        f"--service-account-signing-key-file={secrets}/service-accounts.key",
        f"--kubelet-certificate-authority={secrets}/ca.crt",
        f"--kubelet-client-certificate={secrets}/kubelet-client.crt",
        f"--kubelet-client-key={secrets}/kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--enable-aggregator-routing=true",
        f"--proxy-client-cert-file={secrets}/front-proxy.crt",
        f"--proxy-client-key-file={secrets}/front-proxy.key",
        f"--requestheader-client-ca-file={secrets}/ca.crt",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
    ]


def controller_manager(layout: Layout) -> list[str]:
    """One alone: it need not ask who leads."""
    secrets = layout.secrets
    return [
        *_client(layout, "kube-controller-manager"),
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={secrets}/service-accounts.key",
        f"--root-ca-file={secrets}/ca.crt",
        f"--cluster-signing-cert-file={secrets}/ca.crt",
        f"--cluster-signing-key-file={secrets}/ca.key",
    ]


def scheduler(layout: Layout) -> list[str]:
    """The stock one, with the stock profile."""
    return _client(layout, "kube-scheduler")


COREFILE = """\
. {{
    bind {address}
    errors
    cache 2
    kubernetes {domain} in-addr.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
        ttl 2
    }}
}}
"""


def dns(layout: Layout) -> list[str]:
    """Names of Services and Pods, answered at the control plane's address; of others none."""
    corefile = layout.state / "Corefile"
    corefile.write_text(
        COREFILE.format(
            address=API_ADDRESS, domain=DOMAIN, kubeconfig=layout.secrets / "admin.kubeconfig"
        )
    )
    return [str(layout.programs / "coredns"), "-quiet", "-conf", str(corefile)]


def _client(layout: Layout, name: str) -> list[str]:
    config = layout.secrets / f"{name}.kubeconfig"
    return [
        str(layout.programs / name),
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
    ]
