"""Cadences: at which instants a schedule ticks. Pure: no clock, no database.

A cron expression speaks of wall-clock times of a zone; an interval of real time. The rule for clock changes:

- A fixed time (neither minute nor hour begins with `*`) ticks when the wall clock first reaches or passes it. So in
  the gap it ticks once, right after the gap, and in the repeated hour once, the first time round.
- Everything else is a pattern and follows real time: nothing in the gap, every instant in the repeated hour.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile

from queuety import units
from queuety.errors import UsageError
from queuety.policy.cron import Cron
from queuety.policy.fields import check_cron, parse_cron
from queuety.policy.zones import FIRST_YEAR, LARGEST_MOVE, LAST_YEAR, SECOND, Segment, check_zone, segment

__all__ = ["Cadence", "cadence", "check_cron", "check_every", "check_zone"]

SHORTEST_S = 1.0
LONGEST_S = 10 * 365.25 * 86_400
EVERY_ACCEPTED = "give seconds or words such as 30 minutes, 1 hour 30 minutes, 1h30m: 1 second to 10 years"

_ALL_TIME = datetime(FIRST_YEAR, 1, 1), datetime(LAST_YEAR, 12, 31)
_WORDS = {
    r"milliseconds?": "ms",
    r"seconds?|secs?": "s",
    r"minutes?|mins?": "m",
    r"hours?|hrs?": "h",
    r"days?": "d",
}


@dataclass(frozen=True, slots=True)
class Cadence:
    """The ticks of one schedule. All instants given and returned are aware; returned ones are in UTC.

    Ticks lie within starts_at <= tick < ends_at.
    """

    rule: _Wall | _Interval
    starts_at: datetime | None = None
    ends_at: datetime | None = None

    def next(self, after: datetime) -> datetime | None:
        """The first tick strictly after an instant; None: never again."""
        return next(self._ticks(after, datetime.max.replace(tzinfo=UTC)), None)

    def latest(self, after: datetime, upto: datetime, limit: int) -> list[datetime]:
        """The last `limit` ticks within after < tick <= upto, ascending. Costs as much as it returns."""
        low, high = self._bounds(after, upto)
        ticks = takewhile(lambda tick: tick >= low, self.rule.backward(high))
        return [tick.replace(tzinfo=UTC) for tick in islice(ticks, limit)][::-1]

    def count(self, after: datetime, upto: datetime, most: int) -> int:
        """How many ticks there are within after < tick <= upto; counting stops at `most`."""
        return sum(1 for _ in islice(self._ticks(after, upto), most))

    def _ticks(self, after: datetime, upto: datetime) -> Iterator[datetime]:
        low, high = self._bounds(after, upto)
        for tick in takewhile(lambda tick: tick <= high, self.rule.forward(low)):
            yield tick.replace(tzinfo=UTC)

    def _bounds(self, after: datetime, upto: datetime) -> tuple[datetime, datetime]:
        """The first and the last instant, to the microsecond, at which a tick counts."""
        low, high = _plain(after) + _MICROSECOND, _plain(upto)
        if self.starts_at is not None:
            low = max(low, _plain(self.starts_at))
        if self.ends_at is not None:
            high = min(high, _plain(self.ends_at) - _MICROSECOND)
        return low, high


def cadence(
    *,
    cron: str | None,
    every_s: float | None,
    timezone: str,
    anchor: datetime,
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
) -> Cadence:
    """Make the cadence of a cron expression or of an interval.

    timezone: the zone in which the expression is read.
    anchor:   the first tick of an interval; starts_at takes its place if it is given.
    Raises UsageError for what cannot be meant.
    """
    if (cron is None) == (every_s is None):
        raise UsageError("a schedule has either a cron expression or an interval", "give cron= or every=")
    zone = check_zone(timezone)
    anchor = units.instant(anchor, what="anchor")
    starts_at = None if starts_at is None else units.instant(starts_at, what="starts_at")
    ends_at = None if ends_at is None else units.instant(ends_at, what="ends_at")
    if starts_at is not None and ends_at is not None and ends_at <= starts_at:
        raise UsageError(
            f"ends_at={ends_at.isoformat()} is not after starts_at={starts_at.isoformat()}", "end it later"
        )
    rule: _Wall | _Interval
    if cron is not None:
        rule = _Wall(parse_cron(cron), zone)
    else:
        every = timedelta(seconds=check_every(every_s))
        rule = _Interval(_plain(anchor if starts_at is None else starts_at), every)
    return Cadence(rule, starts_at, ends_at)


def check_every(value: object) -> float:
    """Read an interval: `30 minutes`, `1h30m`, 90 or a timedelta. Returns seconds, 1 s to 10 years."""
    read = value
    if isinstance(value, str):
        read = value.strip().lower()[:200]
        for words, unit in _WORDS.items():
            read = re.sub(rf"(?<=[0-9 ])(?:{words})(?![a-z])", unit, read)
    try:
        seconds = units.seconds(read, minimum=SHORTEST_S, maximum=LONGEST_S)
    except UsageError:
        raise UsageError(f"every={units.shown(value)} is not an interval", EVERY_ACCEPTED) from None
    return timedelta(seconds=seconds).total_seconds()


@dataclass(frozen=True, slots=True)
class _Interval:
    """Ticks at first + k * every, k >= 0: real time, without drift."""

    first: datetime
    every: timedelta

    def forward(self, low: datetime) -> Iterator[datetime]:
        """Ticks >= low."""
        steps = max(0, -((self.first - low) // self.every))
        yield from self._walk(steps, 1)

    def backward(self, high: datetime) -> Iterator[datetime]:
        """Ticks <= high, the latest first."""
        yield from self._walk((high - self.first) // self.every, -1)

    def _walk(self, steps: int, by: int) -> Iterator[datetime]:
        while steps >= 0 and steps * self.every <= _ALL_TIME[1] - self.first:
            yield self.first + steps * self.every
            steps += by


@dataclass(frozen=True, slots=True)
class _Wall:
    """Ticks where the wall clock of a zone shows what the expression says.

    Both walks go from segment to segment; a long time without a match is jumped over, so that what comes once in 28
    years does not ask for the clock changes of 28 years.
    """

    cron: Cron
    zone: str

    def forward(self, low: datetime) -> Iterator[datetime]:
        """Ticks >= low."""
        at = _whole(low)
        while at < _ALL_TIME[1]:
            part = segment(self.zone, at)
            if at == part.begin and self._due_in_gap(part):
                yield at
                at += SECOND
            free = self._shown(part, at)
            while (wall := self.cron.at_or_after(free)) is not None and wall <= part.last:
                yield wall - part.offset
                free = wall + SECOND
            at = self._onward(part, free, wall)

    def backward(self, high: datetime) -> Iterator[datetime]:
        """Ticks <= high, the latest first."""
        at = high.replace(microsecond=0)
        while at >= _ALL_TIME[0]:
            part = segment(self.zone, at)
            floor = self._shown(part, part.begin)
            free = at + part.offset
            while (wall := self.cron.at_or_before(free)) is not None and wall >= floor:
                yield wall - part.offset
                free = wall - SECOND
            if self._due_in_gap(part) and not (floor == part.first and self.cron.at_or_after(floor) == floor):
                yield part.begin
            at = self._back(part, free, wall)

    def _shown(self, part: Segment, at: datetime) -> datetime:
        """What the wall clock shows; for a fixed time, the repeated hour is over before it begins."""
        wall = at + part.offset
        return max(wall, part.seen) if self.cron.fixed else wall

    def _due_in_gap(self, part: Segment) -> bool:
        """Whether a fixed time falls into what the wall clock skipped when this segment began."""
        if not self.cron.fixed or part.seen >= part.first:
            return False
        wall = self.cron.at_or_after(part.seen)
        return wall is not None and wall < part.first

    @staticmethod
    def _onward(part: Segment, free: datetime, wall: datetime | None) -> datetime:
        """Where to look next, if nothing matches within free <= time < wall: shortly before `wall`."""
        # A clock that is put back at the end of this segment shows times before `free` again.
        if part.last - free < LARGEST_MOVE:
            return part.end
        return _ALL_TIME[1] if wall is None else max(part.end, wall - LARGEST_MOVE)

    @staticmethod
    def _back(part: Segment, free: datetime, wall: datetime | None) -> datetime:
        """Where to look next, if nothing matches within wall < time <= free: shortly after `wall`."""
        # Before a clock was put back it had shown times after `free`.
        if free + SECOND < part.seen:
            return part.begin - SECOND
        return _ALL_TIME[0] - SECOND if wall is None else min(part.begin - SECOND, wall + LARGEST_MOVE)


_MICROSECOND = timedelta(microseconds=1)


def _plain(moment: datetime) -> datetime:
    """The instant in UTC, brought within the years for which there are ticks."""
    return min(max(moment.astimezone(UTC).replace(tzinfo=None), _ALL_TIME[0]), _ALL_TIME[1])


def _whole(moment: datetime) -> datetime:
    """Round up to whole seconds."""
    return moment if not moment.microsecond else moment.replace(microsecond=0) + SECOND
