from typing import Any, TypeAlias

# cffi's structs take their fields from the C headers, which type checkers do not read.
CData: TypeAlias = Any

ffi: Any
lib: Any
