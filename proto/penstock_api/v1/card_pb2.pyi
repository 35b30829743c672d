from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class CardHello(_message.Message):
    __slots__ = ("oldest_version", "newest_version", "release", "application", "nonce", "pid", "node", "device", "torch_version")
    OLDEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    TORCH_VERSION_FIELD_NUMBER: _ClassVar[int]
    oldest_version: int
    newest_version: int
    release: str
    application: str
    nonce: bytes
    pid: int
    node: str
    device: str
    torch_version: str
    def __init__(self, oldest_version: _Optional[int] = ..., newest_version: _Optional[int] = ..., release: _Optional[str] = ..., application: _Optional[str] = ..., nonce: _Optional[bytes] = ..., pid: _Optional[int] = ..., node: _Optional[str] = ..., device: _Optional[str] = ..., torch_version: _Optional[str] = ...) -> None: ...

class CardProof(_message.Message):
    __slots__ = ("mac",)
    MAC_FIELD_NUMBER: _ClassVar[int]
    mac: bytes
    def __init__(self, mac: _Optional[bytes] = ...) -> None: ...

class CardPing(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class CardPong(_message.Message):
    __slots__ = ("number", "position", "kind", "since_ms")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    number: int
    position: int
    kind: int
    since_ms: int
    def __init__(self, number: _Optional[int] = ..., position: _Optional[int] = ..., kind: _Optional[int] = ..., since_ms: _Optional[int] = ...) -> None: ...

class CardGoodbye(_message.Message):
    __slots__ = ("reason", "release")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    release: str
    def __init__(self, reason: _Optional[str] = ..., release: _Optional[str] = ...) -> None: ...

class CardFault(_message.Message):
    __slots__ = ("type_name", "text", "position", "kind")
    TYPE_NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    type_name: str
    text: str
    position: int
    kind: int
    def __init__(self, type_name: _Optional[str] = ..., text: _Optional[str] = ..., position: _Optional[int] = ..., kind: _Optional[int] = ...) -> None: ...
