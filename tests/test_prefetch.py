from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queuety.policy.prefetch import next_size


def test_quick_jobs_are_claimed_in_batches_that_grow_fourfold():
    sizes = [1]
    while sizes[-1] < 500:
        sizes.append(next_size(sizes[-1], sizes[-1], sizes[-1] * 10e-6))

    assert sizes == [1, 4, 16, 64, 256, 500]


def test_slow_jobs_are_claimed_one_at_a_time():
    assert next_size(1, 1, 30.0) == 1


def test_a_batch_falls_at_once_to_what_the_mean_says():
    assert next_size(500, 500, 5.0) == 5
    assert next_size(500, 3, 3.0) == 1


def test_a_claim_that_ran_nothing_keeps_its_size():
    assert next_size(16, 0, 0.0) == 16


def test_jobs_too_quick_for_the_clock_count_as_quick():
    assert next_size(200, 200, 0.0) == 500


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, 1e9))
def test_the_size_is_always_within_one_and_the_cap(previous, ran, busy_s):
    assert 1 <= next_size(previous, ran, busy_s) <= 500
