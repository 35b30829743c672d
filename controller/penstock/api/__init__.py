"""Orders over gRPC: the agent's server, and the client of commands. Only here is grpc used."""

from penstock.api.client import AgentClient, find_agent
from penstock_api.v1.agent_pb2 import Node as NodeMessage
from penstock_api.v1.agent_pb2 import Tenant as TenantMessage

__all__ = ["AgentClient", "NodeMessage", "TenantMessage", "find_agent"]
