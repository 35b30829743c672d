"""A real Kubernetes cluster on this machine: two nodes, each in namespaces of its own."""


class NotToBeHadError(Exception):
    """Why this machine cannot have a cluster."""
