"""Loads over time on simulated services: the count follows, in few steps, without flapping."""

from __future__ import annotations

import math
import random

from .traces import Service, scale_of


def test_a_step_is_followed_up_in_seconds_and_down_after_the_window():
    service = Service(scale_of(cpu=(40, 80)))
    service.run([20] * 10 + [300] * 60)
    assert service.count == 4  # 300 / 80, rounded up
    grown = next(i for i, count in enumerate(service.counts) if count == 4)
    assert grown <= 10 + 25  # saturated replicas show at most 100 each: it takes some steps
    before = len(service.counts)
    service.run([20] * 60)
    shrunk = next(i for i, count in enumerate(service.counts) if i >= before and count < 4)
    assert shrunk - before == 19  # 20 s after the last high second
    assert (service.count, service.turns) == (1, 1)


def test_a_ramp_is_followed_in_one_direction():
    service = Service(scale_of(cpu=(40, 80)))
    service.run(range(40, 600))
    assert service.count == 8
    assert service.turns == 0
    assert service.changes <= 8
    service.run(reversed(range(20, 600)))
    assert service.count == 1
    assert service.turns == 1


def test_a_spike_shorter_than_a_second_look_grows_once_and_is_forgotten():
    service = Service(scale_of(cpu=(40, 80)), saturates_at=None)
    service.run([30] * 30 + [500] * 2 + [30] * 60)
    assert max(service.counts) <= 5  # one step: the load alone cannot ask for more
    assert service.count == 1
    assert service.turns == 1


def test_dips_shorter_than_the_window_never_shrink():
    service = Service(scale_of(cpu=(40, 80)), count=4)
    service.run(([240] * 10 + [20] * 15) * 10)
    assert set(service.counts) == {4}


def test_replicas_follow_a_slow_sine_and_change_direction_as_often():
    service = Service(scale_of(cpu=(40, 80)))
    periods = 5
    service.run(200 + 180 * math.sin(2 * math.pi * s / 240) for s in range(240 * periods))
    assert service.turns <= 2 * periods
    assert service.changes <= 8 * periods


def test_a_sine_faster_than_the_window_settles_at_the_count_of_its_peaks():
    service = Service(scale_of(cpu=(40, 80)))
    service.run(200 + 180 * math.sin(2 * math.pi * s / 8) for s in range(200))
    settled = service.counts[60:]
    assert len(set(settled)) == 1
    assert settled[0] >= 4


def test_noise_on_a_constant_load_settles():
    generator = random.Random(5)  # noqa: S311 - noise, the same each time
    service = Service(scale_of(cpu=(40, 80)), saturates_at=None)
    service.run(max(0, generator.gauss(200, 12)) for _ in range(1200))
    assert service.turns == 0, service.reasons
    assert len(service.reasons) <= 2, service.reasons


def test_noise_around_the_upper_threshold_does_not_flap():
    generator = random.Random(7)  # noqa: S311 - noise, the same each time
    service = Service(scale_of(cpu=(40, 80)), count=2, saturates_at=None)
    service.run(max(0, generator.gauss(160, 16)) for _ in range(1200))
    assert service.turns == 0, service.reasons


def test_replicas_that_take_long_to_start_are_waited_for():
    service = Service(scale_of(cpu=(40, 80)), start_s=60)
    service.run([100] * 200)
    assert service.count == 2
    assert len(service.reasons) == 1
