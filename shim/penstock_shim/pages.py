"""A tenant's two pages: `quota` holds its limits, and `usage` its usage.

Supervisors use `QuotaWriter` and `UsagePage`. `read_quota` and `read_usage` need only read
permission. The C headers in `shim/native/abi/` define the layout for C and for Python.
"""

from penstock_shim._limits import (
    MAX_DEVICES,
    MAX_MEMORY_BYTES,
    MAX_SLOTS,
    UNIT_BYTES,
    DeviceLimit,
    Limits,
    Mode,
    uuid_from_bytes,
    uuid_to_bytes,
)
from penstock_shim._page_file import (
    ADVICES,
    PageError,
    lost_pages,
    page_bytes,
    survive_lost_pages,
    usage_page_bytes,
)
from penstock_shim._quota_page import Quota, QuotaWriter, read_quota
from penstock_shim._usage_page import (
    Asked,
    AskedName,
    DeviceUsage,
    SlotUsage,
    UsagePage,
    UsageSnapshot,
    read_asked,
    read_usage,
)

__all__ = [
    "ADVICES",
    "MAX_DEVICES",
    "MAX_MEMORY_BYTES",
    "MAX_SLOTS",
    "UNIT_BYTES",
    "Asked",
    "AskedName",
    "DeviceLimit",
    "DeviceUsage",
    "Limits",
    "Mode",
    "PageError",
    "Quota",
    "QuotaWriter",
    "SlotUsage",
    "UsagePage",
    "UsageSnapshot",
    "lost_pages",
    "page_bytes",
    "read_asked",
    "read_quota",
    "read_usage",
    "survive_lost_pages",
    "usage_page_bytes",
    "uuid_from_bytes",
    "uuid_to_bytes",
]
