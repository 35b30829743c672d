"""The agent's gRPC API: its server, and the client for commands. Only this package uses grpc."""

from penstock.node.rpc.client import AgentClient, find_agent, find_agent_socket
from penstock.node.rpc.convert import mode_of
from penstock_api.v1.agent_pb2 import Event as EventMessage
from penstock_api.v1.agent_pb2 import GrantResponse as GrantedMessage
from penstock_api.v1.agent_pb2 import Node as NodeMessage
from penstock_api.v1.agent_pb2 import Tenant as TenantMessage
from penstock_api.v1.agent_pb2 import UsageReport as UsageMessage

__all__ = [
    "AgentClient",
    "EventMessage",
    "GrantedMessage",
    "NodeMessage",
    "TenantMessage",
    "UsageMessage",
    "find_agent",
    "find_agent_socket",
    "mode_of",
]
