"""Time zones as stretches of constant offset: what the wall clock of a zone shows at which instant.

Instants are naive datetimes in UTC, whole seconds; wall-clock times are naive datetimes of the zone.
"""

from __future__ import annotations

import difflib
import re
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from queuety.errors import UsageError
from queuety.units import shown

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
# No zone has ever moved its clock by more than a day.
LARGEST_MOVE = timedelta(days=2)
# The years whose offsets can be asked for: at their ends there is room for every offset.
FIRST_YEAR, LAST_YEAR = 2, 9998

# In every system's list, but what they mean differs from host to host, or is nothing.
_NOT_ZONES = {"localtime", "Factory", "posixrules"}
_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])0?([0-9]{1,2})(?::?00)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch begin <= instant < end in which the zone's offset does not change.

    seen: the latest time that the wall clock had shown before `begin`. Earlier than `first`: the clock jumped,
    and what lies between was never shown. Later than `first`: the clock was put back, and repeats.
    """

    begin: datetime
    end: datetime
    offset: timedelta
    seen: datetime

    @property
    def first(self) -> datetime:
        """What the wall clock shows at `begin`."""
        return self.begin + self.offset

    @property
    def last(self) -> datetime:
        """What the wall clock shows in the last second."""
        return self.end + self.offset - SECOND


def check_zone(name: str) -> str:
    """Return the name if it is exactly one of the IANA zones known here; otherwise a UsageError with suggestions."""
    if not isinstance(name, str) or name not in zone_names():
        raise UsageError(f"timezone {shown(name)} is not the name of a time zone", _suggestion(name))
    return name


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """The zones of this host and of the tzdata package."""
    return frozenset(zoneinfo.available_timezones() - _NOT_ZONES)


def segment(zone: str, instant: datetime) -> Segment:
    """The segment that holds the instant. One that spans New Year (UTC) is told in two parts."""
    return next(part for part in segments(zone, instant.year) if instant < part.end)


@lru_cache(maxsize=4096)
def segments(zone: str, year: int) -> tuple[Segment, ...]:
    """The segments of one year in UTC, in order, without a hole."""
    start, end = datetime(year, 1, 1), datetime(year + 1, 1, 1)
    changes = list(_changes(zone, start, end))
    before = list(_changes(zone, start - LARGEST_MOVE, start))
    begins = [start, *(at for at, _ in changes)]
    ends = [*begins[1:], end]
    found: list[Segment] = []
    for begin, until in zip(begins, ends, strict=True):
        shows = [at + was for at, was in (*before, *changes) if begin - LARGEST_MOVE < at <= begin]
        seen = max([begin + offset_at(zone, begin - SECOND), *shows])
        found.append(Segment(begin, until, offset_at(zone, begin), seen))
    return tuple(found)


def offset_at(zone: str, instant: datetime) -> timedelta:
    """The zone's offset from UTC at an instant."""
    offset = instant.replace(tzinfo=UTC).astimezone(_zone(zone)).utcoffset()
    assert offset is not None
    return offset


@lru_cache(maxsize=1024)
def _zone(name: str) -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo(name)


def _changes(zone: str, start: datetime, end: datetime) -> Iterator[tuple[datetime, timedelta]]:
    """Each instant within start < instant < end at which the offset changes, and the offset until then.

    Looks once a day: in all of the tz database no two changes are less than six days apart.
    """
    low, was = start, offset_at(zone, start)
    while low < end - SECOND:
        high = min(low + DAY, end - SECOND)
        now = offset_at(zone, high)
        if now != was:
            yield _between(zone, low, high), was
        low, was = high, now


def _between(zone: str, low: datetime, high: datetime) -> datetime:
    """The first second with another offset than at `low`; at `high` it is another one."""
    was = offset_at(zone, low)
    while high - low > SECOND:
        middle = low + (high - low) // 2
        middle = middle.replace(microsecond=0)
        if offset_at(zone, middle) == was:
            low = middle
        else:
            high = middle
    return high


def _suggestion(name: object) -> str:
    """What may have been meant: an offset, another case, an abbreviation, a slip of the pen."""
    usual = "give a name of the IANA database, such as Asia/Seoul, Europe/Berlin or UTC"
    if not isinstance(name, str) or not name.strip() or len(name) > 64:
        return usual
    text, known = name.strip(), zone_names()
    if match := _OFFSET.fullmatch(text):
        sign, hours = match.groups()
        fixed = f"Etc/GMT{'-' if sign == '+' else '+'}{int(hours)}"
        if fixed in known:
            meant = f"{fixed} (sic) for UTC{sign}{int(hours)} all year"
            return f"an offset is no zone: give a city such as Europe/Berlin, or {meant}"
    by_case = {zone.lower(): zone for zone in sorted(known)}
    places = [by_case[text.lower()]] if text.lower() in by_case else []
    if not places and text.isalpha() and len(text) <= 5:
        places = _abbreviated(text.upper())
    if not places:
        close = difflib.get_close_matches(text.lower(), by_case, n=3, cutoff=0.7)
        cities = {zone.rpartition("/")[2]: zone for zone in by_case}
        close += [
            cities[city]
            for city in difflib.get_close_matches(text.lower().replace(" ", "_"), cities, 2, 0.85)
        ]
        places = list(dict.fromkeys(by_case[zone] for zone in close))
    return f"did you mean {' or '.join(places[:3])}?" if places else usual


def _abbreviated(letters: str) -> list[str]:
    """Zones of a region whose clocks were called so lately, those first that are named for a city."""
    found = []
    for name in sorted(zone_names()):
        if "/" in name and not name.startswith("Etc/"):
            days = (datetime(2025, month, 1, tzinfo=_zone(name)) for month in (1, 7))
            if any(day.tzname() == letters for day in days):
                found.append(name)
    return sorted(found, key=lambda name: not name.startswith(("Asia/Seoul", "Europe/", "America/New")))
