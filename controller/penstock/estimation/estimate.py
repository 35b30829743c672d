"""`estimate`: how much compute and memory one step of a model needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.estimation.need import (
    DEFAULT_HEADROOM,
    added_memory,
    given_efficiency,
    step_time_of,
)
from penstock.estimation.report import Estimate
from penstock.model import PenstockError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.estimation.memory import Memory
    from penstock.estimation.work import Work

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


def estimate(
    model: Any,
    sample: Any = None,
    *,
    step_time: object = None,
    throughput: object = None,
    efficiency: float | None = None,
    measured: str | None = None,
    precision: str = "fp32",
    training: bool = True,
    optimizer: Any = "adamw",
    loss: Callable[[Any], Any] | None = None,
    dims: Mapping[str, int] | None = None,
    headroom: float = DEFAULT_HEADROOM,
    name: str = "",
) -> Estimate:
    """Estimates one step of a model: `penstock.estimate(model, sample, step_time="200ms")`.

    `model` is a PyTorch module, or a function that makes one (then its parameters take no memory),
    or the path of an ONNX file. `sample` is a tensor, a tuple of arguments, a dictionary of
    named ones, or a function that makes it; `dims` are the sizes of an ONNX file's symbolic
    dimensions. `optimizer` is a word or a function of the parameters. `efficiency` is the
    part of the rated TFLOPS that is reached, or `measured` gives it by a run: "180ms@40" is a
    step of 180 ms on 40 TFLOPS.

    Raises:
        PenstockError: an argument is wrong, or the model cannot be run.
    """
    _check_word(precision, PRECISIONS, "precision")
    if isinstance(model, (str, Path)):
        work, memory, parameters, samples, notes = _of_onnx(
            Path(model), dims or {}, training=training, precision=precision, optimizer=optimizer
        )
        name = name or str(model)
    else:
        work, memory, parameters, samples, notes = _of_torch(
            model, sample, training=training, precision=precision, optimizer=optimizer, loss=loss
        )
        name = name or getattr(model, "__name__", type(model).__name__)
    return Estimate(
        name, training, precision, samples, parameters, work, memory,
        added_memory(memory.peak_bytes, headroom),
        given_efficiency(efficiency, measured, work.total_flops),
        step_time_of(step_time, throughput, samples),
        tuple(notes),
    )  # fmt: skip


_Parts = tuple["Work", "Memory", int, "int | None", "list[str]"]


def _of_torch(
    model: Any, sample: Any, *, training: bool, precision: str, optimizer: Any, loss: Any
) -> _Parts:
    try:
        import torch
    except ImportError as error:
        raise PenstockError(
            "cannot estimate PyTorch modules", str(error), "run pip install 'penstock[torch]'"
        ) from error
    from penstock.estimation.trace_torch import OPTIMIZERS, Step, trace

    if isinstance(optimizer, str):
        _check_word(optimizer, tuple(OPTIMIZERS), "optimizer")
        optimizer = OPTIMIZERS[optimizer]
    if sample is None:
        raise PenstockError(
            "the model has no input", "a traced step needs a sample of it",
            "add --input 32x3x224x224, or --sample train.py:sample",
        )  # fmt: skip
    is_function = callable(model) and not isinstance(model, torch.nn.Module)
    step = Step(training, precision, optimizer, loss)
    found = trace(
        model if is_function else lambda: model,
        sample if callable(sample) else lambda: sample,
        step,
    )
    return found.work, found.memory, found.parameters, found.samples, found.notes


def _of_onnx(
    path: Path, dims: Mapping[str, int], *, training: bool, precision: str, optimizer: Any
) -> _Parts:
    from penstock.estimation.onnx_graph import attributes_of, load_graph
    from penstock.estimation.trace_onnx import OnnxStep

    graph = load_graph(path, dims)
    step = OnnxStep(graph, training=training, precision=precision, optimizer=str(optimizer))
    first = graph.shapes.get(graph.inputs[0], ()) if graph.inputs else ()
    return (
        step.work(attributes_of), step.memory(), graph.elements_of(graph.parameters),
        first[0] if first else None, step.notes,
    )  # fmt: skip


def _check_word(word: str, words: tuple[str, ...], what: str) -> None:
    if word in words:
        return
    near = nearest(word, words)
    raise PenstockError(
        f"unknown {what} {word!r}", f"there are {', '.join(words)}",
        f"did you mean {near}?" if near else "name one of these",
    )  # fmt: skip
