"""Usage queries as messages, because only the agent may read its metering files."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.node.metering.metered_amounts import FIELDS, Amounts
from penstock.node.metering.usage import Usage, UsageRow
from penstock_api.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from penstock.node.agent.usage_recorder import UsageRecorder
    from penstock.node.metering.usage import By

HOUR_S = 3600
LAST_S = 253_402_300_799  # the last second that fits into a timestamp, in the year 9999
_BY: dict[By, pb.GroupBy] = {
    "tenant": pb.GROUP_BY_TENANT,
    "user": pb.GROUP_BY_USER,
    "policy": pb.GROUP_BY_POLICY,
    "device": pb.GROUP_BY_DEVICE,
}


def query_usage(recorder: UsageRecorder, request: pb.QueryUsageRequest) -> pb.QueryUsageResponse:
    """Queries the usage recorder. Raises `PenstockError` if there is no usage to report."""
    until_s = request.until.seconds if request.HasField("until") else int(time.time()) + 1
    since_s = request.since.seconds if request.HasField("since") else until_s - HOUR_S
    groups: dict[int, By] = {number: by for by, number in _BY.items()}
    by = groups.get(request.by, "tenant")
    found = recorder.usage(since_s, until_s, by, request.tenant or None)
    answer = pb.QueryUsageResponse(sums=[_sum(row) for row in found.rows])
    if found.covered_since_s is not None:
        answer.covered_since.FromSeconds(max(0, found.covered_since_s))
    return answer


def usage_request(since_s: int, until_s: int, by: By, tenant: str | None) -> pb.QueryUsageRequest:
    """The message for a usage query."""
    request = pb.QueryUsageRequest(by=_BY[by], tenant=tenant or "")
    request.since.FromSeconds(min(max(0, since_s), LAST_S))
    request.until.FromSeconds(min(max(0, until_s), LAST_S))
    return request


def usage_of(request: pb.QueryUsageRequest, answer: pb.QueryUsageResponse) -> Usage:
    """The usage in the agent's response."""
    covered = answer.covered_since.seconds if answer.HasField("covered_since") else None
    rows = [
        UsageRow(
            dict(one.group),
            one.devices,
            Amounts(**{name: int(getattr(one, name) or 0) for name in FIELDS}),
        )
        for one in answer.sums
    ]
    return Usage(request.since.seconds, request.until.seconds, covered, rows)


def _sum(row: UsageRow) -> pb.UsageSum:
    message = pb.UsageSum(group=row.group, devices=row.devices)
    for name in FIELDS:
        setattr(message, name, str(getattr(row.amounts, name)))
    return message
