"""Opaque parameters of our driver: settings of a claim or a device class beyond quantities.

    apiVersion: penstock.io/v1alpha1
    kind: VgpuParameters
    mode: elastic            # or strict
    policy: small-inference  # for people: which policy it is of
    onExceed: {measured: suspend, grace: 30s}

All but the first two may be omitted; unknown keys are errors. Parameters of the claim override
those of its class, key by key. For `onExceed` the stricter value counts, because the claim's author
is the user whom the quota restricts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from penstock.kube.objects.names import DRIVER, GROUP
from penstock.model import PenstockError, QuantityError, listing, nearest, parse_duration_ns
from penstock.model.limits import DEFAULT_GRACE_NS, DEFAULT_STEP, MODES, STEPS
from penstock.model.quantity import MOST_GRACE_NS, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.model.limits import Mode, Step

API_VERSION = f"{GROUP}/v1alpha1"
KIND = "VgpuParameters"
Source = Literal["FromClass", "FromClaim"]
_POLICY = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_Word = TypeVar("_Word", bound=str)


@dataclass(frozen=True)
class Parameters:
    """The parameters of one claim or class; None: not set."""

    mode: Mode | None = None
    policy: str | None = None
    measured: Step | None = None
    grace_ns: int | None = None

    def over(self, other: Parameters) -> Parameters:
        """These parameters, with `other` for those not set; of `onExceed` the stricter values."""
        said: dict[str, Any] = {
            one.name: value
            for one in fields(self)
            if (value := getattr(self, one.name)) is not None
        }
        said["measured"] = strictest(self.measured, other.measured)
        said["grace_ns"] = shortest(self.grace_ns, other.grace_ns)
        return replace(other, **said)

    def milder_than(self, floor: Parameters) -> Iterator[tuple[str, str]]:
        """Yields each `onExceed` value milder than `floor`, with what `floor` allows."""
        if self.measured and self.measured != strictest(self.measured, floor.measured):
            yield f"onExceed.measured: {self.measured}", f"{floor.measured} or stricter"
        said_ns, most_ns = self.grace_ns, floor.grace_ns
        if said_ns is not None and most_ns is not None and said_ns > most_ns:
            yield (
                f"onExceed.grace: {format_duration(said_ns)}",
                f"at most {format_duration(most_ns)}",
            )

    @property
    def mode_or_usual(self) -> Mode:
        """The mode; by default strict."""
        return self.mode or "strict"

    @property
    def measured_or_usual(self) -> Step:
        """The step when more is measured than granted; by default terminate."""
        return self.measured or DEFAULT_STEP

    @property
    def grace_or_usual_ns(self) -> int:
        """The grace before the step, by default DEFAULT_GRACE_NS."""
        return DEFAULT_GRACE_NS if self.grace_ns is None else self.grace_ns


def read_parameters(plain: object) -> Parameters:
    """Reads opaque parameters; raises `PenstockError` for malformed ones."""
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
    return Parameters(
        _one_of("mode", plain.get("mode"), MODES),
        policy,
        _one_of("onExceed.measured", exceed.get("measured"), STEPS),
        None if "grace" not in exceed else read_grace_ns(exceed["grace"]),
    )


def parameters_for(request: str, configs: Sequence[Mapping[str, object]]) -> Parameters:
    """The parameters for a request ("main" or "main/sub") in an allocation's `devices.config`.

    Raises:
        PenstockError: parameters for our driver cannot be read.
    """
    of_class = said_by("FromClass", request, configs)
    return said_by("FromClaim", request, configs).over(of_class)


def said_by(source: Source, request: str, configs: Sequence[Mapping[str, object]]) -> Parameters:
    """The parameters of one source: the class (by an administrator) or the claim.

    If a source has several for the same request, the last one overrides the others.

    Raises:
        PenstockError: parameters for our driver cannot be read.
    """
    found = Parameters()
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
            found = read_parameters(opaque.get("parameters")).over(found)
    return found


def strictest(*several: Step | None) -> Step | None:
    """The strictest step that is set; None: none is set."""
    return max((one for one in several if one is not None), key=STEPS.index, default=None)


def shortest(*several_ns: int | None) -> int | None:
    """The shortest grace that is set; None: none is set."""
    return min((one for one in several_ns if one is not None), default=None)


def _check_keys(plain: Mapping[str, object], known: tuple[str, ...], where: str) -> None:
    for key in plain:
        if key not in known:
            near = nearest(str(key), known)
            hint = f"; did you mean {near}?" if near else f"; known: {listing(known)}"
            raise _wrong(f"unknown key {where}{str(key)[:60]}{hint}")


def _one_of(key: str, value: object, words: tuple[_Word, ...]) -> _Word | None:
    if value is None:
        return None
    for word in words:
        if value == word:
            return word
    raise _wrong(f"{key} is {str(value)[:60]!r}, not one of {listing(words)}")


def read_grace_ns(value: object) -> int:
    """Reads the grace before a step, in nanoseconds; raises `PenstockError`."""
    try:
        grace_ns = parse_duration_ns(value, or_none=True)
    except QuantityError as error:
        raise _wrong(f"onExceed.grace: {error}") from error
    if grace_ns > MOST_GRACE_NS:
        raise _wrong("onExceed.grace is more than 24h")
    return grace_ns


def _wrong(why: str) -> PenstockError:
    return PenstockError(
        f"the parameters for driver {DRIVER} cannot be used", why,
        "correct them in the claim or its device class; a claim cannot change, so create it again",
    )  # fmt: skip
