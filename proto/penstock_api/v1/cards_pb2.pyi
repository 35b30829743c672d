import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StartCardRequest(_message.Message):
    __slots__ = ("application", "claimed", "node", "device_uuid", "token", "certificate", "key", "authority", "peer")
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    application: str
    claimed: _timestamp_pb2.Timestamp
    node: str
    device_uuid: str
    token: bytes
    certificate: bytes
    key: bytes
    authority: bytes
    peer: str
    def __init__(self, application: _Optional[str] = ..., claimed: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., node: _Optional[str] = ..., device_uuid: _Optional[str] = ..., token: _Optional[bytes] = ..., certificate: _Optional[bytes] = ..., key: _Optional[bytes] = ..., authority: _Optional[bytes] = ..., peer: _Optional[str] = ...) -> None: ...

class StartCardResponse(_message.Message):
    __slots__ = ("address", "host", "pid", "is_stand_in")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    IS_STAND_IN_FIELD_NUMBER: _ClassVar[int]
    address: str
    host: str
    pid: int
    is_stand_in: bool
    def __init__(self, address: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., is_stand_in: _Optional[bool] = ...) -> None: ...
