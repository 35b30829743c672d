"""Carries a plan out in virtual time, against what tenants really asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.scheduling.slices.group import Group
from penstock.scheduling.slices.plan import by_part
from penstock.scheduling.slices.record import Ran, Record
from penstock.scheduling.slices.service import Service
from penstock.scheduling.slices.standing import Standing
from penstock.scheduling.slices.supplier import check_suppliers
from penstock.scheduling.slices.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.scheduling.slices.demand import Demand, DemandKey
    from penstock.scheduling.slices.plan import Plan
    from penstock.scheduling.slices.policies.policy import Policy
    from penstock.scheduling.slices.supplier import Supplier


def carry_out(
    plan: Plan, policy: Policy, asked: Iterable[Demand], suppliers: Iterable[Supplier]
) -> Record:
    """What would have been served until the window's end.

    `policy`: the plan's. `asked`: what the tenants really had to do (`duration_ns`), and from when
    on (`arrival_ns`). `suppliers`: the devices that were there, and when; one that was away in
    between is listed for each time.

    A slice whose tenant has nothing to do goes to the next. Work beyond the plan is left out: it is
    done in what is left idle, and takes nothing from planned work. Demands that were not planned
    are passed over.

    Raises:
        PenstockError: a device is listed twice at one time.
        ValueError: the plan was made by another policy.
    """
    if policy.name != plan.policy:
        raise ValueError(f"the plan was made by {plan.policy}, not by {policy.name}")
    there = list(suppliers)
    if there:
        check_suppliers(there)
    wanted = {one.key: one for one in asked}
    serving = by_part(plan, there)
    left_ns: dict[DemandKey, int] = {key: one.duration_ns for key, one in wanted.items()}
    ran: list[Ran] = []
    for name, part in plan.parts().items():
        for one in _serve(part, policy, wanted, serving.get(name, ())):
            ran.append(one)
            left_ns[plan.key(one.device, one.tenant)] -= one.length_ns
    return Record(tuple(ran), {key: left for key, left in left_ns.items() if left})


def _serve(
    part: Plan,
    policy: Policy,
    wanted: Mapping[DemandKey, Demand],
    suppliers: Sequence[Supplier],
) -> Iterator[Ran]:
    """The slices of one part, device by device."""
    group = Group.of(part.demands, suppliers, part.devices[0].seed)
    standings = []
    for place, planned in enumerate(group.demands):
        if (asked := wanted.get(planned.key)) is not None:
            work_ns = min(planned.duration_ns, asked.duration_ns)
            standings.append(Standing(planned, place, work_ns, asked.ready_ns))
    turns = Turns(policy, group.demands)
    slice_ns = part.devices[0].slice_ns
    service = Service(standings, group.suppliers, turns, slice_ns, part.window_ns)
    for supplier, laps in zip(group.suppliers, service.run(), strict=True):
        for one in (one for lap in laps for one in lap.slices()):
            yield Ran(supplier.device, one.tenant, one.number, one.start_ns, one.length_ns)
