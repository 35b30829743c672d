import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    MODE_STRICT: _ClassVar[Mode]
    MODE_ELASTIC: _ClassVar[Mode]

class Lifetime(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LIFETIME_UNSPECIFIED: _ClassVar[Lifetime]
    LIFETIME_UNTIL_REVOKED: _ClassVar[Lifetime]
    LIFETIME_PROCESSES: _ClassVar[Lifetime]

class Step(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEP_UNSPECIFIED: _ClassVar[Step]
    STEP_DENY: _ClassVar[Step]
    STEP_THROTTLE: _ClassVar[Step]
    STEP_SUSPEND: _ClassVar[Step]
    STEP_TERMINATE: _ClassVar[Step]

class GroupBy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_BY_UNSPECIFIED: _ClassVar[GroupBy]
    GROUP_BY_TENANT: _ClassVar[GroupBy]
    GROUP_BY_USER: _ClassVar[GroupBy]
    GROUP_BY_POLICY: _ClassVar[GroupBy]
    GROUP_BY_DEVICE: _ClassVar[GroupBy]
MODE_UNSPECIFIED: Mode
MODE_STRICT: Mode
MODE_ELASTIC: Mode
LIFETIME_UNSPECIFIED: Lifetime
LIFETIME_UNTIL_REVOKED: Lifetime
LIFETIME_PROCESSES: Lifetime
STEP_UNSPECIFIED: Step
STEP_DENY: Step
STEP_THROTTLE: Step
STEP_SUSPEND: Step
STEP_TERMINATE: Step
GROUP_BY_UNSPECIFIED: GroupBy
GROUP_BY_TENANT: GroupBy
GROUP_BY_USER: GroupBy
GROUP_BY_POLICY: GroupBy
GROUP_BY_DEVICE: GroupBy

class Error(_message.Message):
    __slots__ = ("reason", "what", "why", "fix")
    REASON_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    reason: str
    what: str
    why: str
    fix: str
    def __init__(self, reason: _Optional[str] = ..., what: _Optional[str] = ..., why: _Optional[str] = ..., fix: _Optional[str] = ...) -> None: ...

class GetNodeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Node(_message.Message):
    __slots__ = ("name", "version", "machine", "devices", "started", "tenants", "slowest_round", "enforces", "driver_released")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    SLOWEST_ROUND_FIELD_NUMBER: _ClassVar[int]
    ENFORCES_FIELD_NUMBER: _ClassVar[int]
    DRIVER_RELEASED_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    machine: str
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    started: _timestamp_pb2.Timestamp
    tenants: int
    slowest_round: _duration_pb2.Duration
    enforces: bool
    driver_released: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., machine: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., started: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., tenants: _Optional[int] = ..., slowest_round: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., enforces: _Optional[bool] = ..., driver_released: _Optional[str] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("index", "uuid", "name", "memory_bytes", "free_memory_bytes", "free_cores_permille", "tflops", "simulated", "health", "health_reason", "foreign_processes", "foreign", "driver_version", "cuda_version", "compute_capability", "architecture", "profile", "parent", "checkpoint", "owner")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_CORES_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    TFLOPS_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    HEALTH_REASON_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    CUDA_VERSION_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    index: int
    uuid: str
    name: str
    memory_bytes: int
    free_memory_bytes: int
    free_cores_permille: int
    tflops: float
    simulated: bool
    health: str
    health_reason: str
    foreign_processes: int
    foreign: _containers.RepeatedScalarFieldContainer[str]
    driver_version: str
    cuda_version: str
    compute_capability: str
    architecture: str
    profile: str
    parent: str
    checkpoint: str
    owner: str
    def __init__(self, index: _Optional[int] = ..., uuid: _Optional[str] = ..., name: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., free_memory_bytes: _Optional[int] = ..., free_cores_permille: _Optional[int] = ..., tflops: _Optional[float] = ..., simulated: _Optional[bool] = ..., health: _Optional[str] = ..., health_reason: _Optional[str] = ..., foreign_processes: _Optional[int] = ..., foreign: _Optional[_Iterable[str]] = ..., driver_version: _Optional[str] = ..., cuda_version: _Optional[str] = ..., compute_capability: _Optional[str] = ..., architecture: _Optional[str] = ..., profile: _Optional[str] = ..., parent: _Optional[str] = ..., checkpoint: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class GrantRequest(_message.Message):
    __slots__ = ("name", "devices", "count", "memory_bytes", "cores_permille", "tflops", "mode", "command", "policy", "oversubscribe", "allow_unknown", "lifetime", "measured", "grace", "labels", "request_id", "candidates", "container", "bound_measured", "bound_grace")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CORES_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    TFLOPS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    OVERSUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    ALLOW_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    GRACE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    BOUND_MEASURED_FIELD_NUMBER: _ClassVar[int]
    BOUND_GRACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    count: int
    memory_bytes: _containers.RepeatedScalarFieldContainer[int]
    cores_permille: _containers.RepeatedScalarFieldContainer[int]
    tflops: float
    mode: Mode
    command: _containers.RepeatedScalarFieldContainer[str]
    policy: str
    oversubscribe: bool
    allow_unknown: bool
    lifetime: Lifetime
    measured: Step
    grace: _duration_pb2.Duration
    labels: _containers.ScalarMap[str, str]
    request_id: str
    candidates: _containers.RepeatedScalarFieldContainer[str]
    container: bool
    bound_measured: bool
    bound_grace: bool
    def __init__(self, name: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., count: _Optional[int] = ..., memory_bytes: _Optional[_Iterable[int]] = ..., cores_permille: _Optional[_Iterable[int]] = ..., tflops: _Optional[float] = ..., mode: _Optional[_Union[Mode, str]] = ..., command: _Optional[_Iterable[str]] = ..., policy: _Optional[str] = ..., oversubscribe: _Optional[bool] = ..., allow_unknown: _Optional[bool] = ..., lifetime: _Optional[_Union[Lifetime, str]] = ..., measured: _Optional[_Union[Step, str]] = ..., grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ..., request_id: _Optional[str] = ..., candidates: _Optional[_Iterable[str]] = ..., container: _Optional[bool] = ..., bound_measured: _Optional[bool] = ..., bound_grace: _Optional[bool] = ...) -> None: ...

class GrantResponse(_message.Message):
    __slots__ = ("tenant", "notes", "environment", "cdi_devices")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    CDI_DEVICES_FIELD_NUMBER: _ClassVar[int]
    tenant: Tenant
    notes: _containers.RepeatedScalarFieldContainer[str]
    environment: _containers.ScalarMap[str, str]
    cdi_devices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tenant: _Optional[_Union[Tenant, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ..., environment: _Optional[_Mapping[str, str]] = ..., cdi_devices: _Optional[_Iterable[str]] = ...) -> None: ...

class Tenant(_message.Message):
    __slots__ = ("name", "user", "mode", "shares", "command", "policy", "created", "lifetime", "suspended", "oversubscribed", "labels", "directory", "processes", "finding", "members", "suspension", "host_bytes", "suspension_problem")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_FIELD_NUMBER: _ClassVar[int]
    SUSPENDED_FIELD_NUMBER: _ClassVar[int]
    OVERSUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    FINDING_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SUSPENSION_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    SUSPENSION_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    name: str
    user: str
    mode: Mode
    shares: _containers.RepeatedCompositeFieldContainer[Share]
    command: _containers.RepeatedScalarFieldContainer[str]
    policy: str
    created: _timestamp_pb2.Timestamp
    lifetime: Lifetime
    suspended: bool
    oversubscribed: bool
    labels: _containers.ScalarMap[str, str]
    directory: str
    processes: int
    finding: str
    members: int
    suspension: str
    host_bytes: int
    suspension_problem: str
    def __init__(self, name: _Optional[str] = ..., user: _Optional[str] = ..., mode: _Optional[_Union[Mode, str]] = ..., shares: _Optional[_Iterable[_Union[Share, _Mapping]]] = ..., command: _Optional[_Iterable[str]] = ..., policy: _Optional[str] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., lifetime: _Optional[_Union[Lifetime, str]] = ..., suspended: _Optional[bool] = ..., oversubscribed: _Optional[bool] = ..., labels: _Optional[_Mapping[str, str]] = ..., directory: _Optional[str] = ..., processes: _Optional[int] = ..., finding: _Optional[str] = ..., members: _Optional[int] = ..., suspension: _Optional[str] = ..., host_bytes: _Optional[int] = ..., suspension_problem: _Optional[str] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("device_uuid", "device_index", "device_name", "memory_bytes", "cores_permille", "allowance_permille")
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CORES_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    ALLOWANCE_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    device_uuid: str
    device_index: int
    device_name: str
    memory_bytes: int
    cores_permille: int
    allowance_permille: int
    def __init__(self, device_uuid: _Optional[str] = ..., device_index: _Optional[int] = ..., device_name: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., cores_permille: _Optional[int] = ..., allowance_permille: _Optional[int] = ...) -> None: ...

class ResizeRequest(_message.Message):
    __slots__ = ("name", "memory_bytes", "cores_permille", "mode", "device", "oversubscribe", "accounted", "force")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CORES_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    OVERSUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    ACCOUNTED_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    memory_bytes: int
    cores_permille: int
    mode: Mode
    device: str
    oversubscribe: bool
    accounted: bool
    force: bool
    def __init__(self, name: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., cores_permille: _Optional[int] = ..., mode: _Optional[_Union[Mode, str]] = ..., device: _Optional[str] = ..., oversubscribe: _Optional[bool] = ..., accounted: _Optional[bool] = ..., force: _Optional[bool] = ...) -> None: ...

class ResizeResponse(_message.Message):
    __slots__ = ("tenant", "notes")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    tenant: Tenant
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tenant: _Optional[_Union[Tenant, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class SuspendRequest(_message.Message):
    __slots__ = ("name", "reason", "release_memory")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RELEASE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    release_memory: bool
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ..., release_memory: _Optional[bool] = ...) -> None: ...

class SuspendResponse(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: Tenant
    def __init__(self, tenant: _Optional[_Union[Tenant, _Mapping]] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("name", "devices")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    name: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ...) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: Tenant
    def __init__(self, tenant: _Optional[_Union[Tenant, _Mapping]] = ...) -> None: ...

class RevokeRequest(_message.Message):
    __slots__ = ("name", "grace", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GRACE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    grace: _duration_pb2.Duration
    reason: str
    def __init__(self, name: _Optional[str] = ..., grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class RevokeResponse(_message.Message):
    __slots__ = ("ended", "killed")
    ENDED_FIELD_NUMBER: _ClassVar[int]
    KILLED_FIELD_NUMBER: _ClassVar[int]
    ended: int
    killed: int
    def __init__(self, ended: _Optional[int] = ..., killed: _Optional[int] = ...) -> None: ...

class ListTenantsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTenantsResponse(_message.Message):
    __slots__ = ("tenants",)
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    tenants: _containers.RepeatedCompositeFieldContainer[Tenant]
    def __init__(self, tenants: _Optional[_Iterable[_Union[Tenant, _Mapping]]] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("tenants", "follow")
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    tenants: _containers.RepeatedScalarFieldContainer[str]
    follow: bool
    def __init__(self, tenants: _Optional[_Iterable[str]] = ..., follow: _Optional[bool] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("tenant", "time", "event", "reason", "details")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    time: _timestamp_pb2.Timestamp
    event: str
    reason: str
    details: str
    def __init__(self, tenant: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., event: _Optional[str] = ..., reason: _Optional[str] = ..., details: _Optional[str] = ...) -> None: ...

class StreamUsageRequest(_message.Message):
    __slots__ = ("interval", "tenants")
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    interval: _duration_pb2.Duration
    tenants: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., tenants: _Optional[_Iterable[str]] = ...) -> None: ...

class UsageReport(_message.Message):
    __slots__ = ("tenant", "time", "devices", "processes")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    time: _timestamp_pb2.Timestamp
    devices: _containers.RepeatedCompositeFieldContainer[DeviceUsage]
    processes: int
    def __init__(self, tenant: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., devices: _Optional[_Iterable[_Union[DeviceUsage, _Mapping]]] = ..., processes: _Optional[int] = ...) -> None: ...

class DeviceUsage(_message.Message):
    __slots__ = ("device_uuid", "memory_bytes", "peak_memory_bytes", "spent_ns", "cores_permille", "launches", "waits", "refusals", "device_memory_bytes", "device_cores_permille")
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPENT_NS_FIELD_NUMBER: _ClassVar[int]
    CORES_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    LAUNCHES_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_CORES_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    device_uuid: str
    memory_bytes: int
    peak_memory_bytes: int
    spent_ns: int
    cores_permille: int
    launches: int
    waits: int
    refusals: int
    device_memory_bytes: int
    device_cores_permille: int
    def __init__(self, device_uuid: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., peak_memory_bytes: _Optional[int] = ..., spent_ns: _Optional[int] = ..., cores_permille: _Optional[int] = ..., launches: _Optional[int] = ..., waits: _Optional[int] = ..., refusals: _Optional[int] = ..., device_memory_bytes: _Optional[int] = ..., device_cores_permille: _Optional[int] = ...) -> None: ...

class ReleaseDriverRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ReleaseDriverResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReopenDriverRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReopenDriverResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class QueryUsageRequest(_message.Message):
    __slots__ = ("since", "until", "by", "tenant")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    by: GroupBy
    tenant: str
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., by: _Optional[_Union[GroupBy, str]] = ..., tenant: _Optional[str] = ...) -> None: ...

class QueryUsageResponse(_message.Message):
    __slots__ = ("covered_since", "sums")
    COVERED_SINCE_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    covered_since: _timestamp_pb2.Timestamp
    sums: _containers.RepeatedCompositeFieldContainer[UsageSum]
    def __init__(self, covered_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., sums: _Optional[_Iterable[_Union[UsageSum, _Mapping]]] = ...) -> None: ...

class UsageSum(_message.Message):
    __slots__ = ("group", "devices", "charged_ns", "measured_ns", "byte_seconds", "measured_byte_seconds", "metered_ns", "estimated_ns", "suspicious_ns", "suspicions")
    class GroupEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    CHARGED_NS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_NS_FIELD_NUMBER: _ClassVar[int]
    BYTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_BYTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    METERED_NS_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_NS_FIELD_NUMBER: _ClassVar[int]
    SUSPICIOUS_NS_FIELD_NUMBER: _ClassVar[int]
    SUSPICIONS_FIELD_NUMBER: _ClassVar[int]
    group: _containers.ScalarMap[str, str]
    devices: int
    charged_ns: str
    measured_ns: str
    byte_seconds: str
    measured_byte_seconds: str
    metered_ns: str
    estimated_ns: str
    suspicious_ns: str
    suspicions: str
    def __init__(self, group: _Optional[_Mapping[str, str]] = ..., devices: _Optional[int] = ..., charged_ns: _Optional[str] = ..., measured_ns: _Optional[str] = ..., byte_seconds: _Optional[str] = ..., measured_byte_seconds: _Optional[str] = ..., metered_ns: _Optional[str] = ..., estimated_ns: _Optional[str] = ..., suspicious_ns: _Optional[str] = ..., suspicions: _Optional[str] = ...) -> None: ...
