"""Names of our resources, annotations, labels and conditions, which are a public interface."""

from __future__ import annotations

GROUP = "penstock.io"
DRIVER = GROUP  # name of the DRA driver; its devices are `<driver>/<pool>/<device>`

# Dynamic resource allocation: capacities of a device.
MEMORY = "memory"
CORES_PERMILLE = "coresPermille"

# Extended resources, on nodes without dynamic resource allocation. All are integers, so cores are
# in permille.
RESOURCE_COUNT = f"{GROUP}/vgpu"
RESOURCE_MEMORY = f"{GROUP}/memory"
RESOURCE_CORES = f"{GROUP}/cores-permille"
RESOURCE_TFLOPS = f"{GROUP}/tflops"
RESOURCES = frozenset({RESOURCE_COUNT, RESOURCE_MEMORY, RESOURCE_CORES, RESOURCE_TFLOPS})

# Annotations of Pods. Only the extender writes PLACED, with the Binding and when a share grows or
# shrinks. It also writes HELD, which the node removes (`kube/kubelet/placement_sync.py`). The
# webhook writes ON_EXCEED and GRACE when the Pod is created.
PLACED = f"{GROUP}/placed"
HELD = f"{GROUP}/held"
RESIZE = f"{GROUP}/resize"  # the new sizes that the owner requests for a running Pod
POLICY = f"{GROUP}/policy"
MODE = f"{GROUP}/mode"
MODEL = f"{GROUP}/model"  # the device model, as `penstock devices` prints it
ON_EXCEED = f"{GROUP}/on-exceed"  # the enforcement step when more is measured than granted
GRACE = f"{GROUP}/grace"  # how long an excess is tolerated, such as 30s
KEPT = (ON_EXCEED, GRACE)  # annotations that may not change after the Pod is created

# Readiness gate of every Pod with a share. The Pod's node maintains the condition, which is False
# while the Pod's share of a device is suspended.
RUNNING = f"{GROUP}/running"

# Condition of a Pod for which others are evicted (`kube/extender/nominations.py`).
PREEMPTING = f"{GROUP}/Preempting"

# Annotation of Nodes: their devices (`kube/objects/node_devices.py`).
DEVICES = f"{GROUP}/devices"

# Labels.
WAY = f"{GROUP}/way"  # of a Node: its allocation mode, BY_EXTENDER or BY_CLAIMS
BY_EXTENDER = "extender"
BY_CLAIMS = "claims"
MANAGED = f"{GROUP}/vgpu"  # of every Pod with a share, so that drains and selectors find it
DRIVER_UPGRADE = "nvidia.com/gpu-driver-upgrade-state"  # of a Node, set by NVIDIA's GPU operator
METRICS_PORT = f"{GROUP}/metrics-port"  # of our agents' Pods: the port of their Prometheus metrics

SCHEDULER = "penstock-scheduler"  # profile of the scheduler that calls the extender
