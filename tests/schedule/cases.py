"""Random nodes and requests, and their placements by brute force."""

from __future__ import annotations

from itertools import combinations, product
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from penstock.model.share import NOTHING, Share
from penstock.scheduling.placement.device_state import Device, Node
from penstock.scheduling.placement.pod_request import Ask, Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.scheduling.placement.device_state import Placement

shares = st.one_of(  # of much of both, of memory, of compute
    st.builds(Share, st.integers(1, 60), st.integers(1, 800)),
    st.builds(Share, st.integers(30, 60), st.integers(1, 50)),
    st.builds(Share, st.integers(1, 5), st.integers(400, 900)),
)
compute = st.one_of(  # cores, TFLOPS
    st.tuples(st.integers(1, 600), st.none()),
    st.tuples(st.none() | st.integers(1, 1000), st.none()),
    st.tuples(st.none(), st.integers(1, 350)),
)
asks = st.builds(
    lambda role, count, memory, cores: Ask("", role, count, memory, *cores),
    st.sampled_from(["main", "sidecar", "init"]),
    st.sampled_from([1, 1, 2, 3]),
    st.none() | st.integers(1, 50) | st.integers(1, 90),
    compute,
)
small_asks = st.builds(  # of which several may fit
    Ask,
    st.just(""),
    st.sampled_from(["main", "main", "sidecar", "init"]),
    st.sampled_from([1, 1, 1, 2]),
    st.integers(1, 45),
    st.integers(1, 550),
)
devices = st.lists(
    st.builds(
        lambda memory, healthy, model, cores, tflops: Device(
            "", model, memory, cores, tflops, healthy
        ),
        st.integers(40, 80),
        st.sampled_from([True, True, True, False]),
        st.sampled_from(["A", "A", "B"]),
        st.sampled_from([500, 1000]),
        st.sampled_from([100.0, 300.0, None]),
    ),
    min_size=1, max_size=4,
).map(
    lambda found: [
        Device(f"d{at}", one.model, one.memory_bytes, one.cores_permille, one.tflops, one.healthy)
        for at, one in enumerate(found)
    ]
)  # fmt: skip


def node_of(found: list[Device], taken: Iterable[Share]) -> Node:
    """A node with `taken` allocated on its devices in turn, which may be more than they have."""
    node = Node(found)
    for at, share in enumerate(taken):
        node.take({found[at % len(found)].uuid: share})
    return node


def request_of(found: Iterable[Ask], model: str = "") -> Request:
    """The request of containers c0, c1, … in this order."""
    return Request(
        tuple(
            Ask(f"c{at}", one.role, one.count, one.memory_bytes, one.cores_permille, one.tflops)
            for at, one in enumerate(found)
        ),
        model,
    )


nodes = st.builds(node_of, devices, st.lists(shares, max_size=3) | st.lists(shares, max_size=6))
models = st.sampled_from(["", "A"])
single_requests = st.builds(request_of, st.lists(asks, min_size=1, max_size=1), models)
requests = st.one_of(
    single_requests,
    st.builds(request_of, st.lists(asks, min_size=2, max_size=3), models),
    st.builds(request_of, st.lists(small_asks, min_size=2, max_size=3)),
    st.builds(request_of, st.lists(small_asks, min_size=2, max_size=3)),
)


def freed(node: Node, shares: Mapping[str, Share]) -> Node:
    """A copy of the node with that much more free."""
    other = node.copy()
    other.give_back(shares)
    return other


def moments(request: Request) -> Iterator[list[Ask]]:
    """The containers that run at the same time, at each moment of a Pod's life."""
    sidecars = []
    for ask in request.asks:
        if ask.role == "sidecar":
            sidecars.append(ask)
        elif ask.role == "init":
            yield [*sidecars, ask]
    yield [*sidecars, *(ask for ask in request.asks if ask.role == "main")]


def has_room(node: Node, request: Request, placement: Placement) -> bool:
    """Whether no device is exceeded at any moment of the Pod's life."""
    for running in moments(request):
        for device in node.devices:
            held = [placement[ask.container].get(device.uuid, NOTHING) for ask in running]
            if not any(one != NOTHING for one in held):
                continue
            left = node.left(device.uuid)
            if (
                left is None
                or sum(one.memory_bytes for one in held) > left.memory_bytes
                or sum(one.cores_permille for one in held) > left.cores_permille
            ):
                return False
    return True


def every_placement(node: Node, request: Request) -> Iterator[Placement]:
    """All ways to give each container its number of distinct devices, whether there is room or not.

    A device that is not of the model, or too weak for the TFLOPS, is no choice.
    """
    choices = []
    for ask in request.asks:
        possible = [
            (device.uuid, share)
            for device in node.devices
            if request.model in {"", device.model} and (share := ask.share(device)) is not None
        ]
        choices.append([dict(several) for several in combinations(possible, ask.count)])
    for chosen in product(*choices):
        yield {ask.container: one for ask, one in zip(request.asks, chosen, strict=True)}
