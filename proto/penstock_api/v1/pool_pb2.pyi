import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from penstock_api.v1 import agent_pb2 as _agent_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Span(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPAN_UNSPECIFIED: _ClassVar[Span]
    SPAN_CARD: _ClassVar[Span]
    SPAN_NODE: _ClassVar[Span]
    SPAN_POOL: _ClassVar[Span]
SPAN_UNSPECIFIED: Span
SPAN_CARD: Span
SPAN_NODE: Span
SPAN_POOL: Span

class RelayedCaller(_message.Message):
    __slots__ = ("user", "uid")
    USER_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    user: str
    uid: int
    def __init__(self, user: _Optional[str] = ..., uid: _Optional[int] = ...) -> None: ...

class AcquireRequest(_message.Message):
    __slots__ = ("name", "request_id", "blocks", "priority", "memory_bytes", "kind", "span", "node", "wait", "lifetime", "mode", "command", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    name: str
    request_id: str
    blocks: int
    priority: int
    memory_bytes: int
    kind: str
    span: Span
    node: str
    wait: _duration_pb2.Duration
    lifetime: _agent_pb2.Lifetime
    mode: _agent_pb2.Mode
    command: _containers.RepeatedScalarFieldContainer[str]
    labels: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., request_id: _Optional[str] = ..., blocks: _Optional[int] = ..., priority: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., kind: _Optional[str] = ..., span: _Optional[_Union[Span, str]] = ..., node: _Optional[str] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., lifetime: _Optional[_Union[_agent_pb2.Lifetime, str]] = ..., mode: _Optional[_Union[_agent_pb2.Mode, str]] = ..., command: _Optional[_Iterable[str]] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class AcquireUpdate(_message.Message):
    __slots__ = ("application", "reason", "lease", "environment")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    application: Application
    reason: str
    lease: _duration_pb2.Duration
    environment: _containers.ScalarMap[str, str]
    def __init__(self, application: _Optional[_Union[Application, _Mapping]] = ..., reason: _Optional[str] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., environment: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("name", "grace", "reason", "claimed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GRACE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    name: str
    grace: _duration_pb2.Duration
    reason: str
    claimed: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., reason: _Optional[str] = ..., claimed: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResizeApplicationRequest(_message.Message):
    __slots__ = ("name", "blocks")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    name: str
    blocks: int
    def __init__(self, name: _Optional[str] = ..., blocks: _Optional[int] = ...) -> None: ...

class ResizeApplicationResponse(_message.Message):
    __slots__ = ("application",)
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    application: Application
    def __init__(self, application: _Optional[_Union[Application, _Mapping]] = ...) -> None: ...

class KeepAliveRequest(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class KeepAliveResponse(_message.Message):
    __slots__ = ("unknown",)
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    unknown: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, unknown: _Optional[_Iterable[str]] = ...) -> None: ...

class CompactRequest(_message.Message):
    __slots__ = ("full", "dry_run")
    FULL_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    full: bool
    dry_run: bool
    def __init__(self, full: _Optional[bool] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class CompactUpdate(_message.Message):
    __slots__ = ("plan", "done", "left_out", "is_partial")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    IS_PARTIAL_FIELD_NUMBER: _ClassVar[int]
    plan: _containers.RepeatedCompositeFieldContainer[PoolMove]
    done: PoolMove
    left_out: _containers.RepeatedCompositeFieldContainer[PoolMove]
    is_partial: bool
    def __init__(self, plan: _Optional[_Iterable[_Union[PoolMove, _Mapping]]] = ..., done: _Optional[_Union[PoolMove, _Mapping]] = ..., left_out: _Optional[_Iterable[_Union[PoolMove, _Mapping]]] = ..., is_partial: _Optional[bool] = ...) -> None: ...

class PoolMove(_message.Message):
    __slots__ = ("application", "source", "target", "moved_bytes", "cost", "took", "failure")
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    TOOK_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    application: str
    source: _containers.RepeatedCompositeFieldContainer[BlockRun]
    target: _containers.RepeatedCompositeFieldContainer[BlockRun]
    moved_bytes: int
    cost: _duration_pb2.Duration
    took: _duration_pb2.Duration
    failure: str
    def __init__(self, application: _Optional[str] = ..., source: _Optional[_Iterable[_Union[BlockRun, _Mapping]]] = ..., target: _Optional[_Iterable[_Union[BlockRun, _Mapping]]] = ..., moved_bytes: _Optional[int] = ..., cost: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., took: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., failure: _Optional[str] = ...) -> None: ...

class GetPoolRequest(_message.Message):
    __slots__ = ("summary",)
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    summary: bool
    def __init__(self, summary: _Optional[bool] = ...) -> None: ...

class WhyRequest(_message.Message):
    __slots__ = ("name", "claim")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    name: str
    claim: AcquireRequest
    def __init__(self, name: _Optional[str] = ..., claim: _Optional[_Union[AcquireRequest, _Mapping]] = ...) -> None: ...

class WhyResponse(_message.Message):
    __slots__ = ("application", "reason", "helps", "place")
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HELPS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    application: Application
    reason: str
    helps: _containers.RepeatedScalarFieldContainer[str]
    place: int
    def __init__(self, application: _Optional[_Union[Application, _Mapping]] = ..., reason: _Optional[str] = ..., helps: _Optional[_Iterable[str]] = ..., place: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("names", "follow")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    follow: bool
    def __init__(self, names: _Optional[_Iterable[str]] = ..., follow: _Optional[bool] = ...) -> None: ...

class PoolEvent(_message.Message):
    __slots__ = ("time", "event", "application", "node", "reason", "details", "number")
    TIME_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    time: _timestamp_pb2.Timestamp
    event: str
    application: str
    node: str
    reason: str
    details: str
    number: int
    def __init__(self, time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., event: _Optional[str] = ..., application: _Optional[str] = ..., node: _Optional[str] = ..., reason: _Optional[str] = ..., details: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("node", "stop", "now")
    NODE_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    node: str
    stop: bool
    now: bool
    def __init__(self, node: _Optional[str] = ..., stop: _Optional[bool] = ..., now: _Optional[bool] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: PoolNode
    def __init__(self, node: _Optional[_Union[PoolNode, _Mapping]] = ...) -> None: ...

class BlockRun(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class PoolState(_message.Message):
    __slots__ = ("pool", "term", "leader", "precision", "time", "blocks", "free_blocks", "longest_run", "nodes", "applications", "history")
    POOL_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_RUN_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    APPLICATIONS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    pool: str
    term: int
    leader: str
    precision: str
    time: _timestamp_pb2.Timestamp
    blocks: int
    free_blocks: int
    longest_run: int
    nodes: _containers.RepeatedCompositeFieldContainer[PoolNode]
    applications: _containers.RepeatedCompositeFieldContainer[Application]
    history: _containers.RepeatedCompositeFieldContainer[PoolSample]
    def __init__(self, pool: _Optional[str] = ..., term: _Optional[int] = ..., leader: _Optional[str] = ..., precision: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., blocks: _Optional[int] = ..., free_blocks: _Optional[int] = ..., longest_run: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[PoolNode, _Mapping]]] = ..., applications: _Optional[_Iterable[_Union[Application, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[PoolSample, _Mapping]]] = ...) -> None: ...

class PoolSample(_message.Message):
    __slots__ = ("time", "held_blocks", "waiting_blocks", "suspended_blocks")
    TIME_FIELD_NUMBER: _ClassVar[int]
    HELD_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WAITING_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SUSPENDED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    time: _timestamp_pb2.Timestamp
    held_blocks: int
    waiting_blocks: int
    suspended_blocks: int
    def __init__(self, time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., held_blocks: _Optional[int] = ..., waiting_blocks: _Optional[int] = ..., suspended_blocks: _Optional[int] = ...) -> None: ...

class PoolNode(_message.Message):
    __slots__ = ("name", "state", "first", "last", "free_blocks", "cards", "finding", "heard")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CARDS_FIELD_NUMBER: _ClassVar[int]
    FINDING_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    first: int
    last: int
    free_blocks: int
    cards: _containers.RepeatedCompositeFieldContainer[PoolCard]
    finding: str
    heard: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., free_blocks: _Optional[int] = ..., cards: _Optional[_Iterable[_Union[PoolCard, _Mapping]]] = ..., finding: _Optional[str] = ..., heard: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class PoolCard(_message.Message):
    __slots__ = ("uuid", "index", "kind", "model", "tflops", "memory_bytes", "frees_memory", "first", "last", "free_blocks", "left_out")
    UUID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TFLOPS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREES_MEMORY_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    index: int
    kind: str
    model: str
    tflops: float
    memory_bytes: int
    frees_memory: bool
    first: int
    last: int
    free_blocks: int
    left_out: str
    def __init__(self, uuid: _Optional[str] = ..., index: _Optional[int] = ..., kind: _Optional[str] = ..., model: _Optional[str] = ..., tflops: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., frees_memory: _Optional[bool] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., free_blocks: _Optional[int] = ..., left_out: _Optional[str] = ...) -> None: ...

class Application(_message.Message):
    __slots__ = ("name", "owner", "phase", "reason", "asked_blocks", "blocks", "priority", "kind", "span", "node", "runs", "parts", "claimed", "since", "suspended_for", "suspensions", "host_bytes", "place", "command", "labels", "tenant")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ASKED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    SUSPENDED_FOR_FIELD_NUMBER: _ClassVar[int]
    SUSPENSIONS_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    name: str
    owner: str
    phase: str
    reason: str
    asked_blocks: int
    blocks: int
    priority: int
    kind: str
    span: Span
    node: str
    runs: _containers.RepeatedCompositeFieldContainer[BlockRun]
    parts: _containers.RepeatedCompositeFieldContainer[ApplicationPart]
    claimed: _timestamp_pb2.Timestamp
    since: _timestamp_pb2.Timestamp
    suspended_for: _duration_pb2.Duration
    suspensions: int
    host_bytes: int
    place: int
    command: _containers.RepeatedScalarFieldContainer[str]
    labels: _containers.ScalarMap[str, str]
    tenant: str
    def __init__(self, name: _Optional[str] = ..., owner: _Optional[str] = ..., phase: _Optional[str] = ..., reason: _Optional[str] = ..., asked_blocks: _Optional[int] = ..., blocks: _Optional[int] = ..., priority: _Optional[int] = ..., kind: _Optional[str] = ..., span: _Optional[_Union[Span, str]] = ..., node: _Optional[str] = ..., runs: _Optional[_Iterable[_Union[BlockRun, _Mapping]]] = ..., parts: _Optional[_Iterable[_Union[ApplicationPart, _Mapping]]] = ..., claimed: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., suspended_for: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., suspensions: _Optional[int] = ..., host_bytes: _Optional[int] = ..., place: _Optional[int] = ..., command: _Optional[_Iterable[str]] = ..., labels: _Optional[_Mapping[str, str]] = ..., tenant: _Optional[str] = ...) -> None: ...

class ApplicationPart(_message.Message):
    __slots__ = ("node", "device_uuid", "device_index", "model", "first", "last", "memory_bytes", "cores_permille", "address")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CORES_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node: str
    device_uuid: str
    device_index: int
    model: str
    first: int
    last: int
    memory_bytes: int
    cores_permille: int
    address: str
    def __init__(self, node: _Optional[str] = ..., device_uuid: _Optional[str] = ..., device_index: _Optional[int] = ..., model: _Optional[str] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., cores_permille: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class NodeReport(_message.Message):
    __slots__ = ("node", "version", "pool", "term", "cards", "parts", "seen", "alive", "precision", "address")
    NODE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    CARDS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node: str
    version: str
    pool: str
    term: int
    cards: _containers.RepeatedCompositeFieldContainer[PoolCard]
    parts: _containers.RepeatedCompositeFieldContainer[PartReport]
    seen: int
    alive: _containers.RepeatedScalarFieldContainer[str]
    precision: str
    address: str
    def __init__(self, node: _Optional[str] = ..., version: _Optional[str] = ..., pool: _Optional[str] = ..., term: _Optional[int] = ..., cards: _Optional[_Iterable[_Union[PoolCard, _Mapping]]] = ..., parts: _Optional[_Iterable[_Union[PartReport, _Mapping]]] = ..., seen: _Optional[int] = ..., alive: _Optional[_Iterable[str]] = ..., precision: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class PartReport(_message.Message):
    __slots__ = ("application", "revision", "state", "reason", "device_bytes", "host_bytes", "processes", "took")
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DEVICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    TOOK_FIELD_NUMBER: _ClassVar[int]
    application: str
    revision: int
    state: str
    reason: str
    device_bytes: int
    host_bytes: int
    processes: int
    took: _duration_pb2.Duration
    def __init__(self, application: _Optional[str] = ..., revision: _Optional[int] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., device_bytes: _Optional[int] = ..., host_bytes: _Optional[int] = ..., processes: _Optional[int] = ..., took: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class NodeOrders(_message.Message):
    __slots__ = ("pool", "term", "number", "parts", "refused", "reason", "ends")
    POOL_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    term: int
    number: int
    parts: _containers.RepeatedCompositeFieldContainer[PartOrder]
    refused: bool
    reason: str
    ends: _containers.RepeatedCompositeFieldContainer[PartEnd]
    def __init__(self, pool: _Optional[str] = ..., term: _Optional[int] = ..., number: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[PartOrder, _Mapping]]] = ..., refused: _Optional[bool] = ..., reason: _Optional[str] = ..., ends: _Optional[_Iterable[_Union[PartEnd, _Mapping]]] = ...) -> None: ...

class PartEnd(_message.Message):
    __slots__ = ("application", "grace")
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    GRACE_FIELD_NUMBER: _ClassVar[int]
    application: str
    grace: _duration_pb2.Duration
    def __init__(self, application: _Optional[str] = ..., grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PartOrder(_message.Message):
    __slots__ = ("application", "revision", "suspended", "shares", "user", "uid", "mode", "command", "labels", "claimed", "span")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SUSPENDED_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    application: str
    revision: int
    suspended: bool
    shares: _containers.RepeatedCompositeFieldContainer[PartShare]
    user: str
    uid: int
    mode: _agent_pb2.Mode
    command: _containers.RepeatedScalarFieldContainer[str]
    labels: _containers.ScalarMap[str, str]
    claimed: _timestamp_pb2.Timestamp
    span: Span
    def __init__(self, application: _Optional[str] = ..., revision: _Optional[int] = ..., suspended: _Optional[bool] = ..., shares: _Optional[_Iterable[_Union[PartShare, _Mapping]]] = ..., user: _Optional[str] = ..., uid: _Optional[int] = ..., mode: _Optional[_Union[_agent_pb2.Mode, str]] = ..., command: _Optional[_Iterable[str]] = ..., labels: _Optional[_Mapping[str, str]] = ..., claimed: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., span: _Optional[_Union[Span, str]] = ...) -> None: ...

class PartShare(_message.Message):
    __slots__ = ("device_uuid", "memory_bytes", "cores_permille")
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CORES_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    device_uuid: str
    memory_bytes: int
    cores_permille: int
    def __init__(self, device_uuid: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., cores_permille: _Optional[int] = ...) -> None: ...
