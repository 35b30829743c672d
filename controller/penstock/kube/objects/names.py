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

# Annotations of Pods. The first is written by the extender alone, with the Binding and when a share
# grows or shrinks; the second by it, too, and taken away on the node (`kube/placed.py`). What
# follows on excess is written by the webhook, when the Pod is made.
PLACED = f"{GROUP}/placed"
HELD = f"{GROUP}/held"
RESIZE = f"{GROUP}/resize"  # what the owner wants a running Pod to have instead
POLICY = f"{GROUP}/policy"
MODE = f"{GROUP}/mode"
MODEL = f"{GROUP}/model"  # devices of which model, as `penstock devices` calls it
ON_EXCEED = f"{GROUP}/on-exceed"  # what follows when more is measured than granted
GRACE = f"{GROUP}/grace"  # for how long it is let, such as 30s
KEPT = (ON_EXCEED, GRACE)  # as they were when the Pod was made

# Readiness gate of every Pod with a share, and the condition that its node keeps: False while what
# it has of a device is suspended.
RUNNING = f"{GROUP}/running"

PREEMPTING = (
    f"{GROUP}/Preempting"  # condition of a Pod: others go for it (`kube/place/nominated.py`)
)

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
