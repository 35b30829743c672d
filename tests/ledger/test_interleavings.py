"""Every interleaving and every kill point of the ledger, on the very steps that the shim runs.

Slots are operated one shared-memory access at a time, in an order that hypothesis chooses; a killed
owner is one whose remaining steps never happen.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from penstock_shim._native import ffi, lib

SLOTS = 4
DEVICE = 0
SEQ_BITS = 18
SEQ_MASK = (1 << SEQ_BITS) - 1
LIVE, REAPING = lib.PENSTOCK_SLOT_LIVE, lib.PENSTOCK_SLOT_REAPING
RUNNING, DONE, STOPPED = 0, 1, 2


def units(word):
    return word >> 28


def signed(value):
    return value if value < 1 << 63 else value - (1 << 64)


class Steps:
    """An operation in progress."""

    def __init__(self, handle, limit=None):
        assert handle != ffi.NULL
        self.handle = ffi.gc(handle, lib.penstock_steps_free)
        self.limit = limit

    def next(self):
        return lib.penstock_steps_next(self.handle)


class Ledger(RuleBasedStateMachine):
    """Four slots of one page. `ops` holds the living owners' operations, `reapers` the reapings."""

    def __init__(self):
        super().__init__()
        self.page = ffi.new("penstock_usage_page *")
        self.words = self.page.ledger[DEVICE]
        self.limit = 12
        self.births = 0
        self.ops = {}
        self.reapers = {}
        self.dead = set()
        self.page.slots_high = SLOTS

    @initialize(seq=st.sampled_from([0, 1, SEQ_MASK - 2, SEQ_MASK - 1, SEQ_MASK]))
    def start(self, seq):
        """All owners live and hold nothing; the operation number may wrap soon."""
        self.words.total = seq
        for slot in range(SLOTS):
            words = self.page.slots[slot].ledger[DEVICE]
            words.charged = words.intent = self.page.slots[slot].ledger_ack[DEVICE] = seq
            self.page.slots[slot].owner = self.new_owner(LIVE)

    def new_owner(self, state):
        self.births += 1
        return state << 62 | self.births

    def owner(self, slot):
        return self.page.slots[slot].owner

    def charged(self, slot):
        return units(self.page.slots[slot].ledger[DEVICE].charged)

    def advance(self, steps, count):
        """Runs up to `count` steps; an increase of the total must fit the limit it ran under."""
        for _ in range(count):
            before = units(self.words.total)
            state = steps.next()
            after = units(self.words.total)
            assert after <= before or after <= steps.limit
            if state != RUNNING:
                return state
        return RUNNING

    def idle_slots(self):
        return [
            s
            for s in range(SLOTS)
            if self.owner(s) >> 62 == LIVE and s not in self.dead | set(self.ops)
        ]

    def begin(self, slot, delta):
        self.ops[slot] = Steps(
            lib.penstock_steps_ledger(self.page, DEVICE, slot, delta, self.limit), self.limit
        )

    @precondition(lambda self: self.idle_slots())
    @rule(data=st.data(), size=st.integers(1, 9))
    def begin_reservation(self, data, size):
        self.begin(data.draw(st.sampled_from(self.idle_slots())), size)

    @precondition(lambda self: any(self.charged(s) for s in self.idle_slots()))
    @rule(data=st.data())
    def begin_release(self, data):
        slot = data.draw(st.sampled_from([s for s in self.idle_slots() if self.charged(s)]))
        self.begin(slot, -data.draw(st.integers(1, self.charged(slot))))

    @precondition(lambda self: self.ops)
    @rule(data=st.data(), count=st.integers(1, 12))
    def go_on_with_an_operation(self, data, count):
        slot = data.draw(st.sampled_from(sorted(self.ops)))
        if self.advance(self.ops[slot], count) != RUNNING:
            del self.ops[slot]

    @precondition(lambda self: any(s not in self.dead for s in range(SLOTS)))
    @rule(data=st.data())
    def kill(self, data):
        living = [s for s in range(SLOTS) if s not in self.dead and self.owner(s) >> 62 == LIVE]
        if living:
            slot = data.draw(st.sampled_from(living))
            self.dead.add(slot)
            self.ops.pop(slot, None)

    def reapable(self):
        return [s for s in range(SLOTS) if s in self.dead and self.owner(s) >> 62 != 0]

    @precondition(lambda self: self.reapable())
    @rule(data=st.data())
    def begin_reaping(self, data):
        """Several at once may try one slot: the owner as seen now is what they compare with."""
        slot = data.draw(st.sampled_from(self.reapable()))
        owner = self.owner(slot)
        if any(reaper == owner for reaper, _, _ in self.reapers.values()):
            return  # taken by a living reaper
        me = self.new_owner(REAPING)
        steps = Steps(lib.penstock_steps_reap(self.page, slot, owner, me))
        self.reapers[self.births] = (me, slot, steps)

    @precondition(lambda self: self.reapers)
    @rule(data=st.data(), count=st.integers(1, 45))
    def go_on_with_a_reaping(self, data, count):
        name = data.draw(st.sampled_from(sorted(self.reapers)))
        _, slot, steps = self.reapers[name]
        state = self.advance(steps, count)
        if state == DONE:
            assert self.charged(slot) == 0
            self.dead.discard(slot)
        if state != RUNNING:
            del self.reapers[name]

    @precondition(lambda self: self.reapers)
    @rule(data=st.data())
    def kill_a_reaper(self, data):
        del self.reapers[data.draw(st.sampled_from(sorted(self.reapers)))]

    @rule(slot=st.integers(0, SLOTS - 1))
    def claim(self, slot):
        if self.owner(slot) >> 62 == 0:
            self.page.slots[slot].owner = self.new_owner(LIVE)

    @rule(limit=st.integers(0, 20))
    def change_the_limit(self, limit):
        self.limit = limit

    @invariant()
    def when_nothing_is_under_way_the_total_is_what_the_slots_hold(self):
        if not self.ops and not self.reapers and not self.reapable():
            assert units(self.words.total) == sum(self.charged(s) for s in range(SLOTS))

    @invariant()
    def what_the_slots_hold_and_have_under_way_explains_the_total(self):
        """Even in the midst of everything: the difference is made of open operations alone."""
        holds = 0
        open_deltas = []
        for slot in range(SLOTS):
            words = self.page.slots[slot].ledger[DEVICE]
            holds += units(words.charged)
            if words.intent & SEQ_MASK != words.charged & SEQ_MASK:
                open_deltas.append(signed(words.intent) >> 28)
        sums = {holds}
        for delta in open_deltas:
            sums |= {partial + delta for partial in sums}
        assert units(self.words.total) in sums

    def teardown(self):
        """All processes die; the last reaper finds all their charges."""
        for slot in range(SLOTS):
            if self.owner(slot) >> 62 != 0:
                me = self.new_owner(REAPING)
                steps = Steps(lib.penstock_steps_reap(self.page, slot, self.owner(slot), me))
                assert self.advance(steps, 10_000) == DONE
        assert units(self.words.total) == 0
        for slot in range(SLOTS):
            assert self.charged(slot) == 0
            assert self.owner(slot) >> 62 == 0


Ledger.TestCase.settings = settings(max_examples=400, stateful_step_count=80, deadline=None)


class TestAnyInterleavingAndAnyKillPointLeavesTheLedgerExact(Ledger.TestCase):
    """Collected by pytest as a unittest case."""
