"""Resolution of a quota's terms: options override the policy, which overrides the defaults.

Each source (command-line options, a Pod's annotations, the parameters of a claim or of its class, a
QuotaPolicy) is read into `Settings`; `resolve` combines them into `Terms`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from penstock.model.terms import STEPS, Mode, Step, Terms

if TYPE_CHECKING:
    from penstock.policy.schema import Spec


@dataclass(frozen=True)
class Settings:
    """The terms that one source sets; a term that it does not set is None."""

    mode: Mode | None = None
    policy: str | None = None
    measured: Step | None = None
    grace_ns: int | None = None
    allow_unknown: bool | None = None

    @classmethod
    def of_policy(cls, spec: Spec, name: str | None = None) -> Settings:
        """The settings of a QuotaPolicy, which sets all terms."""
        exceed = spec.on_exceed
        return cls(spec.mode, name, exceed.measured, exceed.grace, spec.allow_unknown)

    def given(self) -> dict[str, Any]:
        """The settings that have a value, by name."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def over(self, other: Settings) -> Settings:
        """These settings, completed with those of `other` for terms that these do not set."""
        return replace(other, **self.given())

    def bounded_by(self, floor: Settings) -> Settings:
        """These settings over those of `floor`, with a step on excess at least as strict."""
        graces_ns = [one for one in (self.grace_ns, floor.grace_ns) if one is not None]
        return replace(
            self.over(floor),
            measured=strictest(self.measured, floor.measured),
            grace_ns=min(graces_ns, default=None),
        )


def resolve(*sources: Settings) -> Terms:
    """The terms of a quota, each from the first of `sources` that sets it, else the default."""
    settings = Settings()
    for one in sources:
        settings = settings.over(one)
    return Terms(**settings.given())


def strictest(*several: Step | None) -> Step | None:
    """The strictest of the steps that are set; None if no step is set."""
    return max((one for one in several if one is not None), key=STEPS.index, default=None)
