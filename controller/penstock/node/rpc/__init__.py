"""The agent's gRPC API: the server, and the client for commands. Only this package uses grpc."""

# isort: off
from penstock.node.rpc import quiet_grpc  # noqa: F401 - before all that imports grpc

# isort: on
from penstock.node.rpc.client import AgentClient, find_agent, find_agent_socket
from penstock.node.rpc.convert import mode_of
from penstock.node.rpc.pool_claim import PoolClaim, Span, span_of
from penstock.node.rpc.pool_client import PoolClient
from penstock.node.rpc.pool_lease import PoolLease
from penstock_api.v1.agent_pb2 import Event as EventMessage
from penstock_api.v1.agent_pb2 import GrantResponse as GrantedMessage
from penstock_api.v1.agent_pb2 import Node as NodeMessage
from penstock_api.v1.agent_pb2 import Tenant as TenantMessage
from penstock_api.v1.agent_pb2 import UsageReport as UsageMessage
from penstock_api.v1.pool_pb2 import AcquireUpdate as AcquireMessage
from penstock_api.v1.pool_pb2 import Application as ApplicationMessage
from penstock_api.v1.pool_pb2 import BlockRun as BlockRunMessage
from penstock_api.v1.pool_pb2 import PoolEvent as PoolEventMessage
from penstock_api.v1.pool_pb2 import PoolMove as PoolMoveMessage
from penstock_api.v1.pool_pb2 import PoolNode as PoolNodeMessage
from penstock_api.v1.pool_pb2 import PoolState as PoolMessage
from penstock_api.v1.pool_pb2 import WhyResponse as WhyMessage

__all__ = [
    "AcquireMessage",
    "AgentClient",
    "ApplicationMessage",
    "BlockRunMessage",
    "EventMessage",
    "GrantedMessage",
    "NodeMessage",
    "PoolClaim",
    "PoolClient",
    "PoolEventMessage",
    "PoolLease",
    "PoolMessage",
    "PoolMoveMessage",
    "PoolNodeMessage",
    "Span",
    "TenantMessage",
    "UsageMessage",
    "WhyMessage",
    "find_agent",
    "find_agent_socket",
    "mode_of",
    "span_of",
]
