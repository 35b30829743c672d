"""Backward for the whole batch: after it, each rank has the gradients of all samples."""

from __future__ import annotations

import contextlib
import hashlib
import time
from dataclasses import dataclass
from math import isclose
from typing import TYPE_CHECKING, Any

import torch

from penstock.model import PenstockError
from penstock.training.factors import (
    Chain,
    Factor,
    Learned,
    Part,
    Reduction,
    UnclearLossError,
    factors_of,
    form_of,
)
from penstock.training.mixing import mixing
from penstock.training.pytorch.graph import sizes_of, steps_behind, with_sizes
from penstock.training.pytorch.walk import Walked, scaled_before, walk, with_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.training.factors import Form
    from penstock.training.pytorch.ranks import Ranks

WHOLE = "penstock"  # in the metadata of a node: the value that its tensor has for the whole batch
_plain_backward = torch.autograd.backward
_HEAD = 6  # numbers before those of the chains: form, rows, ran, digest, the last part's two
_ROOM = 60  # numbers of chains that go with the head


@dataclass(frozen=True)
class Mine:
    """This rank's part of the batch that is being computed.

    Attributes:
        rows: Samples that count.
        ran: Samples that are computed: one that does not count where `rows` is 0.
        digest: Of the whole batch's samples, which all ranks must have drawn alike.
    """

    rows: int
    ran: int
    digest: int = 0


def whole_value(tensor: torch.Tensor) -> float | None:
    """The value for the whole batch, of a number by whose multiple `backward` was called.

    An example is `loss` after `scaler.scale(loss).backward()`.
    """
    return None if tensor.grad_fn is None else tensor.grad_fn.metadata.get(WHOLE)


class NotSplitError(PenstockError):
    """A program whose batches cannot be split over cards."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(
            f"{what} cannot be split over cards", why,
            "write the loss as sums and means over samples and call its backward, or use one card",
        )  # fmt: skip


class WholeBatch:
    """Turns backward of a part into backward of the whole batch.

    Attributes:
        mine: The part that is being computed; None: every rank computes the same, and nothing is
            added up.
        backwards: How many there were.
    """

    def __init__(
        self,
        ranks: Ranks,
        on_step: Callable[[list[int], list[float]], None] = lambda *_: None,
    ) -> None:
        """`on_step`: gets each step's samples and seconds, by rank, on every rank."""
        self._ranks = ranks
        self._on_step = on_step
        self._clock = _Clock(ranks)
        self._last = (0, 0.0)  # samples and seconds of the last backward's batch
        self._learned = Learned()
        self.mine: Mine | None = None
        self.backwards = 0

    def begin(self, mine: Mine | None) -> None:
        """The program has got this part of a batch."""
        self.mine = mine
        self._clock.begin()

    def backward(
        self,
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        grad_variables: Any = None,
        inputs: Any = None,
    ) -> None:
        """In place of `torch.autograd.backward`; the loss becomes that of the whole batch, too.

        Raises:
            NotSplitError: the gradients of the whole batch cannot be made of those of its parts.
        """
        self.backwards += 1
        if self.mine is None:
            _plain_backward(
                tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs
            )
            return
        self._clock.pause()
        loss = _only_loss(tensors, grad_tensors, create_graph=create_graph)
        try:
            walked = self._walked(loss)
            is_new = form_of([one.chain for one in walked]) not in self._learned.classes
            parts = self._parts(walked, self.mine)
            factors = factors_of(parts, self._learned)
            if is_new and sum(one.rows > 0 for one in parts) > 1:
                self._check_mixing(walked, factors, parts)
        except UnclearLossError as error:
            raise NotSplitError("this loss", str(error)) from None
        multiples = scaled_before(loss)
        leaves = _leaves(loss, inputs)
        former = [one.grad for one in leaves]
        for one in leaves:
            one.grad = None
        rank = self._ranks.rank
        with _scaled(walked, factors, rank):
            self._clock.go_on()
            _plain_backward(loss, None, retain_graph, inputs=inputs)
            self._clock.pause()
        self._last = (self.mine.ran, self._clock.seconds)
        self._clock.begin()  # the program may compute the next loss from this batch
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in leaves]
        value = _value(loss, factors, parts, rank)
        self._ranks.add_up([*gradients, value])
        for leaf, old, new in zip(leaves, former, gradients, strict=True):
            leaf.grad = new if old is None else old.add_(new)
        loss.data.copy_(value)
        for node, factor in multiples:
            node.metadata[WHOLE] = value.item() / factor

    def _walked(self, loss: torch.Tensor) -> list[Walked]:
        walked = walk(loss)
        if form_of([one.chain for one in walked]) in self._learned.classes:
            return walked
        return [with_end(one) for one in walked]

    def _check_mixing(
        self, walked: Sequence[Walked], factors: Sequence[Factor], parts: Sequence[Part]
    ) -> None:
        """Raises `UnclearLossError` if samples see each other, the first time a form is seen."""
        starts = [inner for one, factor in zip(walked, factors, strict=True)
                  if factor.reduction is not None
                  for inner, _ in one.nodes[factor.reduction].next_functions]  # fmt: skip
        steps = steps_behind(starts)
        sizes = sizes_of(steps)
        names = int.from_bytes(
            hashlib.blake2b(repr([one.name for one in steps]).encode(), digest_size=6).digest()
        )
        heads = self._ranks.gather([float(names), float(len(sizes))])
        if any(one != heads[0] for one in heads):
            raise UnclearLossError("its operations depend on the number of samples")
        graphs = [with_sizes(steps, one) for one in self._ranks.gather(sizes)]
        other = next(i for i, one in enumerate(parts) if one.ran != parts[0].ran)
        if (why := mixing(graphs[0], graphs[other])) is not None:
            raise UnclearLossError(why)

    def _parts(self, walked: Sequence[Walked], mine: Mine) -> list[Part]:
        """All ranks' parts. Raises `UnclearLossError` if they do not belong together."""
        chains = [one.chain for one in walked]
        numbers = [number for one in chains for number in _numbers(one)]
        form = _form_digest(form_of(chains))
        head = [float(form), float(mine.rows), float(mine.ran), float(mine.digest), *self._last]
        room = (numbers + [0.0] * _ROOM)[:_ROOM]
        said = self._ranks.gather([*head, *room])
        if any(one[0] != form for one in said):
            raise UnclearLossError("the cards computed losses of different forms")
        if any(one[3] != mine.digest for one in said):
            raise UnclearLossError(
                "the cards have drawn different batches: the sampler depends on more than the "
                "random numbers at the beginning of an epoch"
            )
        self._on_step([int(one[4]) for one in said], [one[5] for one in said])
        theirs = [one[_HEAD : _HEAD + len(numbers)] for one in said]
        if len(numbers) > _ROOM:
            theirs = self._ranks.gather(numbers)
        return [Part(int(one[1]), int(one[2]), _like(chains, all_))
                for one, all_ in zip(said, theirs, strict=True)]  # fmt: skip


class _Clock:
    """Seconds that this rank computes, without those in which it waits for others."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.begin()

    def begin(self) -> None:
        self.seconds = 0.0
        self.go_on()

    def go_on(self) -> None:
        self._since_s = time.monotonic() - self._ranks.waited_s

    def pause(self) -> None:
        self.seconds += time.monotonic() - self._ranks.waited_s - self._since_s


def _numbers(chain: Chain) -> list[float]:
    return [chain.constant, float(chain.end), *(one.count for one in chain.reductions)]


def _like(chains: Sequence[Chain], numbers: list[float]) -> tuple[Chain, ...]:
    """Another rank's chains, of the same form as these."""
    rest = iter(numbers)
    found = []
    for one in chains:
        constant, end = next(rest), int(next(rest))
        reductions = tuple(Reduction(r.is_mean, next(rest), r.is_counted) for r in one.reductions)
        found.append(Chain(constant, reductions, end, one.name))
    return tuple(found)


def _form_digest(form: Form) -> int:
    return int.from_bytes(hashlib.blake2b(repr(form).encode(), digest_size=6).digest())


@contextlib.contextmanager
def _scaled(walked: Sequence[Walked], factors: Sequence[Factor], rank: int) -> Iterator[None]:
    """While it lasts, what flows back through each chain's reduction is multiplied."""
    handles = []
    by_node: dict[Any, float] = {}
    for one, factor in zip(walked, factors, strict=True):
        node = one.nodes[factor.reduction or 0]
        if node.name() == "torch::autograd::AccumulateGrad":
            raise NotSplitError("this loss", "a parameter is added to it without any operation")
        mine = factor.factors[rank]
        if by_node.setdefault(node, mine) != mine:
            raise NotSplitError(
                "this loss", "one mean is divided by different numbers of the batch"
            )
    for node, mine in by_node.items():
        if not mine:  # a mean over nothing is not a number, which times 0 it would remain
            handles.append(node.register_hook(_nothing))
        elif mine != 1.0:
            handles.append(node.register_prehook(_times(mine)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _nothing(onward: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if one is None else torch.zeros_like(one) for one in onward)


def _times(factor: float) -> Any:
    def scale(gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
        return tuple(None if one is None else one * factor for one in gradients)

    return scale


def _value(
    loss: torch.Tensor, factors: Sequence[Factor], parts: Sequence[Part], rank: int
) -> torch.Tensor:
    """What this rank adds to the value of the loss.

    It is exact unless the loss adds up means over different things, such as words and samples:
    then each card's value counts by its samples.
    """
    of_batch = [one.factors for one in factors if one.reduction is not None] or [factors[0].factors]
    weight = of_batch[0][rank]
    if any(not isclose(a, b, rel_tol=1e-5)
           for one in of_batch for a, b in zip(one, of_batch[0], strict=True)):  # fmt: skip
        weight = parts[rank].rows / sum(one.rows for one in parts)
    if not weight:
        return torch.zeros_like(loss.detach())
    return loss.detach() * weight


def _leaves(loss: torch.Tensor, inputs: Any) -> list[torch.Tensor]:
    """The parameters that get gradients, in an order that is the same on all ranks.

    Raises:
        NotSplitError: the program looks at gradients before they are those of the whole batch.
    """
    if inputs is not None:
        found = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    else:
        found, waiting, seen = [], [loss.grad_fn], set()
        while waiting:
            node: Any = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node.name() == "torch::autograd::AccumulateGrad":
                found.append(node.variable)
            waiting += [one for one, _ in node.next_functions]
    for one in found:
        if one._backward_hooks or one._post_accumulate_grad_hooks:
            raise NotSplitError("a hook on a parameter's gradient",
                           "it would see the gradient of this card's samples alone")  # fmt: skip
    return found


def _only_loss(tensors: Any, grad_tensors: Any, *, create_graph: bool) -> torch.Tensor:
    """The loss. Raises `NotSplitError` if it is called in a way that is not supported."""
    all_ = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if len(all_) != 1 or all_[0].numel() != 1:
        raise NotSplitError("backward of several tensors, or of one with several numbers",
                       "no sum or mean over samples is to be seen there")  # fmt: skip
    given = grad_tensors[0] if isinstance(grad_tensors, (list, tuple)) else grad_tensors
    if given is not None or create_graph:
        raise NotSplitError("backward with create_graph or with a gradient",
                       "it would be that of this card's samples alone")  # fmt: skip
    return all_[0]
