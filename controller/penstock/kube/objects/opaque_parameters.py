"""What a claim or a device class says beyond amounts: the opaque parameters of our driver.

    apiVersion: penstock.io/v1alpha1
    kind: VgpuParameters
    mode: elastic            # or strict
    policy: small-inference  # for people: which policy it is of
    onExceed: {measured: suspend, grace: 30s}

All but the first two may be left out; unknown keys are errors. Parameters of the claim go before
those of its class, key by key, but for `onExceed`: a claim is written by whom the quota holds
against, so of that the stricter word counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from penstock.kube.objects.names import DRIVER, GROUP
from penstock.model import PenstockError, QuantityError, listing, nearest, parse_duration_ns
from penstock.model.quantity import MOST_GRACE_NS, format_duration
from penstock.node.tenants.grant import DEFAULT_GRACE_NS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.node.tenants.grant import Mode, Step

API_VERSION = f"{GROUP}/v1alpha1"
KIND = "VgpuParameters"
MODES: tuple[Mode, ...] = ("strict", "elastic")
STEPS: tuple[Step, ...] = ("deny", "throttle", "suspend", "terminate")
Source = Literal["FromClass", "FromClaim"]
_POLICY = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_Word = TypeVar("_Word", bound=str)


@dataclass(frozen=True)
class Parameters:
    """Those of one claim; None: not said."""

    mode: Mode | None = None
    policy: str | None = None
    measured: Step | None = None
    grace_ns: int | None = None

    def over(self, other: Parameters) -> Parameters:
        """These, and what they do not say from `other`; of what follows on excess the stricter."""
        said: dict[str, Any] = {
            one.name: value
            for one in fields(self)
            if (value := getattr(self, one.name)) is not None
        }
        said["measured"] = strictest(self.measured, other.measured)
        said["grace_ns"] = shortest(self.grace_ns, other.grace_ns)
        return replace(other, **said)

    def milder_than(self, floor: Parameters) -> Iterator[tuple[str, str]]:
        """What these say of `onExceed` that `floor` does not allow: it, and what it allows."""
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
        """Strict unless said otherwise."""
        return self.mode or "strict"

    @property
    def measured_or_usual(self) -> Step:
        """Terminate unless said otherwise."""
        return self.measured or "terminate"

    @property
    def grace_or_usual_ns(self) -> int:
        """Before a step up."""
        return DEFAULT_GRACE_NS if self.grace_ns is None else self.grace_ns


def read_parameters(plain: object) -> Parameters:
    """The opaque parameters as their author wrote them. Raises `PenstockError`."""
    if not isinstance(plain, dict):
        raise _wrong(f"they are {type(plain).__name__}, not an object")
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if plain.get(key) != wanted:
            raise _wrong(f"{key} is {plain.get(key)!r}, not {wanted!r}")
    _check_keys(plain, ("apiVersion", "kind", "mode", "policy", "onExceed"), "")
    exceed = plain.get("onExceed", {})
    if not isinstance(exceed, dict):
        raise _wrong("onExceed is no object")
    _check_keys(exceed, ("measured", "grace"), "onExceed.")
    policy = plain.get("policy")
    if policy is not None and not (isinstance(policy, str) and _POLICY.fullmatch(policy)):
        raise _wrong(f"policy {str(policy)[:60]!r} is no name of an object")
    return Parameters(
        _one_of("mode", plain.get("mode"), MODES),
        policy,
        _one_of("onExceed.measured", exceed.get("measured"), STEPS),
        None if "grace" not in exceed else read_grace_ns(exceed["grace"]),
    )


def parameters_for(request: str, configs: Sequence[Mapping[str, object]]) -> Parameters:
    """Those that an allocation's `devices.config` has for a request, "main" or "main/sub".

    Raises:
        PenstockError: some of ours cannot be read.
    """
    of_class = said_by("FromClass", request, configs)
    return said_by("FromClaim", request, configs).over(of_class)


def said_by(source: Source, request: str, configs: Sequence[Mapping[str, object]]) -> Parameters:
    """Those of the class, which an administrator wrote, or of the claim alone. Raises likewise.

    Of several of one source for the same request the last goes first.
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
    """Of those that are said; None: none is."""
    return max((one for one in several if one is not None), key=STEPS.index, default=None)


def shortest(*several_ns: int | None) -> int | None:
    """The same of graces."""
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
    """Before a step up, in nanoseconds. Raises `PenstockError`."""
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
        "correct them in the claim or its device class; a claim is made anew, as it cannot change",
    )  # fmt: skip
