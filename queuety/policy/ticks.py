"""Which ticks of a schedule run, which are skipped, and why. Pure: the clock's time is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Protocol, assert_never

from queuety.model import Missed, Overlap

FRESH_S = 10.0  # a tick is missed if nobody has run it for so long
MOST_COUNTED = 1000  # ticks of one gap that are counted; of more it is said that there are more
MOST_FRESH = 1000  # a tick each second for FRESH_S, and room

_MICROSECOND = timedelta(microseconds=1)


class Cadence(Protocol):
    """The instants at which a schedule ticks, in UTC; see policy.cadence."""

    def next(self, after: datetime) -> datetime | None: ...
    def latest(self, after: datetime, upto: datetime, limit: int) -> list[datetime]: ...
    def count(self, after: datetime, upto: datetime, most: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Skipped:
    """Ticks in a row that do not run. ticks: how many, counted up to MOST_COUNTED."""

    first: datetime
    last: datetime
    ticks: int
    reason: str


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be done now. runs: in order.  next: the first tick after now; None: there is none."""

    runs: list[datetime]
    skipped: list[Skipped]
    next: datetime | None


def due(
    cadence: Cadence, since: datetime, now: datetime, missed: Missed, limit: int, *, fresh_s: float = FRESH_S
) -> Due:
    """Decide on all ticks from `since` up to now.

    missed: what becomes of those older than `fresh_s`.  limit: how many of them Missed.ALL runs, the latest.
    """
    before = since - _MICROSECOND
    border = max(before, now - timedelta(seconds=fresh_s))
    runs = cadence.latest(border, now, MOST_FRESH)
    skipped: list[Skipped] = []
    if cadence.latest(before, border, 1):
        match missed:
            case Missed.ONCE:
                made_up = [] if runs else cadence.latest(before, border, 1)
                said = (
                    "missed; the next tick runs in its place" if runs else "missed; the last one runs for all"
                )
            case Missed.SKIP:
                made_up, said = [], "missed"
            case Missed.ALL:
                made_up = cadence.latest(before, border, limit)
                said = f"missed; only the last {limit} are made up for"
            case _:
                assert_never(missed)
        skipped = _rest(cadence, before, border, made_up, said)
        runs = made_up + runs
    return Due(runs, skipped, cadence.next(now))


def _rest(
    cadence: Cadence, before: datetime, border: datetime, made_up: Sequence[datetime], reason: str
) -> list[Skipped]:
    """The missed ticks that are not made up for, as one gap."""
    if made_up:
        border = made_up[0] - _MICROSECOND
    first, last = cadence.next(before), cadence.latest(before, border, 1)
    if first is None or not last:
        return []
    return [Skipped(first, last[0], cadence.count(before, border, MOST_COUNTED), reason)]


@dataclass(frozen=True, slots=True)
class Placed:
    """What overlap leaves of the ticks that are due. buffered: the tick that waits; None: none does."""

    runs: list[datetime]
    skipped: list[Skipped]
    buffered: datetime | None


def place(
    runs: Sequence[datetime], overlap: Overlap, running: int | None, buffered: datetime | None
) -> Placed:
    """Hold the ticks that are due against the job of the one before.

    running: id of that job, if it has not ended.  buffered: the tick that waits for its end.
    """
    if overlap is Overlap.ALLOW:
        return Placed([*([buffered] if buffered else []), *runs], [], None)
    waiting = [*([buffered] if buffered else []), *runs]
    start = [] if running else waiting[:1]
    waiting = waiting[len(start) :]
    kept = waiting[0] if waiting and overlap is Overlap.BUFFER else None
    left = waiting[1:] if kept else waiting
    said = f"job {running} has not ended" if running else "the job of the tick before has not ended"
    if kept:
        said += ", and a tick waits for that already"
    return Placed(start, [Skipped(tick, tick, 1, said) for tick in left], kept)


def jitter(key: str, tick: datetime, most_s: float) -> float:
    """Seconds by which the job of a tick is due later, 0 to most_s: the same whoever asks, so previews can tell it."""
    if not most_s:
        return 0.0
    seed = blake2b(f"{key} {tick.timestamp()}".encode(), digest_size=8).digest()
    return most_s * int.from_bytes(seed, "big") / 2**64
