"""The free blocks of all nodes, indexed so that a claim finds its place in logarithmic time."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Literal

from penstock.scheduling.blocks.node_space import NodeSpace
from penstock.scheduling.blocks.numbering import NodeRange
from penstock.scheduling.blocks.run import Run, joined
from penstock.scheduling.blocks.tallest import Tallest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.scheduling.blocks.card import Card
    from penstock.scheduling.blocks.claim import Claim
    from penstock.scheduling.blocks.numbering import Part

ANY = ""
Closed = Literal["drains", "is away"]
"""Why a node takes nothing new: somebody ordered it, or nothing is heard of it."""


class Space:
    """Nodes in the order of their numbers. A node that has left keeps its range, without blocks.

    Blocks of a closed node are not found, nor counted as free. What has blocks there may keep them
    or give them back.
    """

    def __init__(self) -> None:
        self.nodes: list[NodeSpace | None] = []
        self._firsts: list[int] = []
        self._longest: dict[str, Tallest] = {ANY: Tallest()}  # by kind: longest free run of a node
        self._freest: dict[str, Tallest] = {ANY: Tallest()}  # by kind: free blocks of a node
        self.free: dict[str, int] = {ANY: 0}  # by kind
        self.size: dict[str, int] = {ANY: 0}  # by kind: all blocks
        self.closed: dict[int, set[Closed]] = {}  # by index: nodes that take nothing new
        self.watchers: list[set[int]] = []  # get the index of each node that changes
        self._draining: dict[str, int] = {}  # by kind: all blocks of nodes that drain
        self.named: dict[str, int] = {}  # index of each node that is there
        self._next = 1

    def join(self, name: str, cards: Sequence[Card]) -> NodeRange:
        """Adds a node: it gets the next range of numbers."""
        numbers = NodeRange(name, self._next, cards)
        self._next = max(self._next, numbers.last + 1)
        self._firsts.append(numbers.first)
        self.nodes.append(NodeSpace(numbers))
        self.named[name] = len(self.nodes) - 1
        self._count(self.size, numbers, 1)
        for kind, zone in numbers.zones.items():
            self.free[kind] = self.free.get(kind, 0) + zone.blocks
        self.free[ANY] += numbers.last - numbers.first + 1
        self._index(len(self.nodes) - 1)
        return numbers

    def leave(self, at: int) -> None:
        """Takes a node out. Its numbers are not used again."""
        node = self.nodes[at]
        if node is None:
            return
        self.close(at, "drains")  # its free blocks are not counted any more
        del self.closed[at]
        self._count(self._draining, node.numbers, -1)
        self._count(self.size, node.numbers, -1)
        self.nodes[at] = None
        self.changed(at)
        del self.named[node.numbers.name]
        for trees in (self._longest, self._freest):
            for tree in trees.values():
                tree.set(at, 0)

    def close(self, at: int, why: Closed) -> None:
        """Lets a node take nothing new; asked twice, it changes nothing."""
        node = self.nodes[at]
        if node is None or why in self.closed.get(at, ()):
            return
        if at not in self.closed:
            self._count_free(node, -1)
        self.closed.setdefault(at, set()).add(why)
        if why == "drains":
            self._count(self._draining, node.numbers, 1)
        self._index(at)

    def open(self, at: int, why: Closed) -> None:
        """Takes back that a node is closed for that reason; it may be for the other one."""
        node = self.nodes[at]
        if node is None or why not in self.closed.get(at, ()):
            return
        self.closed[at].discard(why)
        if why == "drains":
            self._count(self._draining, node.numbers, -1)
        if not self.closed[at]:
            del self.closed[at]
            self._count_free(node, 1)
        self._index(at)

    def emptied(self) -> Space:
        """A space of the same nodes in which everything is free, to try a placement of all.

        Nodes that drain are closed in it too; those that are away may come back.
        """
        other = Space()
        for node, first in zip(self.nodes, self._firsts, strict=True):
            other.nodes.append(NodeSpace(node.numbers) if node else None)
            other._firsts.append(first)
            if node:
                other._count(other.size, node.numbers, 1)
                other._index(len(other.nodes) - 1)
        other.free = dict(other.size)
        other.named = dict(self.named)
        for at, whys in self.closed.items():
            if "drains" in whys:
                other.close(at, "drains")
        return other

    @property
    def held(self) -> int:
        """The blocks that somebody has: free blocks of closed nodes are neither free nor held."""
        withheld = sum(node.free for at in self.closed if (node := self.nodes[at]) is not None)
        return self.size[ANY] - self.free[ANY] - withheld

    def node_at(self, number: int) -> int:
        """The index of the node with block `number`."""
        return bisect_right(self._firsts, number) - 1

    def parts(self, runs: Iterable[Run]) -> Iterator[tuple[NodeRange, Part]]:
        """Where `runs` lie: node and part of a card. Blocks of nodes that have left are skipped."""
        for run in runs:
            node = self.nodes[self.node_at(run.first)]
            if node is not None:
                for part in node.numbers.parts(run):
                    yield node.numbers, part

    def fits(self, runs: Iterable[Run], claim: Claim) -> bool:
        """Whether `runs` are free, in nodes that are there, with the memory that `claim` needs.

        Draining nodes count: what has blocks there may keep some of them.
        """
        needed: dict[tuple[int, int], int] = {}
        for run in runs:
            at = self.node_at(run.first)
            node = self.nodes[at]
            if node is None or not node.has_free(run):
                return False
            for part in node.numbers.parts(run):
                key = (at, part.at)
                needed[key] = needed.get(key, 0) + claim.memory_of(part.card, part.blocks)
                if needed[key] > node.memory_bytes[part.at]:
                    return False
        return True

    def is_closed(self, runs: Iterable[Run]) -> bool:
        """Whether a node of `runs` takes nothing new."""
        return bool(self.closed) and any(self.node_at(run.first) in self.closed for run in runs)

    def take(self, runs: Iterable[Run], claim: Claim) -> None:
        """Allocates `runs`, none of which crosses a node's end.

        Here as in `give_back`, blocks of a node that has left are skipped.

        Raises:
            ValueError: a block is not free.
        """
        for run in runs:
            at = self.node_at(run.first)
            node = self.nodes[at]
            if node is not None:
                node.take(run, claim)
                self._changed(at, node, run, -1)

    def give_back(self, runs: Iterable[Run], claim: Claim) -> None:
        """Frees `runs`. Raises ValueError if a block is free already."""
        for run in runs:
            at = self.node_at(run.first)
            node = self.nodes[at]
            if node is not None:
                node.give_back(run, claim)
                self._changed(at, node, run, 1)

    def memory_left(self, runs: Iterable[Run], claim: Claim) -> tuple[tuple[int, int, int], ...]:
        """What is still free of the memory that `claim` has on the cards of `runs`.

        In bytes by node and card, for `reserve`.
        """
        left: dict[tuple[int, int], int] = {}
        for numbers, part in self.parts(runs):
            at = self.node_at(numbers.first)
            amount = claim.memory_of(part.card, part.blocks)
            left[at, part.at] = left.get((at, part.at), 0) + amount
        return tuple(
            (at, card_at, min(amount, node.memory_bytes[card_at]))
            for (at, card_at), amount in left.items()
            if (node := self.nodes[at]) is not None
        )

    def reserve(self, amounts: Iterable[tuple[int, int, int]], sign: int = 1) -> None:
        """Takes bytes of memory by node and card; gives them back with `sign` -1."""
        for at, card_at, amount in amounts:
            node = self.nodes[at]
            if node is not None:
                node.memory_bytes[card_at] -= sign * amount

    def node_for(self, claim: Claim) -> NodeSpace | None:
        """The node that `claim` names; None: it is not there, or closed."""
        at = self.named.get(claim.node)
        return None if at is None or at in self.closed else self.nodes[at]

    def size_for(self, claim: Claim) -> int:
        """All blocks of the claim's kind where it may ever lie: in its node, or in the pool."""
        if not claim.node:
            return self.size.get(claim.kind, 0) - self._draining.get(claim.kind, 0)
        at = self.named.get(claim.node)
        node = None if at is None or "drains" in self.closed.get(at, ()) else self.nodes[at]
        return node.size(claim.kind) if node else 0

    def free_for(self, claim: Claim) -> int:
        """The free blocks of the claim's kind where it may lie."""
        if not claim.node:
            return self.free.get(claim.kind, 0)
        node = self.node_for(claim)
        return sum(run.blocks for run in node.runs(claim.kind)) if node else 0

    def free_on(self, at: int, kind: str = ANY) -> int:
        """The free blocks of a kind on a node that takes new work."""
        tree = self._freest.get(kind)
        return tree.get(at) if tree else 0

    def longest_for(self, claim: Claim) -> int:
        """The longest free run of the claim's kind where it may lie."""
        if not claim.node:
            return self.longest(claim.kind)
        node = self.node_for(claim)
        return node.longest(claim.kind) if node else 0

    def lowest(self, claim: Claim) -> Run | None:
        """The lowest free run in one node that `claim` can have as a whole."""
        if claim.node:
            named = self.node_for(claim)
            return named.lowest(claim) if named else None
        tree = self._longest.get(claim.kind)
        at = tree.lowest(claim.blocks) if tree else -1
        while tree and at >= 0:
            node = self.nodes[at]
            run = node.lowest(claim) if node else None
            if run is not None:
                return run
            at = tree.lowest(claim.blocks, at + 1)
        return None

    def has_run_below(self, at: int, kind: str, blocks: int) -> bool:
        """Whether a node before `at` has a free run of so many blocks of a kind."""
        tree = self._longest.get(kind)
        return tree is not None and 0 <= tree.lowest(blocks) < at

    def scattered(self, claim: Claim) -> tuple[Run, ...] | None:
        """Free runs for `claim` on the fewest nodes, and there on the fewest cards; None: too few.

        All nodes but the last are those with the most free blocks; the last is the fullest that
        has enough.
        """
        if self.free_for(claim) < claim.blocks:
            return None
        if claim.node:
            runs, got = self._from_node(self.named[claim.node], claim, claim.blocks)
            return joined(runs) if got >= claim.blocks else None
        tree = self._freest.get(claim.kind)
        if tree is None:
            return None
        left = claim.blocks
        chosen: list[Run] = []
        tried: dict[int, int] = {}
        try:
            while left > 0:
                most = tree.largest
                if most <= 0 or (claim.span == "node" and most < left):
                    return None
                at = tree.lowest(most) if most < left else self._fullest(tree, left)
                runs, got = self._from_node(at, claim, left)
                tried[at] = tree.get(at)
                tree.set(at, 0)
                if claim.span == "node" and got < left:
                    continue
                chosen += joined(runs)
                left -= got
            return tuple(sorted(chosen))
        finally:
            for at, figure in tried.items():
                tree.set(at, figure)

    def joined(self, runs: Iterable[Run]) -> tuple[Run, ...]:
        """The same blocks with adjacent runs of one node as one; a run never crosses nodes."""
        by_node: dict[int, list[Run]] = {}
        for run in sorted(runs):
            by_node.setdefault(self.node_at(run.first), []).append(run)
        return tuple(run for each in by_node.values() for run in joined(each))

    def longest(self, kind: str = ANY) -> int:
        """The longest free run of one node."""
        tree = self._longest.get(kind)
        return tree.largest if tree else 0

    @staticmethod
    def _fullest(tree: Tallest, least: int) -> int:
        """Of the nodes with at least `least` free blocks, one of those with few more than that."""
        at, best, start = -1, 0, 0
        for _ in range(16):  # a bounded search: the lowest numbers are preferred anyway
            found = tree.lowest(least, start)
            if found < 0:
                break
            if at < 0 or tree.get(found) < best:
                at, best = found, tree.get(found)
            if best == least:
                break
            start = found + 1
        return at

    def _from_node(self, at: int, claim: Claim, left: int) -> tuple[list[Run], int]:
        """Up to `left` blocks for `claim` of one node, on the fewest cards; and their number."""
        node = self.nodes[at]
        by_card: dict[int, list[Run]] = {}
        for card_at, run in node.parts(claim) if node else ():
            by_card.setdefault(card_at, []).append(run)
        cards = sorted(by_card.items(), key=lambda one: -sum(run.blocks for run in one[1]))
        runs: list[Run] = []
        got = 0
        for card_at, free in cards:
            if node is None or got >= left:
                break
            card = node.numbers.cards[card_at]
            memory_bytes = node.memory_bytes[card_at]
            for run in sorted(free, key=lambda one: -one.blocks):
                blocks = min(run.blocks, max(left - got, card.least_blocks))
                blocks = min(blocks, claim.blocks_within(card, memory_bytes))
                if got >= left or blocks < card.least_blocks:
                    continue
                memory_bytes -= claim.memory_of(card, blocks)
                runs.append(Run(run.first, run.first + blocks - 1))
                got += blocks
        return runs, got

    def _changed(self, at: int, node: NodeSpace, run: Run, sign: int) -> None:
        if at in self.closed:
            return
        self.free[ANY] += sign * run.blocks
        zones = node.numbers.zones
        if len(zones) == 1:
            self.free[next(iter(zones))] += sign * run.blocks
        else:
            for kind, zone in zones.items():
                inside = min(run.last, zone.last) - max(run.first, zone.first) + 1
                if inside > 0:
                    self.free[kind] += sign * inside
        self._index(at)

    def changed(self, at: int) -> None:
        """Tells who watches that something on a node has changed."""
        for each in self.watchers:
            each.add(at)

    def _index(self, at: int) -> None:
        self.changed(at)
        node = self.nodes[at]
        if node is None:
            return
        longest, free = (0, 0) if at in self.closed else (node.longest(), node.free)
        self._longest[ANY].set(at, longest)
        self._freest[ANY].set(at, free)
        zones = node.numbers.zones
        if len(zones) == 1:
            kind = next(iter(zones))
            self._tree(self._longest, kind).set(at, longest)
            self._tree(self._freest, kind).set(at, free)
            return
        for kind in zones:
            runs = [run.blocks for run in node.runs(kind)] if at not in self.closed else []
            self._tree(self._longest, kind).set(at, max(runs, default=0))
            self._tree(self._freest, kind).set(at, sum(runs))

    def _count_free(self, node: NodeSpace, sign: int) -> None:
        for kind in node.numbers.zones:
            self.free[kind] += sign * sum(run.blocks for run in node.runs(kind))
        self.free[ANY] += sign * node.free

    @staticmethod
    def _count(sizes: dict[str, int], numbers: NodeRange, sign: int) -> None:
        for kind, zone in numbers.zones.items():
            sizes[kind] = sizes.get(kind, 0) + sign * zone.blocks
        sizes[ANY] = sizes.get(ANY, 0) + sign * (numbers.last - numbers.first + 1)

    @staticmethod
    def _tree(trees: dict[str, Tallest], kind: str) -> Tallest:
        if kind not in trees:
            trees[kind] = Tallest()
        return trees[kind]
