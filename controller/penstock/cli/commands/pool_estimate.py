"""`penstock pool estimate`: how many TFLOPS and how much memory a model needs."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import Output, OutputFormat

if TYPE_CHECKING:
    from penstock.estimation import Estimate


def estimate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="FILE.py:FUNCTION, which returns a PyTorch module, or an ONNX file.",
        ),
    ],
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="[TYPE:]SHAPE",
            help="An input of the module: 32x3x224x224, int64:8x1024; repeat it for several.",
        ),
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION", help="Instead of --input: returns the module's arguments."
        ),
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZE", help="A symbolic dimension of the ONNX file; repeatable."
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION", help="Takes the module's output and returns the loss."
        ),
    ] = None,
    forward_only: Annotated[
        bool, typer.Option("--forward-only", help="Estimate inference instead of training.")
    ] = False,
    precision: Annotated[
        str,
        typer.Option(metavar="P", help="fp32, tf32, bf16 or fp16 (the last two by autocast)."),
    ] = "fp32",
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help="sgd, momentum, adam or adamw.")
    ] = "adamw",
    step_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Wanted time of one step: 200ms.")
    ] = None,
    throughput: Annotated[
        str | None, typer.Option(metavar="N/s", help="Instead: wanted samples a second: 500/s.")
    ] = None,
    efficiency: Annotated[
        float | None,
        typer.Option(metavar="RATIO", help="Part of the rated TFLOPS that is reached, 0 to 1."),
    ] = None,
    measured: Annotated[
        str | None,
        typer.Option(
            metavar="TIME@TFLOPS",
            help="Instead: a real run of this step. 180ms@40 took 180 ms with 40 TFLOPS claimed.",
        ),
    ] = None,
    headroom: Annotated[
        float, typer.Option(metavar="RATIO", help="Memory added for the card's allocator.")
    ] = 0.1,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if an operation is not known.")
    ] = False,
    output: OutputFormat = Output.table,
) -> None:
    """Estimate how many TFLOPS and how much memory a model needs, without running it.

    Operations whose cost is not known are named. The last line is the claim to make.
    """
    from penstock.estimation import estimate as estimate_model

    read = _functions if ":" in model and not model.endswith(".onnx") else _onnx_file
    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no estimate
        found = estimate_model(
            **read(model, shapes or [], sample, loss, dim or []), name=model,
            training=not forward_only, precision=precision, optimizer=optimizer,
            step_time=step_time, throughput=throughput, efficiency=efficiency, measured=measured,
            headroom=headroom,
        )  # fmt: skip
    _print(found, output)
    if strict and found.work.unknown:
        sys.exit(1)


def _functions(
    model: str, shapes: list[str], sample: str | None, loss: str | None, dims: list[str]
) -> dict[str, Any]:
    """The user's functions: the model's, and those of its sample and its loss."""
    from penstock.estimation.inputs import parse_input
    from penstock.estimation.user_code import load_function
    from penstock.model import PenstockError

    if dims:
        raise PenstockError(
            "--dim cannot be given for a PyTorch module", "it names dimensions of an ONNX file",
            "give --input, whose shape has them",
        )  # fmt: skip
    if shapes and sample is not None:
        raise PenstockError(
            "--input and --sample contradict each other", "each gives the module's arguments",
            "give only one of them",
        )  # fmt: skip
    parsed = [parse_input(one) for one in shapes]
    _check_torch()

    def empty() -> object:
        import torch

        return tuple(torch.empty(shape, dtype=getattr(torch, kind)) for kind, shape in parsed)

    return {
        "sample": load_function(sample) if sample is not None else empty if parsed else None,
        "loss": load_function(loss) if loss is not None else None,
        "model": load_function(model),
    }


def _onnx_file(
    model: str, shapes: list[str], sample: str | None, loss: str | None, dims: list[str]
) -> dict[str, Any]:
    """The ONNX file, and the sizes of its dimensions."""
    from penstock.estimation.inputs import parse_dims
    from penstock.model import PenstockError

    if model.endswith(".py"):
        raise PenstockError(
            f"it is not clear which model of {model} is meant", "a file may make several",
            f"name a function that returns it: {model}:make_model",
        )  # fmt: skip

    given = [
        option
        for option, is_given in (
            ("--input", bool(shapes)),
            ("--sample", sample is not None),
            ("--loss", loss is not None),
        )
        if is_given
    ]
    if given:
        raise PenstockError(
            f"{' and '.join(given)} cannot be given for an ONNX file",
            "its inputs are in the file"
            if model.endswith(".onnx")
            else "a module needs a function",
            "name the module as FILE.py:FUNCTION, or leave the option out",
        )
    return {"model": model, "dims": parse_dims(dims)}


def _check_torch() -> None:
    """Raises `PenstockError` where PyTorch is not installed: the user's file would say it worse."""
    from importlib.util import find_spec

    from penstock.model import PenstockError

    if find_spec("torch") is None:
        raise PenstockError(
            "cannot estimate PyTorch modules", "PyTorch is not installed in Penstock's environment",
            "run pip install 'penstock[torch]'",
        )  # fmt: skip


def _print(found: Estimate, output: Output) -> None:
    if output is Output.table:
        print("\n".join(found.lines()))
        return
    from penstock.cli.render.output import print_data

    print_data(found.data(), output)
