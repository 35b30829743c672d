"""Faults, each a change of one place, and the tests that must fail when it is there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEDGER = "shim/native/mechanism/ledger.c"
GATE = "shim/native/mechanism/gate.c"
ENFORCER = "controller/penstock/node/enforcement/enforcer.py"
LADDER = "controller/penstock/node/enforcement/ladder.py"
RESOLVE = "controller/penstock/policy/resolve.py"
WEBHOOK = "controller/penstock/kube/webhook"
QUOTA = "controller/penstock/kube/quota"
INSTALL = "tests/kube/install/test_targets.py"
CONTROLLER = "controller/penstock/kube/controller"
EXTENDER = "controller/penstock/kube/extender"
PROMTOOL = (
    "tests/meter/test_dashboard_and_alerts.py::test_alerts_fire_and_stay_quiet_as_their_tests_say"
)
CARD_LINK = "controller/penstock/card/link/card_link.py"
CHARGING = "tests/gate/test_charging.py::test_work_that_is_hard_to_measure_gets_its_quota"
HANDSHAKES = "tests/agent/test_handshakes.py"
LIARS = "test_who_lies_about_itself_or_sends_noise_is_not_known_and_costs_a_bounded_amount"
NATIVE = "tests/native/test_native.py::test_native"
WRITER_KILLED = "a_writer_of_the_quota_killed_at_any_store_leaves_old_or_new_limits_whole"
EXCESS = (
    "tests/cli/test_quota.py::test_on_exceed_of_a_policy_reaches_the_tenants_grant",
    "tests/agent/test_orders.py::test_penstock_run_hands_what_its_policy_says_of_excess_to_the_agent",
)


@dataclass(frozen=True)
class Fault:
    """A change of `before`, which occurs once in `file`, to `after`."""

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
        """Raises ValueError: `before` does not occur, or occurs several times."""
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
        "pages-in-place", "ledger", "a new quota overwrites the copy that is in force",
        "shim/native/mechanism/publish.c",
        "fill(&page->copies[current ^ 1], limits, generation);",
        "fill(&page->copies[current], limits, generation);\n  current ^= 1;",
        (f"{NATIVE}[kill_points-{WRITER_KILLED}-plain]",),
    ),
    Fault(
        "gate-half-the-charge", "gate", "the gate paces launches by half of their charge",
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
        "no-sigkill", "enforcement", "a program that ignores SIGTERM never gets SIGKILL",
        ENFORCER,
        "(orders.kill, (signal.SIGKILL,)),",
        "(orders.kill, ()),",
        ("tests/enforce/test_evasions.py::test_one_that_ignores_sigterm_is_killed",),
    ),
    Fault(
        "no-grace", "enforcement", "SIGKILL is sent together with SIGTERM",
        LADDER,
        "wait_ns = min(KILL_AFTER_NS, on_exceed.grace)",
        "wait_ns = 0",
        ("tests/enforce/test_ladder.py",),
    ),
    Fault(
        "handshake-any-pid", "enforcement", "a process may claim any pid in a handshake",
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
        "meter-drops-steps", "meter", "device time beyond 0.1 s between two readings is dropped",
        "controller/penstock/node/metering/account.py",
        "spent_ns = min(reading.spent_ns or 0, MOST)",
        "spent_ns = min(reading.spent_ns or 0, MOST, account.spent_ns + 100_000_000)",
        ("tests/meter/test_amounts.py",),
    ),
    Fault(
        "meter-half-the-memory", "meter", "memory is metered by the later of two readings",
        "controller/penstock/node/metering/account.py",
        "(account.total_bytes + total_bytes) * elapsed_ns",
        "(total_bytes + total_bytes) * elapsed_ns",
        ("tests/meter/test_amounts.py",),
    ),
    Fault(
        "extender-forgets-bindings", "extender", "a Binding in progress reserves no shares",
        f"{EXTENDER}/ledger.py",
        "self._assumed[uid] = pod, node, shares\n        self._change(node, shares, taken=True)",
        "self._assumed[uid] = pod, node, {}",
        ("tests/kube/test_ledger.py",),
    ),
    Fault(
        "extender-leaks-bindings", "extender", "a failed Binding keeps its shares",
        f"{EXTENDER}/ledger.py",
        "            _, node, shares = found\n"
        "            self._change(node, shares, taken=False)\n",
        "            _, node, shares = found\n",
        ("tests/kube/test_ledger.py",),
    ),
    Fault(
        "webhook-anyone-places", "webhook", "any user may change a Pod's placement",
        f"{WEBHOOK}/pod_review.py",
        "if was.get(name) != now.get(name) and user != scheduler_user:",
        "if was.get(name) != now.get(name) and user == scheduler_user:",
        ("tests/kube/test_resize_review.py",),
    ),
    Fault(
        "webhook-node-name", "webhook", "a Pod may name its node and thus bypass the scheduler",
        f"{WEBHOOK}/pod_review.py",
        'if spec.get("nodeName"):',
        'if spec.get("nodeName") is False:',
        ("tests/kube/admit/test_refusals.py",),
        on_a_cluster=True,
    ),
    Fault(
        "caps-not-added", "caps", "shares that are already held do not count towards the cap",
        f"{QUOTA}/caps.py",
        "elif wants and (has or 0) + wants > hard:",
        "elif wants and wants > hard:",
        ("tests/kube/test_control_schema.py",),
    ),
    Fault(
        "caps-unsaid-passes", "caps", "a Pod that leaves out a capped quantity is admitted",
        f"{QUOTA}/caps.py",
        "                unsaid.append(name)",
        "                continue",
        ("tests/kube/test_control_schema.py",),
    ),
    Fault(
        "scale-beyond-max", "scaling", "one replica more than the maximum is allowed",
        "controller/penstock/scheduling/replicas/decide.py",
        "wanted = min(needed, limit, scale.max)",
        "wanted = min(needed, limit, scale.max + 1)",
        ("tests/scale/test_decide.py",),
    ),
    Fault(
        "scale-without-headroom", "scaling", "there is no headroom between scaling down and up",
        "controller/penstock/scheduling/replicas/decide.py",
        "load.threshold.up * HEADROOM)",
        "load.threshold.up)",
        ("tests/scale/test_decide.py",),
    ),
    Fault(
        "scale-memory-for-cores", "scaling", "Deployments scale by vGPU memory instead of cores",
        f"{CONTROLLER}/scaling.py",
        "self._share_of(pod, self._agents.cores_percent, problems)",
        "self._share_of(pod, self._agents.memory_percent, problems)",
        ("tests/kube/test_control_scaling.py",),
        on_a_cluster=True,
    ),
    Fault(
        "scale-memory-in-kilobytes", "scaling", "Pod memory is read as a thousandth of its value",
        f"{CONTROLLER}/pod_metrics.py",
        "heard = _Heard(str(said.get(\"time\")), at_ns, value * unit)",
        "heard = _Heard(str(said.get(\"time\")), at_ns, value * (0.001 if unit == 1 else unit))",
        (f"{INSTALL}::test_deployments_follow_average_memory_and_the_use_of_their_vgpus",),
        on_a_cluster=True,
    ),
    Fault(
        "policy-grace", "policies", "`penstock run` ignores a policy's onExceed.grace",
        RESOLVE,
        "exceed.measured, exceed.grace,",
        "exceed.measured, None,",
        EXCESS,
    ),
    Fault(
        "policy-measured", "policies", "`penstock run` ignores a policy's onExceed.measured",
        RESOLVE,
        "exceed.measured, exceed.grace,",
        "None, exceed.grace,",
        EXCESS,
    ),
    Fault(
        "policy-mode", "policies", "`penstock run` ignores a policy's mode",
        RESOLVE,
        "cls(spec.mode, name,",
        "cls(None, name,",
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
        "alert-lost", "alerts", "PenstockDeviceLost fires for devices that respond",
        "deploy/prometheus/rules.yaml",
        "penstock_device_available == 0",
        "penstock_device_available != 0",
        (PROMTOOL,),
    ),
    Fault(
        "upgrade-suspended", "upgrade", "an upgrade resumes a suspended tenant",
        "controller/penstock/node/tenants/grant.py",
        'suspended=bool(spec.get("suspended", False)),',
        "suspended=False,",
        ("tests/upgrade/test_golden.py",),
    ),
    Fault(
        "upgrade-excess", "upgrade", "an upgrade forgets a tenant's onExceed.measured",
        "controller/penstock/node/tenants/grant.py",
        "measured=_word(exceed.get(\"measured\", DEFAULT_STEP), STEPS),",
        'measured="terminate",',
        ("tests/upgrade/test_golden.py::test_pages_and_grants_are_read_as_they_were_written",),
    ),
    Fault(
        "card-stale-replies", "card", "a card's reply goes to the oldest request that waits",
        CARD_LINK,
        "reply = self._replies.pop(frame.number, None)",
        "reply = self._replies.pop(next(iter(self._replies), 0), None)",
        ("tests/card_link/test_numbered_replies.py",),
    ),
    Fault(
        "card-blamed", "card", "a program that was stopped takes its cards for hung",
        CARD_LINK,
        "self._heard_s += late_s",
        "self._heard_s += 0.0",
        ("tests/card_link/test_dead_and_hung.py",),
    ),
    Fault(
        "card-fork-shuts", "card", "a forked child ends the program's connections to its cards",
        CARD_LINK,
        "                reply.fail(self._refusal)\n        self._stream.close()",
        "                reply.fail(self._refusal)\n        self._stream.shut()",
        ("tests/card_link/test_forks.py",),
    ),
)  # fmt: skip
