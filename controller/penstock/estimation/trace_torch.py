"""Tracing a PyTorch module: one training step, or one forward pass, on tensors without data.

The step is really run, by PyTorch's own autograd and optimiser, but on fake tensors: they have
shapes and no data, so nothing is computed and no memory is taken.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from penstock.estimation.fake import fake_mode
from penstock.estimation.tracer import Tracer
from penstock.estimation.user_code import naming_the_line
from penstock.estimation.work import Work
from penstock.model import PenstockError

if TYPE_CHECKING:
    from penstock.estimation.memory import Memory

Optimizer = Callable[[list[Any]], Any]
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
OPTIMIZERS: dict[str, Optimizer] = {  # `foreach` is what PyTorch itself chooses on accelerators
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, foreach=True),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, foreach=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
}


@dataclass
class Trace:
    """What one step computes and holds; `notes` say what was assumed."""

    work: Work
    memory: Memory
    parameters: int
    samples: int | None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """What a step is: training or not, in which precision, with which loss and optimiser."""

    training: bool = True
    precision: str = "fp32"
    optimizer: Optimizer = OPTIMIZERS["adamw"]
    loss: Callable[[Any], Any] | None = None


def trace(make_model: Callable[[], Any], sample: Callable[[], Any], step: Step) -> Trace:
    """Traces one step of a model with the inputs that `sample` makes.

    Both are called on fake tensors. A sample is one tensor, a tuple of arguments or a dictionary
    of named ones.

    Raises:
        PenstockError: the model, its loss or its sample failed; the error names the line.
    """
    with fake_mode() as mode:
        with naming_the_line("making the model"):
            model = make_model()
        if not isinstance(model, torch.nn.Module):
            raise PenstockError(
                "there is no model to estimate",
                f"a torch.nn.Module is needed, not {type(model).__name__}",
                "name a function that returns the model",
            )
        if not all(isinstance(one, FakeTensor) for one in model.parameters()):
            model = without_data(mode, model)
        with naming_the_line("making the sample"):
            inputs = sample()
        return _Tracing(mode, model, step).run(inputs)


def without_data(mode: Any, module: Any) -> Any:
    """A copy of a module without data, for a fake mode; tied parameters stay tied.

    The module is left alone.
    """
    memo: dict[int, Any] = {}
    for one in [*module.parameters(), *module.buffers()]:
        fake = mode.from_tensor(one.detach())
        memo[id(one)] = (
            torch.nn.Parameter(fake, one.requires_grad)
            if isinstance(one, torch.nn.Parameter)
            else fake
        )
    with _disable_current_modes(), naming_the_line("copying the model"):
        return copy.deepcopy(module, memo)  # other tensors of the module are copied with their data


class _Tracing:
    def __init__(self, mode: Any, model: Any, step: Step) -> None:
        self._mode = mode
        self._model = model
        self._step = step
        self._tracer = Tracer(mode)
        self._notes: list[str] = []

    def run(self, inputs: Any) -> Trace:
        """Runs the step twice, as the first one makes the optimiser's state; counts the second."""
        inputs = self._known_inputs(inputs)
        if any(one.device.type != "cpu" for one in self._model.parameters()):
            self._model.to("cpu")  # without an accelerator its kind of tensor has no backward pass
        self._model.train(self._step.training)
        parameters = list(self._model.parameters())
        storages = self._tracer.storages
        storages.see(parameters, "parameters")
        storages.see(self._model.buffers(), "buffers")
        storages.see(_tensors(inputs), "inputs")
        learned = [one for one in parameters if one.requires_grad]
        if self._step.training and not learned:
            raise PenstockError(
                "the model cannot be trained", "none of its parameters requires a gradient",
                "add --forward-only",
            )  # fmt: skip
        optimizer = self._step.optimizer(learned) if self._step.training else None
        for _ in range(2 if optimizer else 1):
            self._tracer.work = Work()
            storages.restart()
            if optimizer is None:
                self._forward_only(inputs)
            else:
                self._train(inputs, optimizer, learned)
        places = self._tracer.values.assumed.items()
        self._notes += [f"{place}: values of {name} are assumed" for place, name in places]
        count = sum(one.numel() for one in parameters)
        first = next((one for one in _tensors(inputs) if one.dim()), None)
        samples = None if first is None else first.shape[0]
        return Trace(self._tracer.work, storages.peak(), count, samples, self._notes)

    def _forward_only(self, inputs: Any) -> None:
        self._tracer.phase = "forward"
        doing = f"the forward pass with {_shapes(inputs)}"
        with torch.no_grad(), self._tracer, self._autocast(), naming_the_line(doing):
            _call(self._model, inputs)

    def _train(self, inputs: Any, optimizer: Any, learned: list[Any]) -> None:
        tracer = self._tracer
        optimizer.zero_grad(set_to_none=True)
        tracer.phase = "forward"
        doing = f"the forward pass with {_shapes(inputs)}"
        with tracer, self._autocast(), naming_the_line(doing):
            loss = self._loss(_call(self._model, inputs))
        tracer.phase = "backward"
        with tracer, naming_the_line("the backward pass"):
            loss.backward()
        del loss
        gradients = [one.grad for one in learned if one.grad is not None]
        tracer.storages.rename(gradients, "gradients")
        tracer.phase = "optimizer"
        with tracer, naming_the_line("the optimiser's step"):
            optimizer.step()
        state = [one for one in tree_flatten(dict(optimizer.state))[0] if _is_tensor(one)]
        tracer.storages.rename(state, "optimizer state")

    def _loss(self, output: Any) -> Any:
        """The loss of the user, the model's own, or the sum of its outputs.

        Raises:
            PenstockError: nothing in the output can be trained.
        """
        if self._step.loss is not None:
            loss = self._step.loss(output)
        elif _is_tensor(getattr(output, "loss", None)):
            loss = output.loss
        else:
            note = "the loss is the sum of the outputs: add --loss for the memory of yours"
            if note not in self._notes:
                self._notes.append(note)
            floats = [one for one in _tensors(output) if one.requires_grad]
            # The factor makes the gradient a tensor of its own, as that of any real loss is.
            sums = [(one * 1.0).sum() for one in floats]
            loss = sum(sums[1:], sums[0]) if sums else None
        if not _is_tensor(loss) or not loss.requires_grad or loss.numel() != 1:
            raise PenstockError(
                "the model cannot be trained", "its loss is not one number that has a gradient",
                "give a --loss that returns one, or add --forward-only",
            )  # fmt: skip
        return loss

    @contextlib.contextmanager
    def _autocast(self) -> Iterator[None]:
        dtype = AUTOCAST.get(self._step.precision)
        with torch.autocast("cpu", dtype) if dtype else contextlib.nullcontext():
            yield

    def _known_inputs(self, inputs: Any) -> Any:
        """The inputs without data, on the CPU; the integers among them keep theirs, or are one."""

        def convert(one: Any) -> Any:
            if not _is_tensor(one):
                return one
            is_fake = isinstance(one, FakeTensor)
            fake = (one if is_fake else self._mode.from_tensor(one)).to("cpu")
            if not one.dtype.is_floating_point:
                with _disable_current_modes():
                    real = torch.ones(one.shape, dtype=one.dtype) if is_fake else one
                self._tracer.values.learn(fake, real)
            return fake

        return tree_map(convert, inputs)


def _call(model: Any, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def _is_tensor(one: Any) -> bool:
    return isinstance(one, torch.Tensor)


def _tensors(tree: Any) -> list[Any]:
    return [one for one in tree_flatten(tree)[0] if _is_tensor(one)]


def _shapes(inputs: Any) -> str:
    """The shapes of inputs as --input takes them."""
    return ", ".join("x".join(map(str, one.shape)) or "a number" for one in _tensors(inputs))
