"""The peak of storages that come to life and end."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.estimation.memory import PARTS, Lifetime, peak_memory

lifetimes = st.lists(
    st.builds(
        Lifetime,
        size_bytes=st.integers(0, 1000),
        birth=st.integers(0, 20),
        end=st.none() | st.integers(0, 25),
        part=st.sampled_from(PARTS),
    ),
    max_size=12,
)


def in_use(lives, moment):
    return sum(
        one.size_bytes
        for one in lives
        if one.birth <= moment and (one.end is None or one.end > moment)
    )


@given(lifetimes)
def test_the_peak_is_the_most_that_is_in_use_at_any_moment(lives):
    assert peak_memory(lives).peak_bytes == max(in_use(lives, moment) for moment in range(26))


@given(lifetimes)
def test_parts_at_the_peak_are_those_of_one_moment(lives):
    found = peak_memory(lives)
    moments = [
        {part: in_use([one for one in lives if one.part == part], moment) for part in PARTS}
        for moment in range(-1, 26)
    ]
    assert found.parts in moments


@given(lifetimes, lifetimes)
def test_more_storages_never_lower_the_peak(lives, more):
    both = peak_memory([*lives, *more]).peak_bytes
    assert both >= peak_memory(lives).peak_bytes
    assert both <= peak_memory(lives).peak_bytes + peak_memory(more).peak_bytes
