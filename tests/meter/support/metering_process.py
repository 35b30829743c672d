"""Meters the tenants of a state directory as fast as it can: `STATE DIRECTORY SECONDS`.

Killed at any moment by the test; with SECONDS it ends in order after as long.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from penstock.node.metering import clock
from penstock.node.metering.meter import Meter
from penstock.node.metering.reading import identity_of, reading_of
from penstock.node.tenants.state import State
from penstock.node.tenants.tenant import tenants_of
from penstock_shim.pages import read_usage


def main() -> None:
    state, directory, seconds = State.read(Path(sys.argv[1])), Path(sys.argv[2]), float(sys.argv[3])
    meter = Meter(directory)
    known = {}
    print("metering", flush=True)
    end = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < end:
        for tenant in tenants_of(state):
            if tenant.name not in known:
                grant = tenant.grant()
                known[tenant.name] = identity_of(tenant, grant), grant
            who, grant = known[tenant.name]
            meter.observe(clock.now(), [reading_of(who, grant, read_usage(tenant.usage_page))])
        rounds += 1
        if rounds % 3 == 0:
            meter.flush(clock.now())
        time.sleep(0.002)
    for tenant in tenants_of(state):
        who, grant = known[tenant.name]
        final = reading_of(who, grant, read_usage(tenant.usage_page))
        stored, suspicions = meter.close_tenant(clock.now(), final, wait_s=20)
        assert stored
        assert suspicions == []
    assert meter.close(wait_s=20)


if __name__ == "__main__":
    main()
