"""Section `kubernetes` of a training job: its Pods, their cards and where they may run."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from penstock.model import nearest
from penstock.training.fields import Duration, Strict

MOST_CARDS = 1000  # of a group
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_GROUP = re.compile(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")
_CARD = re.compile(r"[a-z]+(:[0-9]+)?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
_OURS = "penstock.io/"
# Extended resources of Penstock; penstock.kube.objects.names has them for the cluster's side.
_SHARES = ("penstock.io/vgpu", "penstock.io/memory", "penstock.io/cores-permille",
           "penstock.io/tflops")  # fmt: skip


def _label(text: str) -> str:
    """A name of Kubernetes. Raises `ValueError`."""
    if not _LABEL.fullmatch(text):
        raise ValueError(f"{text[:70]!r} is not a name: use lower-case letters, digits and '-'")
    return text


def _group(text: str) -> str:
    """The name of a group, which becomes a part of host names. Raises `ValueError`."""
    if not _GROUP.fullmatch(text):
        raise ValueError(
            f"{text[:70]!r} is not a group's name: use at most 20 lower-case letters, digits "
            "and '-'"
        )
    return text


def _card(text: str) -> str:
    """The card that a Pod serves. Raises `ValueError`."""
    if not _CARD.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is no card: write its kind and number, as cuda:0 or cpu")
    return text


def _amounts(value: object) -> object:
    """Amounts of resources, as texts. Raises `ValueError`."""
    if not isinstance(value, dict):
        return value
    for name, amount in value.items():
        if not _QUANTITY.fullmatch(str(amount)) or isinstance(amount, bool):
            raise ValueError(f"{name}: {amount!r} is not a quantity: write it like 20Gi, 500m or 1")
        if name.startswith(_OURS) and name not in _SHARES:
            near = nearest(name, _SHARES)
            hint = f"; did you mean {near}?" if near else ""
            raise ValueError(f"{name} is no resource of Penstock{hint} ({', '.join(_SHARES)})")
    return {name: str(amount) for name, amount in value.items()}


def _folder(text: str) -> str:
    """A path in a container. Raises `ValueError`."""
    if not text.startswith("/"):
        raise ValueError(f"{text[:60]!r} does not begin with /")
    return text


Label = Annotated[str, AfterValidator(_label)]
Amounts = Annotated[dict[str, str], BeforeValidator(_amounts)]


class Volume(Strict):
    """A volume of a Pod, and where its container finds it."""

    name: Label
    mount_path: Annotated[str, AfterValidator(_folder)] = Field(alias="mountPath")
    read_only: bool = Field(False, alias="readOnly")
    source: dict[str, Any] = Field(
        min_length=1, description="as in a Pod, such as {persistentVolumeClaim: {claimName: data}}"
    )


class PodSettings(Strict):
    """What the Pods of a group, and the program's, may have."""

    image: str | None = Field(default=None, min_length=1, description="not kubernetes.image")
    limits: Amounts = Field(default_factory=dict)
    requests: Amounts = Field(default_factory=dict)
    node_selector: dict[str, str] = Field(default_factory=dict, alias="nodeSelector")
    tolerations: list[dict[str, Any]] = Field(default_factory=list)
    annotations: dict[str, str] = Field(default_factory=dict)
    runtime_class: Label | None = Field(default=None, alias="runtimeClassName")
    volumes: list[Volume] = Field(default_factory=list)


class Group(PodSettings):
    """Like cards, each a Pod of its own."""

    name: Annotated[str, AfterValidator(_group)]
    cards: int = Field(ge=1, le=MOST_CARDS)
    card: Annotated[str, AfterValidator(_card)] = Field(
        "cuda:0", description="what a Pod serves of the cards that it sees"
    )
    speed: float | None = Field(None, gt=0, description="of each; none: all are measured")
    claim_template: Label | None = Field(
        None, alias="claimTemplate", description="a ResourceClaimTemplate for each Pod"
    )
    environment: dict[str, str] = Field(default_factory=dict)


class Kubernetes(Strict):
    """The Pods of a job: one for the program, one for each card."""

    image: str = Field(min_length=1)
    namespace: Label | None = None
    user: int = Field(1000, ge=0, description="that all containers run as")
    wait: Duration = Field("1h", description="for how long program and cards wait for each other")
    groups: list[Group] = Field(min_length=1)
    program: PodSettings = PodSettings()
    priority_class: str | None = Field(None, alias="priorityClassName")
    pull_secrets: list[Label] = Field(default_factory=list, alias="imagePullSecrets")

    @model_validator(mode="after")
    def _distinct_groups(self) -> Kubernetes:
        names = [one.name for one in self.groups]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two groups have the name {twice}")
        if len({one.speed is None for one in self.groups}) > 1:
            raise ValueError("some groups have a speed and others have none: write all or none")
        return self
