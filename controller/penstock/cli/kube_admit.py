"""`penstock kube admit`: the webhook behind the API server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kube.admit.publish import Places
    from penstock.kube.admit.server import Shown

FILES_EVERY_S = 5.0


def admit(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the API server asks.")
    ] = "0.0.0.0:9443",
    scheduler: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Profile that Pods are given to (empty: resources are refused)."
        ),
    ] = "penstock-scheduler",
    scheduler_user: Annotated[
        str, typer.Option(metavar="USER", help="As whom `penstock kube place` binds Pods.")
    ] = "system:serviceaccount:penstock:penstock-place",
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="Of this webhook's Service and Secret.")
    ] = "penstock",
    service: Annotated[
        str, typer.Option(metavar="NAME", help="Service that the API server asks by.")
    ] = "penstock-admit",
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Further names or addresses in the certificate."),
    ] = None,
    secret: Annotated[
        str, typer.Option(metavar="NAME", help="Secret that keeps the certificates.")
    ] = "penstock-admit",  # noqa: S107 - a name
    configuration: Annotated[
        str, typer.Option(metavar="NAME", help="Of both webhook configurations.")
    ] = "penstock",
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A certificate that somebody else keeps (PEM)."),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key (PEM).")] = None,
    qps: Annotated[
        float,
        typer.Option(min=1, metavar="N", help="Requests a second to the API server, on average."),
    ] = 300,
    kubeconfig: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The cluster (default: that of this Pod).")
    ] = None,
) -> None:
    """Check Pods and claims that ask for vGPUs, and give such Pods to their scheduler.

    Makes and renews its own certificates, unless --tls-cert names one; files are read again when
    they change.
    """
    import asyncio

    from penstock.kube.admit.publish import Places
    from penstock.model import PenstockError

    if (tls_cert is None) != (tls_key is None):
        raise PenstockError("a certificate needs its key", "one of them is missing", "give both")
    files = (tls_cert, tls_key) if tls_cert and tls_key else None
    names = [f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local"]
    asyncio.run(
        _admit(
            listen, (kubeconfig, qps), files,
            Places(namespace, secret, configuration, (*names, *(name or ()))),
            (scheduler, scheduler_user),
        )
    )  # fmt: skip


async def _admit(
    listen: str,
    server: tuple[Path | None, float],
    files: tuple[Path, Path] | None,
    places: Places,
    schedulers: tuple[str, str],
) -> None:
    from penstock.cli.address import read_address
    from penstock.cli.log import log_as
    from penstock.kube import serving
    from penstock.kube.admit.publish import Publisher
    from penstock.kube.admit.review import Reviewer
    from penstock.kube.admit.server import Shown, app
    from penstock.kube.admit.surroundings import Surroundings
    from penstock.kube.api import Api
    from penstock.kube.control.caps import Caps

    log = log_as("penstock kube admit")
    kubeconfig, qps = server
    async with await Api.connect(kubeconfig, qps=qps, burst=int(2 * qps)) as api:
        around = Surroundings(api)
        reviewer = Reviewer(around, scheduler=schedulers[0], scheduler_user=schedulers[1])
        caps = Caps(api)
        reviewer.further.append(caps.further)
        shown = Shown()
        if files:
            shown.use_files(*files)
            served = app(reviewer, caps.unready)
            keep = _follow(shown, *files, log)
        else:
            publisher = Publisher(api, places, shown.use, log)
            served = app(reviewer, lambda: publisher.problem or caps.unready())
            keep = publisher.run()
        async with serving.listening(served, read_address(listen), shown.context) as port:
            log("started", port=port, server=api.server, names=places.names)
            log("stopping", signal=await serving.until_stopped(keep, around.run(), caps.run()))


async def _follow(shown: Shown, certificate: Path, key: Path, log: Callable[..., None]) -> None:
    """Until cancelled; what cannot be read is said once and tried again."""
    import asyncio

    from penstock.model import PenstockError

    problem = ""
    while True:
        await asyncio.sleep(FILES_EVERY_S)
        try:
            if shown.use_files(certificate, key):
                log("certificates", how="read", file=str(certificate))
            problem = ""
        except PenstockError as error:
            if str(error) != problem:
                problem = str(error)
                log("certificates-unreadable", why=problem)
