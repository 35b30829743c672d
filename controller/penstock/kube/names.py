"""What Kubernetes objects call our things. One place: these words are an interface."""

from __future__ import annotations

GROUP = "penstock.io"
DRIVER = GROUP  # of dynamic resource allocation; its devices are `<driver>/<pool>/<device>`

# Dynamic resource allocation: capacities of a device.
MEMORY = "memory"
CORES_PERMILLE = "coresPermille"

# Extended resources, where devices are not allocated dynamically. Integers all: cores in permille.
RESOURCE_COUNT = f"{GROUP}/vgpu"
RESOURCE_MEMORY = f"{GROUP}/memory"
RESOURCE_CORES = f"{GROUP}/cores-permille"
RESOURCE_TFLOPS = f"{GROUP}/tflops"
RESOURCES = frozenset({RESOURCE_COUNT, RESOURCE_MEMORY, RESOURCE_CORES, RESOURCE_TFLOPS})

# Annotations of Pods. The first is written with the Binding, by nobody else.
PLACED = f"{GROUP}/placed"
POLICY = f"{GROUP}/policy"
MODE = f"{GROUP}/mode"
MODEL = f"{GROUP}/model"  # devices of which model, as `penstock devices` calls it

# Annotation of Nodes: their devices (`kube/device.py`).
DEVICES = f"{GROUP}/devices"

# Labels.
WAY = f"{GROUP}/way"  # of a Node: which one of the two ways its devices are given out by
BY_EXTENDER = "extender"
BY_CLAIMS = "claims"
MANAGED = f"{GROUP}/vgpu"  # of every Pod with a share: what drains and selectors can use
DRIVER_UPGRADE = "nvidia.com/gpu-driver-upgrade-state"  # of a Node: by NVIDIA's GPU operator
METRICS_PORT = f"{GROUP}/metrics-port"  # of our agents' Pods: where their page for Prometheus is

SCHEDULER = "penstock-scheduler"  # profile of the scheduler that asks the extender
