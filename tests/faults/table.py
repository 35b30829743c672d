"""Faults, each a change of one place, and the tests that must fail when it is there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEDGER = "shim/native/mechanism/ledger.c"
GATE = "shim/native/mechanism/gate.c"
ENFORCER = "controller/penstock/node/enforcement/enforcer.py"
LADDER = "controller/penstock/node/enforcement/ladder.py"
REQUEST = "controller/penstock/cli/request.py"
WEBHOOK = "controller/penstock/kube/webhook"
QUOTA = "controller/penstock/kube/quota"
INSTALL = "tests/kube/test_install.py"
CONTROLLER = "controller/penstock/kube/controller"
EXTENDER = "controller/penstock/kube/extender"
PROMTOOL = "tests/meter/test_exporter.py::test_alerts_fire_and_stay_quiet_as_their_tests_say"
CHARGING = "tests/gate/test_charging.py::test_work_that_is_hard_to_measure_gets_its_quota"
HANDSHAKES = "tests/agent/test_handshakes.py"
LIARS = "test_who_lies_about_itself_or_sends_noise_is_not_known_and_costs_a_bounded_amount"
NATIVE = "tests/native/test_native.py::test_native"
WRITER_KILLED = "a_writer_of_the_quota_killed_at_any_store_leaves_old_or_new_limits_whole"
EXCESS = (
    "tests/cli/test_quota.py::test_what_a_policy_says_of_excess_is_what_the_tenant_is_granted",
    "tests/agent/test_orders.py::test_penstock_run_hands_what_its_policy_says_of_excess_to_the_agent",
)


@dataclass(frozen=True)
class Fault:
    """`before`, which stands once in `file`, becomes `after`."""

    name: str
    area: str
    what: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    """As pytest takes them. The fault is caught when they run and at least one fails."""
    on_a_cluster: bool = False

    def text_with(self, text: str) -> str:
        """Raises ValueError: the place is not there, or there several times."""
        if (count := text.count(self.before)) != 1:
            raise ValueError(f"{self.name}: {self.file} has {count} of {self.before!r}, 1 expected")
        return text.replace(self.before, self.after)


FAULTS = (
    Fault(
        "ledger-keeps-a-unit", "ledger", "each release leaves one unit of the charge behind",
        LEDGER,
        "-(int64_t)units, 0);\n    run(&op);\n  }\n  penstock_lock_release",
        "-(int64_t)(units > 1 ? units - 1 : units), 0);\n    run(&op);\n  }\n"
        "  penstock_lock_release",
        ("tests/memory/test_families.py::test_a_family_is_charged_exactly_and_back_to_nothing",),
    ),
    Fault(
        "ledger-limit-plus-one", "ledger", "the limit is one unit higher than the quota",
        LEDGER,
        "penstock_ledger_limit(region, device) / PENSTOCK_LEDGER_UNIT_BYTES;\n  if (units > limit",
        "penstock_ledger_limit(region, device) / PENSTOCK_LEDGER_UNIT_BYTES + 1;\n"
        "  if (units > limit",
        (f"{NATIVE}[ledger-the_limit_is_reached_to_the_byte_and_not_passed-address]",),
    ),
    Fault(
        "pages-in-place", "ledger", "a new quota is written over the copy that is in force",
        "shim/native/mechanism/publish.c",
        "fill(&page->copies[current ^ 1], limits, generation);",
        "fill(&page->copies[current], limits, generation);\n  current ^= 1;",
        (f"{NATIVE}[kill_points-{WRITER_KILLED}-plain]",),
    ),
    Fault(
        "gate-half-the-charge", "gate", "the gate paces by half of what was charged",
        GATE,
        "__atomic_fetch_add(&gate->paid_until_ns, wall_ns(ns, permille), __ATOMIC_RELAXED);",
        "__atomic_fetch_add(&gate->paid_until_ns, wall_ns(ns / 2, permille), __ATOMIC_RELAXED);",
        ("tests/gate/test_arithmetic.py",),
    ),
    Fault(
        "gate-half-the-quota", "gate", "a charge is paid back at half the share",
        GATE,
        "__atomic_fetch_add(&gate->paid_until_ns, wall_ns(ns, permille), __ATOMIC_RELAXED);",
        "__atomic_fetch_add(&gate->paid_until_ns, wall_ns(2 * ns, permille), __ATOMIC_RELAXED);",
        (f"{CHARGING}[wide_kernels_on_eight_streams-30]",),
    ),
    Fault(
        "no-sigkill", "enforcement", "who ignores SIGTERM is never sent SIGKILL",
        ENFORCER,
        "(orders.kill, (signal.SIGKILL,)),",
        "(orders.kill, ()),",
        ("tests/enforce/test_evasions.py::test_one_that_ignores_sigterm_is_killed",),
    ),
    Fault(
        "no-grace", "enforcement", "SIGKILL comes together with SIGTERM",
        LADDER,
        "wait_ns = min(KILL_AFTER_NS, on_exceed.grace)",
        "wait_ns = 0",
        ("tests/enforce/test_ladder.py",),
    ),
    Fault(
        "handshake-any-pid", "enforcement", "a process may say that it has any pid",
        "controller/penstock/node/agent/peer.py",
        "if inner != inner_pid(self.pid):",
        "if inner < 0:",
        (f"{HANDSHAKES}::{LIARS}",),
    ),
    Fault(
        "grant-in-place", "agent", "grant.yaml is written in place",
        "controller/penstock/node/tenants/grant.py",
        'aside = directory / f".{FILE}.{os.getpid()}"',
        "aside = file",
        ("tests/node/test_records.py",),
    ),
    Fault(
        "meter-drops-steps", "meter", "device time beyond 0.1 s between two readings is forgotten",
        "controller/penstock/node/metering/account.py",
        "spent_ns = min(reading.spent_ns or 0, MOST)",
        "spent_ns = min(reading.spent_ns or 0, MOST, account.spent_ns + 100_000_000)",
        ("tests/meter/test_amounts.py",),
    ),
    Fault(
        "meter-half-the-memory", "meter", "memory is metered by the later of two readings alone",
        "controller/penstock/node/metering/account.py",
        "(account.total_bytes + total_bytes) * elapsed_ns",
        "(total_bytes + total_bytes) * elapsed_ns",
        ("tests/meter/test_amounts.py",),
    ),
    Fault(
        "extender-forgets-bindings", "extender", "a Binding on its way takes nothing",
        f"{EXTENDER}/ledger.py",
        "self._assumed[uid] = pod, node, shares\n        self._change(node, shares, taken=True)",
        "self._assumed[uid] = pod, node, {}",
        ("tests/kube/test_ledger.py",),
    ),
    Fault(
        "extender-leaks-bindings", "extender", "a Binding that failed keeps its shares",
        f"{EXTENDER}/ledger.py",
        "            _, node, shares = found\n"
        "            self._change(node, shares, taken=False)\n",
        "            _, node, shares = found\n",
        ("tests/kube/test_ledger.py",),
    ),
    Fault(
        "webhook-anyone-places", "webhook", "anybody may change where a Pod's devices are",
        f"{WEBHOOK}/pod_review.py",
        "if was.get(name) != now.get(name) and user != scheduler_user:",
        "if was.get(name) != now.get(name) and user == scheduler_user:",
        ("tests/kube/test_growth.py",),
    ),
    Fault(
        "webhook-node-name", "webhook", "a Pod may name its node and pass the scheduler by",
        f"{WEBHOOK}/pod_review.py",
        'if spec.get("nodeName"):',
        'if spec.get("nodeName") is False:',
        ("tests/kube/test_admit.py",),
        on_a_cluster=True,
    ),
    Fault(
        "caps-not-added", "caps", "a request is compared with the cap without what is held",
        f"{QUOTA}/caps.py",
        "elif wants and (has or 0) + wants > hard:",
        "elif wants and wants > hard:",
        ("tests/kube/test_control_schema.py",),
    ),
    Fault(
        "caps-unsaid-passes", "caps", "who leaves an amount out passes the cap",
        f"{QUOTA}/caps.py",
        "                unsaid.append(name)",
        "                continue",
        ("tests/kube/test_control_schema.py",),
    ),
    Fault(
        "scale-beyond-max", "scaling", "one replica more than the maximum",
        "controller/penstock/scheduling/replicas/decide.py",
        "wanted = min(needed, limit, scale.max)",
        "wanted = min(needed, limit, scale.max + 1)",
        ("tests/scale/test_decide.py",),
    ),
    Fault(
        "scale-without-headroom", "scaling", "shrinks right up to the threshold that grows",
        "controller/penstock/scheduling/replicas/decide.py",
        "load.threshold.up * HEADROOM)",
        "load.threshold.up)",
        ("tests/scale/test_decide.py",),
    ),
    Fault(
        "scale-memory-for-cores", "scaling", "Deployments scale by vGPU memory instead of cores",
        f"{CONTROLLER}/scaling.py",
        'self._agents.cores_percent if metric == "cores" else self._agents.memory_percent',
        'self._agents.memory_percent if metric == "cores" else self._agents.cores_percent',
        ("tests/kube/test_control_scaling.py",),
        on_a_cluster=True,
    ),
    Fault(
        "scale-memory-in-kilobytes", "scaling", "a Pod's memory is a thousand times too small",
        f"{CONTROLLER}/pod_metrics.py",
        "heard = _Heard(str(said.get(\"time\")), at_ns, value * unit)",
        "heard = _Heard(str(said.get(\"time\")), at_ns, value * (0.001 if unit == 1 else unit))",
        (f"{INSTALL}::test_deployments_follow_average_memory_and_the_use_of_their_vgpus",),
        on_a_cluster=True,
    ),
    Fault(
        "policy-grace", "policies", "`penstock run` ignores onExceed.grace of a file",
        REQUEST,
        "grace_ns=spec.on_exceed.grace if spec else DEFAULT_GRACE_NS,",
        "grace_ns=DEFAULT_GRACE_NS,",
        EXCESS,
    ),
    Fault(
        "policy-measured", "policies", "`penstock run` ignores onExceed.measured of a file",
        REQUEST,
        'measured=spec.on_exceed.measured if spec else DEFAULT_STEP,',
        'measured="terminate",',
        EXCESS,
    ),
    Fault(
        "policy-mode", "policies", "`penstock run` ignores mode of a file",
        REQUEST,
        'mode=mode.value if mode else spec.mode if spec else "strict",',
        'mode=mode.value if mode else "strict",',
        ("tests/cli/test_quota.py::test_a_policy_sets_the_limits_and_options_override_them",),
    ),
    Fault(
        "alert-slow", "alerts", "PenstockAgentSlow fires while the agent is fast",
        "deploy/prometheus/rules.yaml",
        "(rate(penstock_agent_loop_seconds_bucket[5m]))) > 0.1",
        "(rate(penstock_agent_loop_seconds_bucket[5m]))) < 0.1",
        (PROMTOOL,),
    ),
    Fault(
        "alert-lost", "alerts", "PenstockDeviceLost fires for devices that answer",
        "deploy/prometheus/rules.yaml",
        "penstock_device_available == 0",
        "penstock_device_available != 0",
        (PROMTOOL,),
    ),
    Fault(
        "upgrade-suspended", "upgrade", "a suspended tenant of the release before runs again",
        "controller/penstock/node/tenants/grant.py",
        'suspended=bool(spec.get("suspended", False)),',
        "suspended=False,",
        ("tests/upgrade/test_golden.py",),
    ),
    Fault(
        "upgrade-excess", "upgrade", "what the release before was to do about excess is forgotten",
        "controller/penstock/node/tenants/grant.py",
        "measured=_word(exceed.get(\"measured\", DEFAULT_STEP), STEPS),",
        'measured="terminate",',
        ("tests/upgrade/test_golden.py::test_pages_and_grants_are_read_as_they_were_written",),
    ),
)  # fmt: skip
