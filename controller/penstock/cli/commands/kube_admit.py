"""`penstock kube admit`: the admission webhook for the API server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Kubeconfig, Qps

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kube.webhook.publish import Places
    from penstock.kube.webhook.webhook_server import Shown
    from penstock.policy.resolve import Settings

FILES_EVERY_S = 5.0


def admit(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on for the API server.")
    ] = "0.0.0.0:9443",
    scheduler: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Scheduler profile to set on Pods (empty: resources are refused).",
        ),
    ] = "penstock-scheduler",
    scheduler_user: Annotated[
        str, typer.Option(metavar="USER", help="User as which `penstock kube place` binds Pods.")
    ] = "system:serviceaccount:penstock:penstock-place",
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="Namespace of this webhook's Service and Secret.")
    ] = "penstock",
    service: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Service through which the API server calls the webhook."
        ),
    ] = "penstock-admit",
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Further names or addresses in the certificate."),
    ] = None,
    secret: Annotated[
        str, typer.Option(metavar="NAME", help="Secret that keeps the certificates.")
    ] = "penstock-admit",  # noqa: S107 - a name
    configuration: Annotated[
        str, typer.Option(metavar="NAME", help="Name of both webhook configurations.")
    ] = "penstock",
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="An externally managed certificate (PEM)."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The private key of --tls-cert (PEM).")
    ] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Accept only clients with a certificate that this CA signed (PEM); it must sign "
            "only the API server's. Required with --tls-cert.",
        ),
    ] = None,
    measured: Annotated[
        str,
        typer.Option(
            metavar="STEP",
            help="The mildest last enforcement step that claims may request, as for agents (empty: "
            "left to agents): deny, throttle, suspend or terminate.",
        ),
    ] = "",
    longest_grace: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="The longest grace that claims may request (empty: left to agents).",
        ),
    ] = "",
    qps: Qps = 300,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Run the webhook that checks Pods and claims that request vGPUs, and sets the Pods' scheduler.

    Without --tls-cert, the webhook makes and renews its own certificates, and writes them into its
    webhook configurations together with paths that only the API server knows. With --tls-cert, you
    maintain the configurations, clients must present a certificate (--client-ca), and the files are
    read again when they change.
    """
    import asyncio

    from penstock.kube.webhook.publish import Places
    from penstock.model import PenstockError

    if (tls_cert is None) != (tls_key is None):
        raise PenstockError("a certificate needs its key", "one of them is missing", "give both")
    if tls_cert is not None and client_ca is None:
        raise PenstockError(
            "cannot authenticate the API server",
            "with --tls-cert the webhook's paths are not secret", "add --client-ca FILE",
        )  # fmt: skip
    files = (tls_cert, tls_key) if tls_cert and tls_key else None
    names = [f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local"]
    asyncio.run(
        _admit(
            listen, (kubeconfig, qps), files, client_ca,
            Places(namespace, secret, configuration, (*names, *(name or ()))),
            (scheduler, scheduler_user), _floor(measured, longest_grace),
        )
    )  # fmt: skip


def _floor(measured: str, longest_grace: str) -> Settings:
    from penstock.model import PenstockError, QuantityError
    from penstock.model.quantity import parse_grace_ns
    from penstock.model.terms import STEPS
    from penstock.policy.resolve import Settings

    step = next((one for one in STEPS if one == measured), None)
    if measured and step is None:
        raise PenstockError(
            f"invalid step {measured!r} for --measured",
            f"valid steps are {', '.join(STEPS)}",
            "choose one of them",
        )
    try:
        grace_ns = parse_grace_ns(longest_grace) if longest_grace else None
    except QuantityError as error:
        raise PenstockError(
            f"invalid duration for --longest-grace: {longest_grace!r}", str(error),
            "give a time such as 60s",
        ) from error  # fmt: skip
    return Settings(measured=step, grace_ns=grace_ns)


async def _admit(
    listen: str,
    server: tuple[Path | None, float],
    files: tuple[Path, Path] | None,
    client_ca: Path | None,
    places: Places,
    schedulers: tuple[str, str],
    floor: Settings,
) -> None:
    from penstock.cli.log import log_as
    from penstock.kube.objects import http_server as serving
    from penstock.kube.objects.api_client import Api
    from penstock.kube.quota.caps import Caps
    from penstock.kube.webhook.admission_review import Reviewer
    from penstock.kube.webhook.publish import Publisher
    from penstock.kube.webhook.review_context import ReviewContext
    from penstock.kube.webhook.webhook_server import Shown, app
    from penstock.model.address import read_address

    log = log_as("penstock kube admit")
    kubeconfig, qps = server
    async with await Api.connect(kubeconfig, qps=qps, burst=int(2 * qps)) as api:
        caps = Caps(api)
        around = ReviewContext(api, caps.classes)
        reviewer = Reviewer(
            around, scheduler=schedulers[0], scheduler_user=schedulers[1], floor=floor
        )
        reviewer.further.append(caps.further)
        shown = Shown(client_ca)

        def unready() -> str:
            return caps.unready() or around.unready()

        if files:
            shown.use_files(*files)
            served = app(reviewer, unready, lambda: None)
            keep = _follow(shown, *files, log)
        else:
            publisher = Publisher(api, places, shown.use, log, others=around.other_classes)
            caps.classes.changed.append(lambda *_: publisher.wake())
            served = app(reviewer, lambda: publisher.problem or unready(), lambda: publisher.word)
            keep = publisher.run()
        async with serving.listening(served, read_address(listen), shown.context) as port:
            log("started", port=port, server=api.server, names=places.names)
            log("stopping", signal=await serving.until_stopped(keep, around.run(), caps.run()))


async def _follow(shown: Shown, certificate: Path, key: Path, log: Callable[..., None]) -> None:
    """Reloads changed files until cancelled; logs an unreadable file once and tries again."""
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
