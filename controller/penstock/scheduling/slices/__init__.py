"""Time slices: who may use which device when in the next window, and whether it went so. Pure.

`planner` lays the slices of a `plan` from each tenant's `demand`, by one of `policies`. `rounds`
lays them for a device of its own, `service` for any policy, arrivals in the window and several
devices that serve all tenants, in virtual time. `length` chooses how long a slice is. `record` is
what was carried out, `judge` says whether that satisfied the tenants, `carry_out` makes such a
record in virtual time, and `search` tries other arrangements and lengths with it.

Times are integers of nanoseconds from the start of the window (ADR 64).
"""
