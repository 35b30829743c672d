"""Features: what random programs may do, and how a command chooses among them."""

from __future__ import annotations

FEATURES = frozenset(
    {
        "meetings",  # kernels and streams that wait for later work of the same device
        "across devices",  # … of another one
        "across processes",  # … of another process
        "legacy before meetings",  # the legacy stream has been used before, without a wait
        "host waits",  # a host function that waits for another thread
        "captures",
        "graph memory",
        "uploads",  # graphs uploaded as they are instantiated
        "pools",
        "shared pools",
        "physical",
        "descriptors",  # physical memory that goes to other processes
        "kept descriptors",  # … or that only a descriptor of the same process holds
        "ipc",
        "modules",
        "variables of libraries",
        "contexts",  # second ones, primary ones that come and go
        "limits",
        "small parts shared",  # of a slab, between processes
        "small",  # allocations that share a slab
        "kills",
        "makers of pools killed",  # while others have the pool
    }
)

# Features that fail still, and why. Remove a line together with its fault.
BROKEN: dict[str, str] = {
    "across devices": "one or two in a hundred take a hundred times as long as without the shim: "
    "where no kind was measured yet, each meeting takes half a second, and is paid for",
    "across processes": "likewise",
    "shared pools": "a descriptor of a pool is taken to keep the pool's memory after its end; "
    "on the simulated device it does not: a real one must tell",
    "makers of pools killed": "what is exported stays charged while others have the pool",
}


def chosen(changes: str = "") -> frozenset[str]:
    """The features that are not broken, changed by `changes`: "+uploads,-pools", "all", "none"."""
    kept = set(FEATURES - BROKEN.keys())
    for change in filter(None, changes.split(",")):
        name = change.lstrip("+-")
        if name == "all":
            kept = set(FEATURES)
        elif name == "none":
            kept = set()
        elif name not in FEATURES:
            raise ValueError(f"no feature {name!r}; there are {', '.join(sorted(FEATURES))}")
        elif change.startswith("-"):
            kept.discard(name)
        else:
            kept.add(name)
    return frozenset(kept)
