"""Heap order: a priority in which small workloads stand among large ones.

A heap is only partly ordered. Its pre-order begins with the largest workload, then goes down to a
leaf at once, so small workloads come before all large ones are done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


def max_heap(sizes: Sequence[float]) -> list[int]:
    """Indices into `sizes` as a max-heap in an array, built from the bottom up.

    The children of the one at `at` are at 2·at + 1 and 2·at + 2. Equal ones are not exchanged.
    """
    heap = list(range(len(sizes)))
    for at in reversed(range(len(heap) // 2)):
        _sift_down(heap, at, sizes)
    return heap


def pre_order(heap: Sequence[T]) -> list[T]:
    """A heap read in pre-order: each before what is below it, the left before the right."""
    order: list[T] = []
    todo = [0] if heap else []
    while todo:
        at = todo.pop()
        order.append(heap[at])
        todo += [child for child in (2 * at + 2, 2 * at + 1) if child < len(heap)]
    return order


def _sift_down(heap: list[int], at: int, sizes: Sequence[float]) -> None:
    while (child := 2 * at + 1) < len(heap):
        if child + 1 < len(heap) and sizes[heap[child + 1]] > sizes[heap[child]]:
            child += 1
        if sizes[heap[child]] <= sizes[heap[at]]:
            return
        heap[at], heap[child] = heap[child], heap[at]
        at = child
