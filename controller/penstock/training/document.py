"""TrainJob: the document of a training job, version v1alpha1."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from penstock.card.names import TCP
from penstock.model import PenstockError, parse_duration_ns
from penstock.model.address import read_address
from penstock.policy.document import Document, Problem, parse, read_text
from penstock.policy.validation import InvalidError, validated
from penstock.training.data import Data, problems_of
from penstock.training.keys import Name, Strict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

API_VERSION, KIND = "penstock.io/v1alpha1", "TrainJob"
DEFAULT_PROJECT = "default"
MOST_RESTARTS = 1000
Split = Literal["weighted", "even"]


def _duration(value: object) -> str:
    """A time with its unit, as it was written. Raises `ValueError`."""
    parse_duration_ns(value)
    return str(value)


def _address(text: str) -> str:
    """An address that alarms can be sent to. Raises `ValueError`."""
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"{text[:60]!r} is no address: write https://HOST/PATH")
    return text


def _below(text: str) -> str:
    """A path in the folder where the program runs. Raises `ValueError`."""
    path = PurePath(text)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"{text[:60]!r} is not below the folder where the program runs")
    return text


def _listener(text: str) -> str:
    """HOST:PORT. Raises `ValueError`."""
    try:
        read_address(text)
    except PenstockError as error:
        raise ValueError(str(error)) from None
    return text


def _card(value: object) -> str:
    """One card as in $PENSTOCK_CARD. Raises `ValueError`."""
    from penstock.card.card_list import parse_cards
    from penstock.card.names import VARIABLE

    text = str(value)
    try:
        (card,) = parse_cards(text)
    except ValueError:
        raise ValueError(f"{text!r} is several cards: write each as an item of the list") from None
    except PenstockError as error:
        what = error.what.replace(f" in ${VARIABLE}", "")
        raise ValueError(f"{what}: {error.why}") from None
    del card
    return text


Duration = Annotated[str, BeforeValidator(_duration)]
Address = Annotated[str, AfterValidator(_address)]
Below = Annotated[str, AfterValidator(_below)]
Listener = Annotated[str, AfterValidator(_listener)]
Card = Annotated[str, BeforeValidator(_card)]


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
    credentials: str | None = Field(None, description="a folder, for cards at tcp:HOST:PORT")
    pool: Pool | None = None
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
        if (self.cards is None) == (self.pool is None):
            raise ValueError("write either cards or pool")
        if self.split == "even" and self.pool is not None:
            raise ValueError("split: even is for cards: what a pool gives has its measured speed")
        if self.split == "even" and any("=" in one for one in self.cards or ()):
            raise ValueError("split: even contradicts speeds that are given: leave one of them out")
        if (self.credentials is not None) != any(one.startswith(TCP) for one in self.cards or ()):
            raise ValueError(
                "cards at tcp:HOST:PORT and credentials are written together: "
                "penstock card credentials FOLDER makes FOLDER/program"
            )
        if self.cards is not None and len({"=" in one for one in self.cards}) > 1:
            raise ValueError("some cards have a speed and others have none: write all or none")
        return self

    @property
    def grace_s(self) -> float:
        """`grace` in seconds."""
        return parse_duration_ns(self.grace) / 1e9

    def card_variable(self) -> str | None:
        """$PENSTOCK_CARD of the program; None: the pool gives it."""
        if self.cards is None:
            return None
        even = {one: one.replace("@", "=1@") if "@" in one else f"{one}=1" for one in self.cards}
        return ",".join(even[one] if self.split == "even" else one for one in self.cards)


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
        JobError: it has not exactly one document, or that is not valid.
        PenstockError: the file cannot be read, or is no YAML.
    """
    documents = parse(read_text(file), str(file))
    if len(documents) != 1:
        text = f"has {len(documents)} documents: a file has one job, beginning with kind: {KIND}"
        raise JobError([Problem(str(file), None, (), text)])
    job = checked(documents[0], str(file))
    beside = file.absolute().parent
    places = {"folder": str((beside / (job.spec.folder or "")).resolve())}
    if job.spec.credentials is not None:
        places["credentials"] = str((beside / job.spec.credentials).resolve())
    return job.model_copy(update={"spec": job.spec.model_copy(update=places)})


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
