"""Which ticks run, which are skipped and why: pure decisions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuety.model import Missed, Overlap
from queuety.policy.ticks import MOST_COUNTED, Skipped, due, jitter, place

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
NEVER = datetime.max.replace(tzinfo=UTC)
SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class Every:
    """Ticks at whole multiples of so many seconds since noon, for good or until an end."""

    seconds: int
    end: datetime = NEVER

    def next(self, after: datetime) -> datetime | None:
        tick = NOON + ((after - NOON) // SECOND // self.seconds + 1) * self.seconds * SECOND
        return tick if tick < self.end else None

    def latest(self, after: datetime, upto: datetime, limit: int) -> list[datetime]:
        found: list[datetime] = []
        while (tick := self.next(after)) is not None and tick <= upto:
            found.append(tick)
            after = tick
        return found[-limit:]

    def count(self, after: datetime, upto: datetime, most: int) -> int:
        return min(most, len(self.latest(after, upto, 1 << 30)))


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_a_tick_that_is_due_now_runs_and_the_next_is_told():
    found = due(Every(60), at(60), at(60.2), Missed.ONCE, 100)

    assert (found.runs, found.skipped, found.next) == ([at(60)], [], at(120))


def test_ticks_of_the_last_seconds_each_run():
    found = due(Every(1), at(5), at(9.5), Missed.ONCE, 100)

    assert found.runs == [at(5), at(6), at(7), at(8), at(9)]
    assert found.skipped == []


def test_of_missed_ticks_the_last_runs_for_all_and_the_rest_are_told():
    found = due(Every(300), at(300), at(3700), Missed.ONCE, 100)

    assert found.runs == [at(3600)]
    assert [(gap.first, gap.last, gap.ticks) for gap in found.skipped] == [(at(300), at(3300), 11)]
    assert "missed" in found.skipped[0].reason


def test_one_missed_tick_runs_without_a_word():
    found = due(Every(300), at(300), at(400), Missed.ONCE, 100)

    assert (found.runs, found.skipped) == ([at(300)], [])


def test_missed_ticks_are_not_made_up_for_beside_one_that_is_due_now():
    found = due(Every(300), at(300), at(3601), Missed.ONCE, 100)

    assert found.runs == [at(3600)]
    assert [(gap.first, gap.last, gap.ticks) for gap in found.skipped] == [(at(300), at(3300), 11)]


def test_skip_runs_none_of_the_missed():
    found = due(Every(300), at(300), at(3700), Missed.SKIP, 100)

    assert found.runs == []
    assert [(gap.first, gap.last, gap.ticks) for gap in found.skipped] == [(at(300), at(3600), 12)]
    assert found.next == at(3900)


def test_all_runs_the_last_ones_within_its_limit():
    found = due(Every(300), at(300), at(3700), Missed.ALL, 5)

    assert found.runs == [at(2400), at(2700), at(3000), at(3300), at(3600)]
    assert [(gap.first, gap.last, gap.ticks) for gap in found.skipped] == [(at(300), at(2100), 7)]
    assert "5" in found.skipped[0].reason


def test_all_within_its_limit_skips_none():
    assert due(Every(300), at(300), at(3700), Missed.ALL, 12).skipped == []


def test_a_schedule_that_is_over_has_no_next_tick():
    found = due(Every(60, end=at(100)), at(60), at(61), Missed.ONCE, 100)

    assert (found.runs, found.next) == ([at(60)], None)


def test_bookkeeping_between_two_ticks_runs_none_twice():
    found = due(Every(60), at(30), at(61), Missed.ONCE, 100)

    assert found.runs == [at(60)]


def test_a_gap_without_end_is_counted_up_to_a_bound():
    found = due(Every(1), at(1), at(5000.5), Missed.SKIP, 100)

    assert found.skipped[0].ticks == MOST_COUNTED
    assert found.skipped[0].last == at(4990)


@given(
    every=st.integers(1, 400),
    since=st.integers(0, 3000),
    gone=st.floats(0, 5000, allow_nan=False),
    missed=st.sampled_from(Missed),
    limit=st.integers(1, 40),
)
def test_every_tick_up_to_now_is_run_or_told_and_none_is_both(every, since, gone, missed, limit):
    cadence, now = Every(every), at(since + gone)
    ticks = cadence.latest(at(since) - timedelta(microseconds=1), now, 1 << 30)

    found = due(cadence, at(since), now, missed, limit)

    told = [tick for gap in found.skipped for tick in ticks if gap.first <= tick <= gap.last]
    assert sorted(found.runs + told) == ticks
    assert all(
        gap.ticks == min(MOST_COUNTED, sum(gap.first <= tick <= gap.last for tick in ticks))
        for gap in found.skipped
    )
    assert found.next == cadence.next(now)
    late = [tick for tick in found.runs if tick <= now - timedelta(seconds=10)]
    assert len(late) <= {Missed.ONCE: 1, Missed.SKIP: 0, Missed.ALL: limit}[missed]


# ── overlap ───────────────────────────────────────────────────────────────────────────────────────


def test_allow_runs_all_whatever_runs():
    placed = place([at(1), at(2)], Overlap.ALLOW, 7, None)

    assert (placed.runs, placed.skipped, placed.buffered) == ([at(1), at(2)], [], None)


def test_skip_runs_one_if_nothing_runs():
    placed = place([at(1), at(2)], Overlap.SKIP, None, None)

    assert placed.runs == [at(1)]
    assert [gap.first for gap in placed.skipped] == [at(2)]


def test_skip_runs_none_while_the_job_before_has_not_ended_and_names_it():
    placed = place([at(1)], Overlap.SKIP, 7, None)

    assert (placed.runs, placed.buffered) == ([], None)
    assert placed.skipped == [Skipped(at(1), at(1), 1, "job 7 has not ended")]


def test_buffer_keeps_one_and_skips_the_next():
    first = place([at(1)], Overlap.BUFFER, 7, None)
    second = place([at(2)], Overlap.BUFFER, 7, first.buffered)

    assert (first.runs, first.skipped, first.buffered) == ([], [], at(1))
    assert (second.runs, second.buffered) == ([], at(1))
    assert [gap.first for gap in second.skipped] == [at(2)]


def test_a_buffered_tick_runs_before_the_one_that_is_due():
    placed = place([at(2)], Overlap.BUFFER, None, at(1))

    assert (placed.runs, placed.skipped, placed.buffered) == ([at(1)], [], at(2))


def test_a_buffered_tick_is_not_lost_when_overlap_is_allowed_later():
    assert place([at(2)], Overlap.ALLOW, 7, at(1)).runs == [at(1), at(2)]


@given(st.integers(0, 6), st.sampled_from(Overlap), st.booleans(), st.booleans())
def test_overlap_loses_no_tick(count, overlap, busy, waiting):
    buffered = at(0) if waiting and overlap is Overlap.BUFFER else None
    runs = [at(second) for second in range(1, count + 1)]

    placed = place(runs, overlap, 7 if busy else None, buffered)

    left = [placed.buffered] if placed.buffered else []
    told = [*placed.runs, *left, *(gap.first for gap in placed.skipped)]
    assert sorted(told) == [*([buffered] if buffered else []), *runs]
    if overlap is not Overlap.ALLOW:
        assert len(placed.runs) <= (0 if busy else 1)


# ── jitter ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("most", [0.0, 0.5, 3600.0])
def test_jitter_stays_within_its_bound_and_is_the_same_whoever_asks(most):
    found = [jitter("nightly", at(second), most) for second in range(100)]

    assert all(0 <= value <= most for value in found)
    assert found == [jitter("nightly", at(second), most) for second in range(100)]
    assert len(set(found)) == (100 if most else 1)
