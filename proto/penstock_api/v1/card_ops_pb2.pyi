from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Setup(_message.Message):
    __slots__ = ("card", "cards", "host", "program")
    CARD_FIELD_NUMBER: _ClassVar[int]
    CARDS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    card: int
    cards: int
    host: str
    program: bytes
    def __init__(self, card: _Optional[int] = ..., cards: _Optional[int] = ..., host: _Optional[str] = ..., program: _Optional[bytes] = ...) -> None: ...

class Meeting(_message.Message):
    __slots__ = ("said",)
    class SaidEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    SAID_FIELD_NUMBER: _ClassVar[int]
    said: _containers.ScalarMap[str, bytes]
    def __init__(self, said: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("number", "name", "positional", "named", "outputs", "default_dtype")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    POSITIONAL_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_DTYPE_FIELD_NUMBER: _ClassVar[int]
    number: int
    name: str
    positional: _containers.RepeatedCompositeFieldContainer[Argument]
    named: _containers.RepeatedCompositeFieldContainer[NamedArgument]
    outputs: _containers.RepeatedCompositeFieldContainer[Output]
    default_dtype: str
    def __init__(self, number: _Optional[int] = ..., name: _Optional[str] = ..., positional: _Optional[_Iterable[_Union[Argument, _Mapping]]] = ..., named: _Optional[_Iterable[_Union[NamedArgument, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[Output, _Mapping]]] = ..., default_dtype: _Optional[str] = ...) -> None: ...

class NamedArgument(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: Argument
    def __init__(self, name: _Optional[str] = ..., value: _Optional[_Union[Argument, _Mapping]] = ...) -> None: ...

class Argument(_message.Message):
    __slots__ = ("nothing", "flag", "integer", "real", "complex", "text", "dtype", "memory_format", "layout", "device", "real_slot", "integer_slot", "scalar_slot", "view", "list", "flag_slot")
    NOTHING_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    COMPLEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FORMAT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    REAL_SLOT_FIELD_NUMBER: _ClassVar[int]
    INTEGER_SLOT_FIELD_NUMBER: _ClassVar[int]
    SCALAR_SLOT_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    FLAG_SLOT_FIELD_NUMBER: _ClassVar[int]
    nothing: Nothing
    flag: bool
    integer: int
    real: float
    complex: Complex
    text: str
    dtype: str
    memory_format: str
    layout: str
    device: Nothing
    real_slot: Nothing
    integer_slot: Nothing
    scalar_slot: Scalar
    view: View
    list: List
    flag_slot: bool
    def __init__(self, nothing: _Optional[_Union[Nothing, _Mapping]] = ..., flag: _Optional[bool] = ..., integer: _Optional[int] = ..., real: _Optional[float] = ..., complex: _Optional[_Union[Complex, _Mapping]] = ..., text: _Optional[str] = ..., dtype: _Optional[str] = ..., memory_format: _Optional[str] = ..., layout: _Optional[str] = ..., device: _Optional[_Union[Nothing, _Mapping]] = ..., real_slot: _Optional[_Union[Nothing, _Mapping]] = ..., integer_slot: _Optional[_Union[Nothing, _Mapping]] = ..., scalar_slot: _Optional[_Union[Scalar, _Mapping]] = ..., view: _Optional[_Union[View, _Mapping]] = ..., list: _Optional[_Union[List, _Mapping]] = ..., flag_slot: _Optional[bool] = ...) -> None: ...

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Complex(_message.Message):
    __slots__ = ("real", "imaginary")
    REAL_FIELD_NUMBER: _ClassVar[int]
    IMAGINARY_FIELD_NUMBER: _ClassVar[int]
    real: float
    imaginary: float
    def __init__(self, real: _Optional[float] = ..., imaginary: _Optional[float] = ...) -> None: ...

class Scalar(_message.Message):
    __slots__ = ("dtype", "is_integer")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    IS_INTEGER_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    is_integer: bool
    def __init__(self, dtype: _Optional[str] = ..., is_integer: _Optional[bool] = ...) -> None: ...

class List(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Argument]
    def __init__(self, items: _Optional[_Iterable[_Union[Argument, _Mapping]]] = ...) -> None: ...

class View(_message.Message):
    __slots__ = ("dtype", "size", "stride", "offset", "is_conjugate", "is_negative", "is_changed")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    IS_CONJUGATE_FIELD_NUMBER: _ClassVar[int]
    IS_NEGATIVE_FIELD_NUMBER: _ClassVar[int]
    IS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    size: _containers.RepeatedScalarFieldContainer[int]
    stride: _containers.RepeatedScalarFieldContainer[int]
    offset: int
    is_conjugate: bool
    is_negative: bool
    is_changed: bool
    def __init__(self, dtype: _Optional[str] = ..., size: _Optional[_Iterable[int]] = ..., stride: _Optional[_Iterable[int]] = ..., offset: _Optional[int] = ..., is_conjugate: _Optional[bool] = ..., is_negative: _Optional[bool] = ..., is_changed: _Optional[bool] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("tensor", "ignored")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    tensor: View
    ignored: Nothing
    def __init__(self, tensor: _Optional[_Union[View, _Mapping]] = ..., ignored: _Optional[_Union[Nothing, _Mapping]] = ...) -> None: ...

class Results(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Result]
    def __init__(self, items: _Optional[_Iterable[_Union[Result, _Mapping]]] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("tensor", "integer", "real", "flag", "buffer_bytes")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    BUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    tensor: View
    integer: int
    real: float
    flag: bool
    buffer_bytes: int
    def __init__(self, tensor: _Optional[_Union[View, _Mapping]] = ..., integer: _Optional[int] = ..., real: _Optional[float] = ..., flag: _Optional[bool] = ..., buffer_bytes: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("operation", "type", "text")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    operation: str
    type: str
    text: str
    def __init__(self, operation: _Optional[str] = ..., type: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class TraceEvents(_message.Message):
    __slots__ = ("names", "name", "track", "start_ns", "duration_ns", "size_bytes", "at_ns", "used_bytes")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TRACK_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    name: _containers.RepeatedScalarFieldContainer[int]
    track: _containers.RepeatedScalarFieldContainer[int]
    start_ns: _containers.RepeatedScalarFieldContainer[int]
    duration_ns: _containers.RepeatedScalarFieldContainer[int]
    size_bytes: _containers.RepeatedScalarFieldContainer[int]
    at_ns: int
    used_bytes: int
    def __init__(self, names: _Optional[_Iterable[str]] = ..., name: _Optional[_Iterable[int]] = ..., track: _Optional[_Iterable[int]] = ..., start_ns: _Optional[_Iterable[int]] = ..., duration_ns: _Optional[_Iterable[int]] = ..., size_bytes: _Optional[_Iterable[int]] = ..., at_ns: _Optional[int] = ..., used_bytes: _Optional[int] = ...) -> None: ...
