"""Clock changes of real zones, against a walk over every real minute around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from queuety.policy.cadence import Cadence, cadence
from tests.expressions import CHANGES

MINUTE = timedelta(minutes=1)
AROUND = timedelta(hours=40)

# Each expression with what it says, told a second time in Python, and whether it is a fixed time.
RULES: dict[str, tuple[Callable[[datetime], bool], bool]] = {
    "30 2 * * *": (lambda wall: (wall.hour, wall.minute) == (2, 30), True),
    "0 0 * * *": (lambda wall: (wall.hour, wall.minute) == (0, 0), True),
    "10,50 0-3 * * *": (lambda wall: wall.hour <= 3 and wall.minute in (10, 50), True),
    "0-59/20 23,1 * * 6,0": (
        lambda wall: wall.hour in (23, 1) and wall.minute % 20 == 0 and wall.isoweekday() in (6, 7),
        True,
    ),
    "45 3 * * *": (lambda wall: (wall.hour, wall.minute) == (3, 45), True),
    "*/15 * * * *": (lambda wall: wall.minute % 15 == 0, False),
    "7 * * * *": (lambda wall: wall.minute == 7, False),
    "*/25 2 * * *": (lambda wall: wall.hour == 2 and wall.minute % 25 == 0, False),
    "30 */3 * * *": (lambda wall: wall.hour % 3 == 0 and wall.minute == 30, False),
}


def real_minutes(zone: str, day: str) -> list[tuple[datetime, datetime]]:
    """Every real minute around noon UTC of a day, with what the wall clock shows."""
    noon = datetime.fromisoformat(day).replace(hour=12, tzinfo=UTC)
    count = 2 * (AROUND // MINUTE)
    instants = [noon - AROUND + step * MINUTE for step in range(count)]
    return [(at, at.astimezone(ZoneInfo(zone)).replace(tzinfo=None)) for at in instants]


def expected(
    walk: list[tuple[datetime, datetime]], says: Callable[[datetime], bool], *, fixed: bool
) -> Iterator[datetime]:
    """A pattern ticks whenever the clock shows it; a fixed time when the clock first reaches or passes it."""
    seen = walk[0][1] - MINUTE
    for at, wall in walk:
        if fixed:
            reached = (seen + step * MINUTE for step in range(1, (wall - seen) // MINUTE + 1))
            if any(says(time) for time in reached):
                yield at
            seen = max(seen, wall)
        elif says(wall):
            yield at


def made(text: str, zone: str) -> Cadence:
    return cadence(cron=text, every_s=None, timezone=zone, anchor=datetime(2000, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("zone", "day"), [(zone, day) for zone, days in CHANGES.items() for day in days], ids=lambda value: value
)
def test_ticks_around_a_clock_change_are_those_of_every_real_minute(zone: str, day: str):
    walk = real_minutes(zone, day)
    first, last = walk[0][0], walk[-1][0]
    offsets = {wall - at.replace(tzinfo=None) for at, wall in walk}
    assert len(offsets) == 2, "the clock does not change on that day"

    for text, (says, fixed) in RULES.items():
        ticks = list(expected(walk, says, fixed=fixed))
        rule = made(text, zone)

        found = [first - MINUTE]
        while (tick := rule.next(found[-1])) is not None and tick <= last:
            found.append(tick)
        assert found[1:] == ticks, f"{text}: next"
        assert rule.latest(first - MINUTE, last, 10_000) == ticks, f"{text}: latest"
        assert rule.count(first - MINUTE, last, 10_000) == len(ticks), f"{text}: count"


@pytest.mark.parametrize(
    ("zone", "day"), [(zone, day) for zone, days in CHANGES.items() for day in days], ids=lambda value: value
)
def test_what_comes_on_the_day_of_a_change_only_is_found_from_years_away(zone: str, day: str):
    date = datetime.fromisoformat(day)
    first, last = (date.replace(tzinfo=UTC) + timedelta(days=days) for days in (-1000, 1000))
    near = date.replace(tzinfo=UTC) - timedelta(days=2)

    for text in ("*/30 * * * *", "30 0-3 * * *"):
        minute, hour = text.split()[:2]
        rule = made(f"{minute} {hour} {max(1, date.day - 1)}-{date.day} {date.month} *", zone)
        found = [first]
        while (tick := rule.next(found[-1])) is not None and tick <= last:
            found.append(tick)

        assert rule.next(first + timedelta(days=700)) == rule.next(near)
        assert rule.latest(first, last, 10_000) == found[1:]
        assert rule.count(first, last, 10_000) == len(found) - 1
