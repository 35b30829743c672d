"""Schema of QuotaPolicy, version v1alpha1.

Requests set quantities; policies set defaults, caps and behaviour. Parsed quantities are exact
integers (bytes, permille, nanoseconds); `penstock.model.quantity` defines how they are written.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from penstock.model import parse_cores, parse_duration_ns, parse_memory
from penstock.model.metric import METRICS
from penstock.model.quantity import LEAST_MEMORY_BYTES, parse_grace_ns
from penstock.model.terms import DEFAULT_GRACE_NS, DEFAULT_MODE, DEFAULT_STEP, Mode, Step

API_VERSION = "penstock.io/v1alpha1"
NO_METRIC = f"is empty: give at least one of {', '.join(one.key for one in METRICS.values())}"
KIND = "QuotaPolicy"


def _parse_limit(value: object) -> int:
    """Parses a memory limit with the same checks as admission."""
    size_bytes = parse_memory(value)
    if size_bytes < LEAST_MEMORY_BYTES:
        raise ValueError(
            f"memory {value!r} is too little: memory is counted in units of {LEAST_MEMORY_BYTES} "
            f"bytes; a number without a unit is bytes: did you mean {size_bytes}Gi?"
        )
    return size_bytes


MemoryBytes = Annotated[
    int,
    BeforeValidator(_parse_limit),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": LEAST_MEMORY_BYTES},
                {"type": "string", "pattern": r"^[0-9.]+([eE][0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$"},
            ],
            "description": "device memory as a Kubernetes quantity: 8Gi, 500Mi, or bytes",
        }
    ),
]
CoresPermille = Annotated[
    int,
    BeforeValidator(parse_cores),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "maximum": 100, "multipleOf": 0.1},
                {"type": "string", "pattern": r"^[0-9]+(\.[0-9])?%?$"},
            ],
            "description": "percent of one device's compute time, 0.1 to 100 in steps of 0.1",
        }
    ),
]
DurationNs = Annotated[
    int,
    BeforeValidator(parse_duration_ns),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^([0-9.]+\s*(ms|s|m|h)\s*)+$",
            "description": "a time with its unit: 500ms, 10s, 1m30s",
        }
    ),
]


GraceNs = Annotated[
    int,
    BeforeValidator(parse_grace_ns),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^([0-9.]+\s*(ms|s|m|h)\s*)+$",
            "description": "a time with its unit, at most a day: 0s, 500ms, 10s, 1m30s",
        }
    ),
]
PolicyName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$", min_length=1)
]


class _Strict(BaseModel):
    """Base of all models: unknown keys are errors, and keys are written in camelCase as in YAML."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Metadata(_Strict):
    """What the policy is called."""

    name: PolicyName


class Selector(_Strict):
    """What the policy is for: Pods by label, or commands and users on a plain machine."""

    match_labels: dict[str, str] | None = Field(default=None, alias="matchLabels", min_length=1)
    command: str | None = Field(
        None, min_length=1, description="shell pattern on the command's name or path"
    )
    user: str | None = Field(default=None, min_length=1, description="user name, or uid in digits")

    @model_validator(mode="after")
    def _something(self) -> Selector:
        if self.match_labels is None and self.command is None and self.user is None:
            raise ValueError(
                "is empty: give matchLabels, command or user, or leave the selector out"
            )
        return self


class Devices(_Strict):
    """How many devices of which kind; the limits hold on each of them."""

    kind: Literal["gpu"] = "gpu"
    count: int = Field(default=1, ge=1, le=16, strict=True)


class Limits(_Strict):
    """Hard limits on each granted device."""

    memory: MemoryBytes | None = None
    cores: CoresPermille | None = None
    tflops: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="n TFLOPS of the card it lands on, instead of cores",
    )

    @model_validator(mode="after")
    def _one_measure_of_compute(self) -> Limits:
        if self.cores is not None and self.tflops is not None:
            raise ValueError("has both cores and tflops: give one of them")
        if self.memory is None and self.cores is None and self.tflops is None:
            raise ValueError("is empty: give memory, and cores or tflops")
        return self


class OnExceed(_Strict):
    """What follows when more is asked for (request), or measured, than granted."""

    request: Literal["deny"] = "deny"
    measured: Step = DEFAULT_STEP
    grace: GraceNs = DEFAULT_GRACE_NS


class Threshold(_Strict):
    """Grow above `up`, shrink below `down`."""

    up: float = Field(gt=0)
    down: float = Field(ge=0)

    @model_validator(mode="after")
    def _up_is_above_down(self) -> Threshold:
        if self.up <= self.down:
            raise ValueError(
                f"up ({self.up:g}) must be above down ({self.down:g}), or scaling would flap"
            )
        return self


class UtilisationThreshold(Threshold):
    """A threshold in percent."""

    up: float = Field(gt=0, le=100)


class Metrics(_Strict):
    """What replicas are scaled by: utilisation in percent, requests a second a replica."""

    cpu: UtilisationThreshold | None = Field(None, description="CPU, of what was requested")
    memory: UtilisationThreshold | None = Field(
        None, description="the host's memory, of what was requested"
    )
    cores: UtilisationThreshold | None = Field(None, description="device time, of limits.cores")
    vgpu_memory: UtilisationThreshold | None = Field(
        None, alias="vgpuMemory", description="device memory, of limits.memory"
    )
    qps: Threshold | None = Field(None, description="requests a second a replica")

    @model_validator(mode="after")
    def _something(self) -> Metrics:
        if all(getattr(self, metric) is None for metric in METRICS):
            raise ValueError(NO_METRIC)
        return self


class Scale(_Strict):
    """Replicas: grow when any metric is above `up`, shrink when all are below `down`."""

    min: int = Field(default=1, ge=0, strict=True)
    max: int = Field(ge=1, strict=True)
    metrics: Metrics
    stabilization: DurationNs = 60 * 10**9

    @model_validator(mode="after")
    def _min_is_at_most_max(self) -> Scale:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) must be at most max ({self.max})")
        return self


class Spec(_Strict):
    """What the policy selects, and what holds for it."""

    selector: Selector | None = None
    devices: Devices = Devices()
    limits: Limits
    mode: Mode = DEFAULT_MODE
    allow_unknown: bool = Field(
        default=False,
        alias="allowUnknown",
        description="Pass on driver functions that this release does not know and that may take "
        "memory or device time without being counted.",
    )
    priority: int | None = Field(
        None, strict=True, description="plain machines only; larger is more urgent"
    )
    on_exceed: OnExceed = Field(default=OnExceed(), alias="onExceed")
    scale: Scale | None = None


class QuotaPolicy(_Strict):
    """One document of a policy file."""

    api_version: Literal["penstock.io/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["QuotaPolicy"]
    metadata: Metadata
    spec: Spec


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a policy document, for editors."""
    schema = QuotaPolicy.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
