"""Opaque parameters of our driver: settings of a claim or a device class other than quantities.

    apiVersion: penstock.io/v1alpha1
    kind: VgpuParameters
    mode: elastic            # or strict
    policy: small-inference  # the policy behind these settings, only shown to people
    onExceed: {measured: suspend, grace: 30s}

All keys but the first two are optional, and unknown keys are errors. Parameters of the claim
override those of its class, key by key. For `onExceed` the stricter value wins, because the claim's
author is the user whom the quota restricts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, TypeVar

from penstock.kube.objects.names import DRIVER, GROUP
from penstock.model import PenstockError, QuantityError, format_duration, listing, nearest
from penstock.model.quantity import parse_grace_ns
from penstock.model.terms import MODES, STEPS
from penstock.policy.resolve import Settings, strictest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

API_VERSION = f"{GROUP}/v1alpha1"
KIND = "VgpuParameters"
Source = Literal["FromClass", "FromClaim"]
_POLICY = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_Word = TypeVar("_Word", bound=str)


def read_parameters(plain: object) -> Settings:
    """Reads opaque parameters. Raises `PenstockError` if they are malformed."""
    if not isinstance(plain, dict):
        raise _wrong(f"they are {type(plain).__name__}, not an object")
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if plain.get(key) != wanted:
            raise _wrong(f"{key} is {plain.get(key)!r}, not {wanted!r}")
    _check_keys(plain, ("apiVersion", "kind", "mode", "policy", "onExceed"), "")
    exceed = plain.get("onExceed", {})
    if not isinstance(exceed, dict):
        raise _wrong("onExceed is not an object")
    _check_keys(exceed, ("measured", "grace"), "onExceed.")
    policy = plain.get("policy")
    if policy is not None and not (isinstance(policy, str) and _POLICY.fullmatch(policy)):
        raise _wrong(f"policy {str(policy)[:60]!r} is not a valid object name")
    return Settings(
        _one_of("mode", plain.get("mode"), MODES),
        policy,
        _one_of("onExceed.measured", exceed.get("measured"), STEPS),
        None if "grace" not in exceed else _grace_ns(exceed["grace"]),
    )


def parameters_for(request: str, configs: Sequence[Mapping[str, object]]) -> Settings:
    """The parameters in an allocation's `devices.config` for one request ("main" or "main/sub").

    Raises:
        PenstockError: parameters for our driver cannot be read.
    """
    of_class = said_by("FromClass", request, configs)
    return said_by("FromClaim", request, configs).bounded_by(of_class)


def said_by(source: Source, request: str, configs: Sequence[Mapping[str, object]]) -> Settings:
    """The parameters from one source, either the class (set by an administrator) or the claim.

    If a source has several parameters for the same request, the last ones override the others.

    Raises:
        PenstockError: parameters for our driver cannot be read.
    """
    found = Settings()
    for config in configs:
        opaque = config.get("opaque")
        if config.get("source") != source or not isinstance(opaque, dict):
            continue
        requests = config.get("requests")
        concerned = not requests or (
            isinstance(requests, list)
            and (request in requests or request.split("/", maxsplit=1)[0] in requests)
        )
        if opaque.get("driver") == DRIVER and concerned:
            found = read_parameters(opaque.get("parameters")).bounded_by(found)
    return found


def milder_than(said: Settings, floor: Settings) -> Iterator[tuple[str, str]]:
    """Yields each `onExceed` value that is milder than `floor`, with the allowed values."""
    if said.measured and said.measured != strictest(said.measured, floor.measured):
        yield f"onExceed.measured: {said.measured}", f"{floor.measured} or stricter"
    grace_ns, most_ns = said.grace_ns, floor.grace_ns
    if grace_ns is not None and most_ns is not None and grace_ns > most_ns:
        yield f"onExceed.grace: {format_duration(grace_ns)}", f"at most {format_duration(most_ns)}"


def _check_keys(plain: Mapping[str, object], known: tuple[str, ...], where: str) -> None:
    for key in plain:
        if key not in known:
            near = nearest(str(key), known)
            hint = f"; did you mean {near}?" if near else f"; the keys are {listing(known)}"
            raise _wrong(f"unknown key {where}{str(key)[:60]}{hint}")


def _one_of(key: str, value: object, words: tuple[_Word, ...]) -> _Word | None:
    if value is None:
        return None
    for word in words:
        if value == word:
            return word
    raise _wrong(f"{key} is {str(value)[:60]!r}, not one of {listing(words)}")


def _grace_ns(value: object) -> int:
    try:
        return parse_grace_ns(value)
    except QuantityError as error:
        raise _wrong(f"onExceed.grace: {error}") from error


def _wrong(why: str) -> PenstockError:
    return PenstockError(
        f"the parameters for driver {DRIVER} cannot be used", why,
        "correct them in the device class, or create the claim again, because it cannot change",
    )  # fmt: skip
