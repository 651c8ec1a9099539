"""Cron expressions as sets of numbers, asked for times of the wall clock. No zones here: see cadence."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import monthrange
from dataclasses import dataclass, field
from datetime import datetime

# 29 February falls on a given weekday once in 28 years, over 2100 once in 40.
RAREST_YEARS = 50


@dataclass(slots=True)
class Days:
    """Which days of a month match: by date, by weekday, or by both."""

    dates: set[int] = field(default_factory=set)
    nearest: set[int] = field(default_factory=set)  # 15W: the weekday Monday to Friday nearest to the 15th
    last: bool = False  # L
    last_workday: bool = False  # LW
    weekdays: set[int] = field(default_factory=set)  # 0 is Sunday
    nth: set[tuple[int, int]] = field(default_factory=set)  # (5, 3): the third Friday
    last_weekdays: set[int] = field(default_factory=set)  # 5L: the last Friday
    both: bool = False
    _months: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)

    def of(self, year: int, month: int) -> tuple[int, ...]:
        """The matching days of a month, ascending."""
        # There are 28 months: seven weekdays to begin with, four lengths.
        kind = monthrange(year, month)
        days = self._months.get(kind)
        if days is None:
            days = self._months[kind] = self._find((kind[0] + 1) % 7, kind[1])
        return days

    def _find(self, first: int, length: int) -> tuple[int, ...]:
        by_date = self._by_date(first, length)
        by_weekday = {
            day
            for day in range(1, length + 1)
            if (weekday := (first + day - 1) % 7) in self.weekdays
            or (weekday, (day + 6) // 7) in self.nth
            or (weekday in self.last_weekdays and day + 7 > length)
        }
        return tuple(sorted(by_date & by_weekday if self.both else by_date | by_weekday))

    def _by_date(self, first: int, length: int) -> set[int]:
        found = {day for day in self.dates if day <= length}
        found |= {_workday(day, first, length) for day in self.nearest if day <= length}
        if self.last:
            found.add(length)
        if self.last_workday:
            found.add(_workday(length, first, length))
        return found


def _workday(day: int, first: int, length: int) -> int:
    """The day from Monday to Friday that is nearest, within the month."""
    weekday = (first + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else 3
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


@dataclass(frozen=True, slots=True)
class Cron:
    """A checked expression.

    fixed: neither minute nor hour begins with `*`: it names times of the day, and is no pattern.
    """

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: Days
    months: tuple[int, ...]
    fixed: bool

    def at_or_after(self, wall: datetime) -> datetime | None:
        """The first matching time >= wall, in whole seconds; None: there is none before the year 9999."""
        if self._on(wall) and (time := self._first_time(wall.hour, wall.minute, wall.second)):
            return wall.replace(hour=time[0], minute=time[1], second=time[2])
        year, month, day = wall.year, wall.month, wall.day + 1
        for _ in range(12 * RAREST_YEARS):
            if month in self.months:
                days = self.days.of(year, month)
                place = bisect_left(days, day)
                if place < len(days):
                    return datetime(year, month, days[place], self.hours[0], self.minutes[0], self.seconds[0])
            year, month, day = (year, month + 1, 1) if month < 12 else (year + 1, 1, 1)
            if year > 9998:
                return None
        return None

    def at_or_before(self, wall: datetime) -> datetime | None:
        """The last matching time <= wall; None: there is none in the fifty years before."""
        if self._on(wall) and (time := self._last_time(wall.hour, wall.minute, wall.second)):
            return wall.replace(hour=time[0], minute=time[1], second=time[2])
        year, month, day = wall.year, wall.month, wall.day
        for _ in range(12 * RAREST_YEARS):
            if month in self.months:
                days = self.days.of(year, month)
                place = bisect_left(days, day)
                if place:
                    return datetime(
                        year, month, days[place - 1], self.hours[-1], self.minutes[-1], self.seconds[-1]
                    )
            year, month, day = (year, month - 1, 32) if month > 1 else (year - 1, 12, 32)
            if year < 1:
                return None
        return None

    def _on(self, wall: datetime) -> bool:
        return wall.month in self.months and wall.day in self.days.of(wall.year, wall.month)

    def _first_time(self, hour: int, minute: int, second: int) -> tuple[int, int, int] | None:
        if hour in self.hours:
            if minute in self.minutes and second <= self.seconds[-1]:
                return hour, minute, self.seconds[bisect_left(self.seconds, second)]
            if minute < self.minutes[-1]:
                return hour, self.minutes[bisect_right(self.minutes, minute)], self.seconds[0]
        if hour < self.hours[-1]:
            return self.hours[bisect_right(self.hours, hour)], self.minutes[0], self.seconds[0]
        return None

    def _last_time(self, hour: int, minute: int, second: int) -> tuple[int, int, int] | None:
        if hour in self.hours:
            if minute in self.minutes and second >= self.seconds[0]:
                return hour, minute, self.seconds[bisect_right(self.seconds, second) - 1]
            if minute > self.minutes[0]:
                return hour, self.minutes[bisect_left(self.minutes, minute) - 1], self.seconds[-1]
        if hour > self.hours[0]:
            return self.hours[bisect_left(self.hours, hour) - 1], self.minutes[-1], self.seconds[-1]
        return None
