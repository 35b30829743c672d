"""TrainJob: the document of a training job, version v1alpha1."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from penstock.card.names import CREDENTIALS_VARIABLE, TCP
from penstock.model import PenstockError, parse_duration_ns
from penstock.policy.document import Document, KeyPath, Problem, parse, read_text
from penstock.policy.validation import InvalidError, validated
from penstock.training.data import Data, problems_of
from penstock.training.fields import Address, Below, Card, Duration, Listener, Name, Strict
from penstock.training.kubernetes import Kubernetes  # noqa: TC001 - pydantic reads it

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

API_VERSION, KIND = "penstock.io/v1alpha1", "TrainJob"
DEFAULT_PROJECT = "default"
MOST_RESTARTS = 1000
MOST_NAME = 57  # of a host name's 63: a '-' before the group and one before the card's number
Split = Literal["weighted", "even"]


class Metadata(Strict):
    """Which project the job belongs to, and what its run is called."""

    project: Name = DEFAULT_PROJECT
    name: Name | None = None


class Pool(Strict):
    """What the job claims of the compute pool."""

    tflops: str | float
    memory: str | None = None
    kind: str = ""
    priority: int = 0
    wait: str | None = None


class Spec(Strict):
    """What is run, and on what."""

    command: list[str] = Field(min_length=1)
    folder: str | None = Field(None, description="where it runs (default: the document's folder)")
    environment: dict[str, str] = Field(default_factory=dict)
    data: Data | None = None
    outputs: list[Below] = Field(
        default_factory=list, description="files or folders that the run keeps, if it succeeds"
    )
    cards: list[Card] | None = Field(None, min_length=1)
    spares: list[Card] = Field(
        default_factory=list, description="cards that take the place of lost ones"
    )
    credentials: str | None = Field(None, description="a folder, for cards at tcp:HOST:PORT")
    pool: Pool | None = None
    kubernetes: Kubernetes | None = None
    split: Split = "weighted"
    restarts: int = Field(0, ge=0, le=MOST_RESTARTS)
    webhook: Address | None = Field(
        None, description="gets a POST when a card is lost or the program fails"
    )
    metrics: Listener | None = Field(
        None, description="HOST:PORT where the run serves metrics to Prometheus"
    )
    grace: Duration = Field("10s", description="from the order to stop until it is killed")

    @model_validator(mode="after")
    def _one_place(self) -> Spec:
        places = (self.cards, self.pool, self.kubernetes)
        if all(one is None for one in places) or None not in (self.cards, self.pool):
            raise ValueError("write either cards or pool, or kubernetes")
        if self.split == "even" and self.pool is not None:
            raise ValueError("split: even is for cards: what a pool gives has its measured speed")
        if self.split == "even" and any("=" in one for one in self._every_card):
            raise ValueError("split: even contradicts speeds that are given: leave one of them out")
        self._check_credentials()
        groups = self.kubernetes.groups if self.kubernetes is not None else []
        if self.split == "even" and any(one.speed is not None for one in groups):
            raise ValueError("split: even contradicts speeds that are given: leave one of them out")
        if self.spares and self.cards is None:
            raise ValueError("spares are for cards: a pool and Kubernetes find other ones")
        if self.cards is not None and len({"=" in one for one in self._every_card}) > 1:
            raise ValueError("some cards have a speed and others have none: write all or none")
        return self

    def _check_credentials(self) -> None:
        """Raises `ValueError` if there are credentials without cards for them, or none."""
        is_needed = any(one.startswith(TCP) for one in self._every_card)
        is_set = CREDENTIALS_VARIABLE in {**os.environ, **self.environment}
        if (self.credentials is not None and not is_needed) or (
            is_needed and self.credentials is None and not is_set
        ):
            raise ValueError(
                "cards at tcp:HOST:PORT and credentials are written together: "
                "penstock card credentials FOLDER makes FOLDER/program"
            )

    @property
    def _every_card(self) -> list[str]:
        return [*(self.cards or ()), *self.spares]

    @property
    def grace_s(self) -> float:
        """`grace` in seconds."""
        return parse_duration_ns(self.grace) / 1e9

    def card_variable(self) -> str | None:
        """$PENSTOCK_CARD of the program; None: the pool gives it."""
        return None if self.cards is None else self._list(self.cards)

    def spares_variable(self) -> str:
        """$PENSTOCK_CARD_SPARES of the program."""
        return self._list(self.spares)

    def _list(self, cards: list[str]) -> str:
        even = {one: one.replace("@", "=1@") if "@" in one else f"{one}=1" for one in cards}
        return ",".join(even[one] if self.split == "even" else one for one in cards)


class TrainJob(Strict):
    """A training job."""

    api_version: Literal["penstock.io/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["TrainJob"]
    metadata: Metadata = Metadata()
    spec: Spec

    def plain(self) -> dict[str, Any]:
        """The job as its document would have it, with all defaults."""
        return self.model_dump(by_alias=True, mode="json")


class JobError(PenstockError):
    """A job's document cannot be used; its text has all problems, each with file and line."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("job not usable")

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


_EXAMPLES: Mapping[str, str] = {
    "apiVersion": API_VERSION, "kind": KIND, "spec.command": "[python, train.py]",
}  # fmt: skip


def load_job(file: Path) -> TrainJob:
    """The job of a file, which runs in the file's folder unless it says another.

    Raises:
        JobError: it has not exactly one document, or that is not valid, or for Kubernetes alone.
        PenstockError: the file cannot be read, or is no YAML.
    """
    document, job = _only(file)
    if job.spec.cards is None and job.spec.pool is None:
        text = (
            "the job has cards on Kubernetes alone: start it with penstock train render "
            f"{file} | kubectl apply -f -, or write cards or pool for this machine, too"
        )
        raise JobError([_problem(file, document, ("spec", "kubernetes"), text)])
    beside = file.absolute().parent
    places = {"folder": str((beside / (job.spec.folder or "")).resolve())}
    if job.spec.credentials is not None:
        places["credentials"] = str((beside / job.spec.credentials).resolve())
    return job.model_copy(update={"spec": job.spec.model_copy(update=places)})


_NOT_ON_KUBERNETES = {
    "data": "prepare the data in a Job of its own, on a volume that the program's Pod has",
    "outputs": "let the program write to a volume",
}


def load_kubernetes_job(file: Path) -> TrainJob:
    """The job of a file that is to run on Kubernetes; its folder is the container's.

    Raises:
        JobError: as `load_job`, or the document lacks what its objects need.
        PenstockError: the file cannot be read, or is no YAML.
    """
    document, job = _only(file)
    kubernetes, metadata, folder = job.spec.kubernetes, job.metadata, job.spec.folder
    if kubernetes is None:
        text = "is missing: write {image: IMAGE, groups: [{name: a, cards: 2}]}"
        raise JobError([_problem(file, document, ("spec", "kubernetes"), text)])
    if metadata.name is None:
        text = "is missing: the objects of each run have its name"
        raise JobError([_problem(file, document, ("metadata", "name"), text)])
    if folder is not None and not folder.startswith("/"):
        text = f"{folder!r} does not begin with /: on Kubernetes it is the container's"
        raise JobError([_problem(file, document, ("spec", "folder"), text)])
    for key, instead in _NOT_ON_KUBERNETES.items():
        if getattr(job.spec, key):
            text = f"is not done on Kubernetes yet: {instead}"
            raise JobError([_problem(file, document, ("spec", key), text)])
    name, longest = job_name(job), max(len(one.name) for one in kubernetes.groups)
    if "." in name or len(name) > MOST_NAME - longest:
        text = (f"{name!r} cannot be a part of host names: use no '.', and at most "
                f"{MOST_NAME - longest} letters for project and name")  # fmt: skip
        raise JobError([_problem(file, document, ("metadata", "name"), text)])
    return job


def job_name(job: TrainJob) -> str:
    """The name of a job's objects on Kubernetes."""
    return f"{job.metadata.project}-{job.metadata.name}"


def _only(file: Path) -> tuple[Document, TrainJob]:
    """The document of a file with one. Raises `JobError`, `PenstockError`."""
    documents = parse(read_text(file), str(file))
    if len(documents) != 1:
        text = f"has {len(documents)} documents: a file has one job, beginning with kind: {KIND}"
        raise JobError([Problem(str(file), None, (), text)])
    return documents[0], checked(documents[0], str(file))


def _problem(file: Path, document: Document, path: KeyPath, text: str) -> Problem:
    return Problem(str(file), document.position(path), path, text)


def checked(document: Document, file: str) -> TrainJob:
    """The job in a document. Raises `JobError`."""
    if not isinstance(document.value, dict):
        text = f"a job is a mapping that begins with apiVersion: {API_VERSION}"
        raise JobError([Problem(file, document.position(()), (), text)])
    try:
        job = validated(document, file, TrainJob, _EXAMPLES)
    except InvalidError as error:
        raise JobError(error.problems) from None
    found = problems_of(job.spec.data) if job.spec.data is not None else ()
    problems = []
    for place, text in found:
        path = ("spec", "data", *place)
        problems.append(Problem(file, document.position(path), path, text))
    if problems:
        raise JobError(problems)
    return job
