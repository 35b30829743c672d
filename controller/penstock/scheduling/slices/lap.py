"""Laps: the slices of a device, with repetitions folded, as in 40 rounds of the same tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Slice(NamedTuple):
    """A slice: the `number`-th of its tenant (from 1), in a round (from 1).

    `start_ns`: from the window's start, after the switch.
    """

    tenant: str
    round: int
    number: int
    start_ns: int
    length_ns: int

    @property
    def end_ns(self) -> int:
        """When it ends."""
        return self.start_ns + self.length_ns


class Turn(NamedTuple):
    """A slice in a lap, at its first time; each repetition is one round and number further."""

    tenant: str
    round: int
    number: int
    length_ns: int


class Lap(NamedTuple):
    """Turns of different tenants, one after the other with a switch between, and all repeated.

    A lap of one tenant has no switches.
    """

    start_ns: int
    turns: tuple[Turn, ...]
    times: int
    switch_ns: int

    @property
    def period_ns(self) -> int:
        """From the start of a repetition to that of the next."""
        switches = len(self.turns) if len(self.turns) > 1 else 0
        return sum(turn.length_ns for turn in self.turns) + switches * self.switch_ns

    @property
    def end_ns(self) -> int:
        """When its last slice ends."""
        after = self.switch_ns if len(self.turns) > 1 else 0
        return self.start_ns + self.times * self.period_ns - after

    def slices(self) -> Iterator[Slice]:
        """Its slices in the order of time."""
        at_ns = self.start_ns
        after_ns = self.switch_ns if len(self.turns) > 1 else 0
        for done in range(self.times):
            for tenant, first_round, number, length_ns in self.turns:
                yield Slice(tenant, first_round + done, number + done, at_ns, length_ns)
                at_ns += length_ns + after_ns

    def slices_of(self, tenant: str) -> Iterator[Slice]:
        """The slices of one tenant, without a look at those of others."""
        at_ns = self.start_ns
        after_ns = self.switch_ns if len(self.turns) > 1 else 0
        for turn in self.turns:
            if turn.tenant == tenant:
                break
            at_ns += turn.length_ns + after_ns
        else:
            return
        period_ns = self.period_ns
        for done in range(self.times):
            start_ns = at_ns + done * period_ns
            yield Slice(tenant, turn.round + done, turn.number + done, start_ns, turn.length_ns)


def slice_count(laps: Iterable[Lap]) -> int:
    """How many slices laps have."""
    return sum(len(lap.turns) * lap.times for lap in laps)


def last_round(laps: Iterable[Lap]) -> int:
    """The last round in which there is a slice; 0: there is none."""
    return max((turn.round + lap.times - 1 for lap in laps for turn in lap.turns), default=0)


class LapWriter:
    """Folds slices of a device, added in the order of time, into laps.

    A lap ends where a tenant comes again, or where the device is idle. If it is like the one
    before, it becomes a repetition of that one. So the same slices always make the same laps.
    """

    def __init__(self, switch_ns: int) -> None:
        self._switch_ns = switch_ns
        self._laps: list[Lap] = []
        self._turns: dict[str, Turn] = {}  # of the lap that is being written
        self._start_ns = 0
        self._last = ""  # the tenant of the last slice
        self._end_ns = 0  # and its end

    def add(self, tenant: str, in_round: int, number: int, start_ns: int, length_ns: int) -> None:
        """Adds the next slice."""
        gap_ns = self._switch_ns if tenant != self._last else 0
        if tenant in self._turns or start_ns != self._end_ns + gap_ns:
            self._fold()
        if not self._turns:
            self._start_ns = start_ns
        self._turns[tenant] = Turn(tenant, in_round, number, length_ns)
        self._last, self._end_ns = tenant, start_ns + length_ns

    def add_lap(self, turns: tuple[Turn, ...], times: int) -> None:
        """Adds turns of tenants of whom one had its turn in the last lap, after the switch."""
        self._fold()
        first = not self._laps
        gap_ns = self._switch_ns if turns[0].tenant != self._last and not first else 0
        lap = Lap(self._end_ns + gap_ns, turns, times, self._switch_ns)
        self._last, self._end_ns = turns[-1].tenant, lap.end_ns
        self._append(lap)

    def laps(self) -> tuple[Lap, ...]:
        """All laps up to here."""
        self._fold()
        return tuple(self._laps)

    def _fold(self) -> None:
        if self._turns:
            turns, self._turns = tuple(self._turns.values()), {}
            self._append(Lap(self._start_ns, turns, 1, self._switch_ns))

    def _append(self, lap: Lap) -> None:
        if self._laps and self._goes_on(self._laps[-1], lap):
            last = self._laps[-1]
            self._laps[-1] = last._replace(times=last.times + lap.times)
        else:
            self._laps.append(lap)

    def _goes_on(self, last: Lap, lap: Lap) -> bool:
        """Whether `lap` is the next repetition of `last`."""
        if len(last.turns) != len(lap.turns):
            return False
        if lap.start_ns != last.start_ns + last.times * last.period_ns:
            return False
        return all(
            turn.tenant == before.tenant
            and turn.length_ns == before.length_ns
            and turn.number == before.number + last.times
            and turn.round == before.round + last.times
            for before, turn in zip(last.turns, lap.turns, strict=True)
        )
