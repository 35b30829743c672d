"""`Question`: what `penstock pool estimate` was asked, in the words of its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.estimation.estimate import estimate
from penstock.estimation.inputs import parse_dims, parse_input
from penstock.estimation.user_code import load_function
from penstock.model import PenstockError

if TYPE_CHECKING:
    from penstock.estimation.report import Estimate


@dataclass(frozen=True)
class Question:
    """A model, its inputs and loss, and the options of `estimate`; plain values, for JSON."""

    model: str
    shapes: list[str] = field(default_factory=list)
    sample: str | None = None
    loss: str | None = None
    dims: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_function(self) -> bool:
        """Whether the model is a function of the user's, FILE.py:FUNCTION."""
        return ":" in self.model and not self.model.endswith(".onnx")

    def answer(self) -> Estimate:
        """The estimate; runs the user's code.

        Raises:
            PenstockError: the options contradict each other, or the model cannot be run.
        """
        arguments = self._functions() if self.is_function else self._onnx_file()
        return estimate(**arguments, name=self.model, **self.options)

    def _functions(self) -> dict[str, Any]:
        """The user's functions: the model's, and those of its sample and its loss."""
        if self.dims:
            raise PenstockError(
                "--dim cannot be given for a PyTorch module", "it names dimensions of an ONNX file",
                "give --input, whose shape has them",
            )  # fmt: skip
        if self.shapes and self.sample is not None:
            raise PenstockError(
                "--input and --sample contradict each other", "each gives the module's arguments",
                "give only one of them",
            )  # fmt: skip
        parsed = [parse_input(one) for one in self.shapes]
        _check_torch()

        def empty() -> object:
            import torch

            return tuple(torch.empty(shape, dtype=getattr(torch, kind)) for kind, shape in parsed)

        no_sample = empty if parsed else None
        return {
            "sample": no_sample if self.sample is None else load_function(self.sample),
            "loss": None if self.loss is None else load_function(self.loss),
            "model": load_function(self.model),
        }

    def _onnx_file(self) -> dict[str, Any]:
        """The ONNX file, and the sizes of its dimensions."""
        if self.model.endswith(".py"):
            raise PenstockError(
                f"it is not clear which model of {self.model} is meant",
                "a file may make several",
                f"name a function that returns it: {self.model}:make_model",
            )
        given = [
            option
            for option, is_given in (
                ("--input", bool(self.shapes)),
                ("--sample", self.sample is not None),
                ("--loss", self.loss is not None),
            )
            if is_given
        ]
        if given:
            raise PenstockError(
                f"{' and '.join(given)} cannot be given for an ONNX file",
                "its inputs are in the file"
                if self.model.endswith(".onnx")
                else "a module needs a function",
                "name the module as FILE.py:FUNCTION, or leave the option out",
            )
        return {"model": self.model, "dims": parse_dims(self.dims)}


def _check_torch() -> None:
    """Raises `PenstockError` where PyTorch is not installed: the user's file would say it worse."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise PenstockError(
            "cannot estimate PyTorch modules", "PyTorch is not installed in Penstock's environment",
            "run pip install 'penstock[torch]'",
        )  # fmt: skip
