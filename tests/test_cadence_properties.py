"""What holds for every cadence, whatever its expression and zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import assume, given
from hypothesis import strategies as st

from queuety.policy.cadence import Cadence, cadence, check_cron
from tests.expressions import ZONES, accepted, expressions, moments

START = datetime(2026, 1, 1, tzinfo=UTC)


@st.composite
def cadences(draw: st.DrawFn) -> tuple[Cadence, datetime]:
    """A cadence and an instant to begin at, often near a change of its zone's clock."""
    zone = draw(st.sampled_from(ZONES))
    after = draw(moments(zone)) + draw(st.sampled_from([timedelta(0), timedelta(microseconds=1)]))
    if draw(st.integers(0, 3)) == 0:
        every = draw(st.floats(1, 100_000))
        return cadence(cron=None, every_s=every, timezone=zone, anchor=START), after
    text = draw(expressions())
    assume(accepted(text))
    return cadence(cron=text, every_s=None, timezone=zone, anchor=START), after


def iterate(rule: Cadence, after: datetime, ticks: int) -> list[datetime]:
    found: list[datetime] = []
    while len(found) < ticks and (tick := rule.next(found[-1] if found else after)) is not None:
        found.append(tick)
    return found


@given(cadences())
def test_the_next_tick_is_strictly_later_and_there_is_none_between(case: tuple[Cadence, datetime]):
    rule, after = case

    ticks = iterate(rule, after, 8)

    assert len(ticks) == 8
    assert after < ticks[0]
    assert ticks == sorted(set(ticks))
    for before, tick in zip([after, *ticks], ticks, strict=False):
        middle = before + (tick - before) / 2
        assert rule.next(middle) == tick
        assert rule.next(tick - timedelta(microseconds=1)) == tick


@given(cadences(), st.integers(1, 8))
def test_looking_back_finds_what_looking_forward_found(case: tuple[Cadence, datetime], limit: int):
    rule, after = case
    ticks = iterate(rule, after, 8)

    assert rule.latest(after, ticks[-1], limit) == ticks[-limit:]
    assert rule.latest(after, ticks[-1], 100) == ticks
    assert rule.latest(after, ticks[-1] - timedelta(microseconds=1), 100) == ticks[:-1]
    assert rule.latest(ticks[0], ticks[-1], 100) == ticks[1:]
    assert rule.count(after, ticks[-1], 100) == 8
    assert rule.count(after, ticks[-1], limit) == limit


@given(cadences(), st.integers(0, 6), st.integers(0, 7))
def test_start_and_end_cut_out_a_part(case: tuple[Cadence, datetime], first: int, last: int):
    rule, after = case
    ticks = iterate(rule, after, 8)
    part = Cadence(rule.rule, ticks[first], ticks[last])

    assert iterate(part, after, 9) == ticks[first:last]
    assert part.latest(after, ticks[-1], 9) == ticks[first:last]


@given(expressions())
def test_the_plain_form_is_accepted_as_it_is(text: str):
    assume(accepted(text))

    assert check_cron(check_cron(text)) == check_cron(text)
