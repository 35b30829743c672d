"""`penstock pool estimate`: how many TFLOPS and how much memory a model needs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Output, OutputFormat

if TYPE_CHECKING:
    from penstock.estimation.apart import Answer


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
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="The most time that the estimate may take: 10m.")
    ] = "10m",
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if an operation is not known.")
    ] = False,
    output: OutputFormat = Output.table,
) -> None:
    """Estimate how many TFLOPS and how much memory a model needs, without running it.

    Operations whose cost is not known are named. The last line is the claim to make. Your code runs
    in a process of its own; what it prints goes to standard error.
    """
    from penstock.estimation.apart import estimate_apart
    from penstock.estimation.question import Question

    options = {
        "training": not forward_only, "precision": precision, "optimizer": optimizer,
        "step_time": step_time, "throughput": throughput, "efficiency": efficiency,
        "measured": measured, "headroom": headroom,
    }  # fmt: skip
    question = Question(model, shapes or [], sample, loss, dim or [], options)
    found = estimate_apart(question, _timeout_ns(timeout))
    _print(found, output)
    if strict and found.data["unknown_operations"]:
        sys.exit(1)


def _timeout_ns(text: str) -> int:
    from penstock.model import PenstockError, QuantityError, parse_duration_ns

    try:
        return parse_duration_ns(text)
    except QuantityError as error:
        raise PenstockError(
            f"invalid duration for --timeout: {text!r}", str(error), "write it like 10m"
        ) from error


def _print(found: Answer, output: Output) -> None:
    if output is Output.table:
        print("\n".join(found.lines))
        return
    from penstock.cli.render.output import print_data

    print_data(found.data, output)
