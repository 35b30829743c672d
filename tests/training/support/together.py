"""Ranks as threads of one process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch


class Threads:
    """What the ranks share: each has a view of it that is a `Ranks`."""

    def __init__(self, size):
        self.size = size
        self.barrier = threading.Barrier(size, timeout=30)
        self.places = [None] * size

    def swap(self, rank, mine):
        """What all ranks have brought, for each of them."""
        self.places[rank] = mine
        self.barrier.wait()
        found = list(self.places)
        self.barrier.wait()
        return found


class ThreadRanks:
    """One rank's view."""

    def __init__(self, threads, rank):
        self.threads, self.rank, self.size = threads, rank, threads.size
        self.waited_s = 0.0

    def gather(self, numbers):
        return [list(one) for one in self.threads.swap(self.rank, list(numbers))]

    def stack(self, tensor):
        return torch.stack(self.threads.swap(self.rank, tensor.clone()))

    def copy_first(self, tensors):
        first = self.threads.swap(self.rank, [one.clone() for one in tensors])[0]
        for one, theirs in zip(tensors, first, strict=True):
            one.copy_(theirs)

    def first_bytes(self, data):
        return self.threads.swap(self.rank, data)[0]

    def add_up(self, tensors):
        all_ = self.threads.swap(self.rank, [one.clone() for one in tensors])
        for i, one in enumerate(tensors):
            one.copy_(torch.stack([theirs[i].double() for theirs in all_]).sum(0))


def together(size, work):
    """What `work(ranks)` returns on each rank. Raises what the first one raised."""
    threads = Threads(size)

    def run(rank):
        try:
            return work(ThreadRanks(threads, rank))
        except BaseException:
            threads.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
        errors = [one.exception() for one in futures]
    broken = (threading.BrokenBarrierError,)
    for error in sorted((one for one in errors if one), key=lambda one: isinstance(one, broken)):
        raise error
    return [one.result() for one in futures]
