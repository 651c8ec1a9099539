"""The size of an adaptive pool, as a function of what is seen."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuety.policy.scale import COUNTED, LATE, History, Limits, Look, decide, room, staffing


def look(size=1, busy=0, backlog=0, **rest):
    return Look(**{"elapsed_s": 1.0, "size": size, "alive": size, "busy": busy, "backlog": backlog, **rest})


def sizes(limits, looks, size=None):
    """The sizes that follow from these looks, each seen at the size that the one before has led to."""
    history, found = History(), []
    size = limits.minimum if size is None else size
    for one in looks:
        decision, history = decide(limits, replace(one, size=size, alive=size), history)
        size = decision.size
        found.append(size)
    return found


ONE_TO_SIX = Limits(1, 6, interval_s=1.0, grace_s=5.0)

# ── growing ───────────────────────────────────────────────────────────────────────────────────────


def test_a_jump_is_answered_at_once_while_nothing_is_known_of_the_jobs():
    assert sizes(ONE_TO_SIX, [look(backlog=200)]) == [6]


def test_busy_workers_are_counted_besides_the_backlog():
    assert sizes(ONE_TO_SIX, [look(busy=2, backlog=2, worked_s=2.0)], size=2) == [4]


def test_quick_jobs_share_the_workers_that_get_through_them_within_the_interval():
    known = History(worked_s=1.0, ended=1000.0)  # 1 ms each

    def size(backlog):
        return decide(ONE_TO_SIX, look(busy=1, backlog=backlog), known)[0].size

    assert [size(500), size(1500), size(4500)] == [1, 2, 5]


def test_jobs_that_last_longer_than_the_interval_have_a_worker_each():
    known = History(worked_s=100.0, ended=10.0)

    assert decide(ONE_TO_SIX, look(busy=1, backlog=3), known)[0].size == 4


def test_long_jobs_after_many_quick_ones_are_recognised_at_the_next_look():
    known = History(worked_s=1.0, ended=1000.0, present=0)

    assert decide(ONE_TO_SIX, look(busy=1, backlog=5, worked_s=1.0, age_s=1.0), known)[0].size == 6


def test_a_backlog_beyond_counting_calls_for_all():
    known = History(worked_s=1.0, ended=1_000_000.0)

    decision, _ = decide(ONE_TO_SIX, look(busy=1, backlog=COUNTED), known)

    assert decision.size == 6
    assert decision.reason == "10000 or more due, 1 busy"


def test_what_idle_workers_leave_alone_from_look_to_look_is_not_counted():
    looks = [look(), look(backlog=20, idle=1), *[look(backlog=20, idle=3)] * 10]

    assert sizes(ONE_TO_SIX, looks)[1] == 6, "a jump is answered at once"
    assert sizes(ONE_TO_SIX, looks)[-1] == 1


def test_what_comes_on_top_of_that_is_counted():
    looks = [look(backlog=20, idle=1)] * 20 + [look(backlog=22, busy=1, idle=1)]

    assert sizes(Limits(1, 30, grace_s=5.0), looks)[-2:] == [1, 3]


# ── memory ────────────────────────────────────────────────────────────────────────────────────────


def test_the_pool_grows_only_as_far_as_memory_allows():
    decision, _ = decide(ONE_TO_SIX, look(busy=1, backlog=200, room=2), History())

    assert (decision.size, decision.held) == (3, True)


def test_a_pool_is_not_made_smaller_for_want_of_memory():
    decision, _ = decide(ONE_TO_SIX, look(size=4, busy=4, backlog=200, worked_s=4.0, room=0), History())

    assert (decision.size, decision.held) == (4, True)


def test_room_that_comes_later_serves_what_is_needed_then():
    looks = [look(busy=1, backlog=9, worked_s=1.0, room=0)] * 3 + [look(busy=1, worked_s=1.0, room=5)]

    assert sizes(ONE_TO_SIX, looks) == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("free", "starting", "expected"),
    [
        (None, 0, None),
        (128, 0, 0),
        (177, 0, 0),
        (178, 0, 1),
        (328, 0, 4),
        (328, 3, 1),
        (0, 0, 0),
        (328, 9, 0),
    ],
)
def test_room_leaves_the_headroom_and_what_starting_workers_will_take(free, starting, expected):
    assert room(free, cost=50, headroom=128, starting=starting) == expected


# ── shrinking ─────────────────────────────────────────────────────────────────────────────────────


def test_the_pool_shrinks_once_it_was_quiet_for_the_grace():
    looks = [look(backlog=6), *[look()] * 7]

    assert sizes(ONE_TO_SIX, looks) == [6, 6, 6, 6, 6, 1, 1, 1]


def test_the_pool_shrinks_to_the_most_that_the_grace_has_seen():
    looks = [
        look(busy=6, worked_s=6.0),
        *[look(busy=busy, worked_s=busy) for busy in (1, 3, 1, 2, 1, 1, 1, 1)],
    ]

    assert sizes(ONE_TO_SIX, looks, size=6) == [6, 6, 6, 6, 6, 3, 3, 2, 2]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=20))
def test_a_dip_shorter_than_the_grace_changes_nothing(dips):
    looks = [look(busy=6, worked_s=6.0)]
    for dip in dips:
        looks += [look()] * dip + [look(busy=6, worked_s=6.0)]

    assert set(sizes(ONE_TO_SIX, looks, size=6)) == {6}


def test_time_in_which_nobody_looked_is_not_quiet():
    looks = [look(backlog=6), look(elapsed_s=3600.0), look()]

    assert sizes(ONE_TO_SIX, looks) == [6, 6, 6]


def test_without_a_grace_the_pool_shrinks_at_the_next_look():
    assert sizes(Limits(1, 6, grace_s=0.0), [look(backlog=6), look()]) == [6, 1]


# ── what always holds ─────────────────────────────────────────────────────────────────────────────

LIMITS = st.builds(
    lambda least, more, interval_s, grace_s, target_s: Limits(
        least, least + more, interval_s, grace_s, target_s
    ),
    st.integers(1, 10),
    st.integers(0, 50),
    st.floats(0.1, 10.0),
    st.floats(0.0, 60.0),
    st.just(0.0) | st.floats(0.01, 100.0),
)
LOOKS = st.builds(
    Look,
    elapsed_s=st.floats(0.0, 100.0),
    size=st.just(1),
    alive=st.just(1),
    busy=st.integers(0, 1),
    backlog=st.integers(0, COUNTED),
    held=st.integers(0, 500),
    ended=st.integers(0, 100_000),
    worked_s=st.floats(0.0, 1000.0),
    age_s=st.floats(0.0, 1000.0),
    start_s=st.floats(0.0, 100.0),
    idle=st.integers(0, 3),
    room=st.none() | st.integers(0, 10),
)


@given(LIMITS, st.lists(st.tuples(LOOKS, st.floats(0, 1)), max_size=30))
def test_the_size_is_within_the_limits_and_never_below_the_busy(limits, looks):
    history, size = History(), limits.minimum
    for one, share in looks:
        busy = round(share * size)
        decision, history = decide(limits, replace(one, size=size, alive=size, busy=busy), history)

        assert limits.minimum <= decision.size <= limits.maximum
        assert decision.size >= busy
        assert len(history.needs) <= limits.maximum - limits.minimum + 1
        assert sum(jobs for _, jobs in history.waiting) <= (one.backlog if limits.target_wait_s else 0)
        size = decision.size


@given(LIMITS, LOOKS, st.integers(0, COUNTED))
def test_a_larger_backlog_never_means_a_smaller_pool(limits, one, more):
    larger = replace(one, backlog=min(one.backlog + more, COUNTED), room=None)
    smaller = replace(one, room=None)
    known = History(worked_s=5.0, ended=50.0)

    assert decide(limits, larger, known)[0].size >= decide(limits, smaller, known)[0].size


@settings(deadline=None, max_examples=30)
@given(st.floats(0.5, 2.0), st.floats(0.0, 20.0), st.just(0.0) | st.floats(0.1, 20.0), LOOKS)
def test_a_constant_load_soon_has_a_constant_size(interval_s, grace_s, target_s, one):
    limits = Limits(1, 60, interval_s, grace_s, target_s)
    one = replace(one, elapsed_s=limits.interval_s, ended=3, worked_s=2.0, room=None)
    learned = 10 * max(10.0, 5 * limits.interval_s, limits.target_wait_s) + limits.grace_s

    found = sizes(limits, [one] * math.ceil(2 * learned / limits.interval_s))

    assert len(set(found[len(found) // 2 :])) == 1


# ── the target ────────────────────────────────────────────────────────────────────────────────────


def test_with_a_target_a_backlog_has_as_many_workers_as_it_takes_to_be_in_time():
    limits = Limits(1, 100, target_wait_s=10.0)
    known = History(worked_s=20.0, ended=20.0)  # 1 s each

    assert decide(limits, look(backlog=90), known)[0].size == 10  # 9 s are left once it is seen


def test_jobs_that_have_waited_have_less_time_left():
    limits = Limits(1, 100, target_wait_s=10.0)
    history = History(worked_s=20.0, ended=20.0)
    found = []
    for _ in range(11):  # nobody runs any
        decision, history = decide(limits, look(backlog=24), history)
        found.append(decision.size)

    assert found == [3, 3, 4, 4, 5, 6, 8, 12, 24, 24, 24]


def test_late_jobs_do_not_hurry_those_that_came_after_them():
    limits = Limits(1, 100, target_wait_s=10.0)
    history = History(worked_s=20.0, ended=20.0)
    for _ in range(10):
        _, history = decide(limits, look(backlog=3), history)

    decision, _ = decide(limits, look(backlog=3 + 15), history)

    assert decision.size == 3


def test_a_worker_that_takes_long_to_start_leaves_less_time():
    limits = Limits(1, 100, target_wait_s=10.0)
    known = History(worked_s=20.0, ended=20.0)

    assert decide(limits, look(backlog=90, start_s=6.0), known)[0].size == 30


def test_with_a_target_the_pool_keeps_what_the_arrivals_need_between_looks():
    limits = Limits(1, 100, grace_s=0.0, target_wait_s=1.0)
    known = History(worked_s=50.0, ended=50.0, rate=5.0, present=0)  # 1 s each

    size = decide(limits, look(size=5, ended=5, worked_s=5.0), known)[0].size

    assert size == staffing(5.0, 1.0, 100) == 8


@given(st.floats(0.01, 200.0), st.floats(0.0, 50.0))
def test_staffing_is_enough_and_not_more_than_enough(load, patience):
    size = staffing(load, patience, 1000)

    assert late(size, load, patience) <= LATE * (1 + 1e-6)
    assert size - 1 <= load or late(size - 1, load, patience) > LATE * (1 - 1e-6)


def late(workers, load, patience):
    """Share of the jobs that wait longer than `patience` mean services, from the textbook sums."""
    terms = [workers * math.log(load) - math.lgamma(workers + 1)]
    terms += [k * math.log(load) - math.lgamma(k + 1) for k in range(workers)]
    largest = max(terms)
    queueing = math.exp(terms[0] - largest) * workers / (workers - load)
    delayed = queueing / (queueing + sum(math.exp(term - largest) for term in terms[1:]))
    return delayed * math.exp(-(workers - load) * patience)


def test_no_load_needs_nobody_and_too_much_gets_all():
    assert staffing(0.0, 1.0, 10) == 0
    assert staffing(50.0, 1.0, 10) == 10
