"""Calls that a node passes on for its users."""

from __future__ import annotations

from penstock_api.v1 import pool_pb2 as pb
from penstock_api.v1 import pool_pb2_grpc


def metadata(user="alice", uid=1000):
    message = pb.RelayedCaller(user=user, uid=uid)
    return (("penstock-caller-bin", message.SerializeToString()),)


def relayed(manager, node, name, blocks, **fields):
    """Claims for a user of a node; returns the last update."""
    from penstock_api.v1 import agent_pb2  # noqa: PLC0415

    del node
    request = pb.AcquireRequest(
        name=name, blocks=blocks, lifetime=agent_pb2.LIFETIME_PROCESSES, **fields
    )
    with manager.channel() as channel:
        stub = pool_pb2_grpc.PoolStub(channel)
        return list(stub.Acquire(request, metadata=metadata()))[-1]
