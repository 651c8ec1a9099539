"""Figures by handler in shared memory: what runs came to, how long they took, and whether the keeper is well.

They exist only where the pool tells them (setting `http`). Each ledger page has a sheet, which outlives its workers:
one process writes to a sheet at a time (the worker; after its death the keeper; then the next worker on that page), so
that no lock is needed, and what was counted is never counted down. The keeper has a sheet of its own.
"""

from __future__ import annotations

import enum
import mmap
from bisect import bisect_left
from collections.abc import Iterator

SERIES = 64  # pairs of queue and handler that are told apart; whatever more there is, is counted together
OTHER = "(other)"  # no queue or handler can be named so

BUCKETS_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

_NAME_BYTES = 504  # of queue and handler together; what is longer is counted with the others
_WORDS = 32
_SERIES_BYTES = 8 + _NAME_BYTES + _WORDS * 8
_HEAD_BYTES = 256
SHEET = _HEAD_BYTES + (SERIES + 1) * _SERIES_BYTES
assert SHEET % 8 == 0

# Words of a series: the first five are counters of the ledger, in its order.
ENDINGS = ("completed", "retried", "buried", "cancelled", "snoozed")


class Cause(enum.IntEnum):
    """Why an attempt failed, as the word that counts it."""

    ERROR = 5
    TIMED_OUT = 6
    LOST = 7


SUM, BUCKET = 8, 9
assert BUCKET + len(BUCKETS_S) + 1 <= _WORDS

# Words of the keeper's sheet. Times are seconds of the monotonic clock.
_TURNED, _EXPECTED, _SEEN, _DEPTHS_AT, _TURNS, _RUN, _SKIP, _FAIL = range(8)
TICKS = {"run": _RUN, "skip": _SKIP, "fail": _FAIL}


class Sheet:
    """One writer's figures."""

    __slots__ = ("_places", "_raw", "times", "words")

    def __init__(self, raw: memoryview) -> None:
        self._raw = raw
        self.words = raw.cast("q")
        self.times = raw.cast("d")
        self._places: dict[tuple[str, str], int] | None = None

    def completed(self, queue: str, handler: str, seconds: float) -> None:
        """Count one plain success. On the way of every job: cheap."""
        at = self._at(queue, handler)
        words = self.words
        words[at] += 1
        self.times[at + SUM] += seconds
        words[at + BUCKET + bisect_left(BUCKETS_S, seconds)] += 1

    def ended(
        self, queue: str, handler: str, ending: int, cause: Cause | None, seconds: float | None
    ) -> None:
        """Count any end. ending: index in ENDINGS, others are not counted.  seconds: None if it was not run."""
        at = self._at(queue, handler)
        if ending < len(ENDINGS):
            self.words[at + ending] += 1
            if cause is not None:
                self.words[at + cause] += 1
        if seconds is not None:
            self.times[at + SUM] += seconds
            self.words[at + BUCKET + bisect_left(BUCKETS_S, seconds)] += 1

    def reread(self) -> None:
        """Another process has written since: look up names anew."""
        self._places = None

    def series(self) -> Iterator[tuple[tuple[str, str], int]]:
        """((queue, handler), first word) of all that is counted; the first is what is counted together."""
        yield (OTHER, OTHER), self._first(0)
        for place in range(1, SERIES + 1):
            name = self._name(place)
            if name is None:
                return
            yield name, self._first(place)

    def _at(self, queue: str, handler: str) -> int:
        if self._places is None:
            self._places = dict(self.series())
        at = self._places.get((queue, handler))
        return at if at is not None else self._add(queue, handler)

    def _add(self, queue: str, handler: str) -> int:
        places = self._places
        assert places is not None
        raw = f"{queue}\0{handler}".encode()
        place = len(set(places.values()))
        if place > SERIES or len(raw) > _NAME_BYTES:
            if len(places) < 100 * SERIES:  # remembered, but not without an end
                places[queue, handler] = self._first(0)
            return self._first(0)
        start = self._start(place)
        self._raw[start + 8 : start + 8 + len(raw)] = raw
        self.words[start // 8] = len(raw)  # last: a reader sees no half of a name
        places[queue, handler] = self._first(place)
        return self._first(place)

    def _name(self, place: int) -> tuple[str, str] | None:
        start = self._start(place)
        length = self.words[start // 8]
        if not length:
            return None
        queue, _, handler = bytes(self._raw[start + 8 : start + 8 + length]).decode().partition("\0")
        return queue, handler

    @staticmethod
    def _start(place: int) -> int:
        return _HEAD_BYTES + place * _SERIES_BYTES

    @classmethod
    def _first(cls, place: int) -> int:
        return (cls._start(place) + 8 + _NAME_BYTES) // 8


class KeeperSheet(Sheet):
    """The keeper's: besides what it recovers, its own signs of life."""

    __slots__ = ()

    def turned(self, now: float, grace_s: float) -> None:
        """Note a turn of the keeper's loop; the next one is to come within `grace_s`."""
        self.times[_TURNED] = now
        self.times[_EXPECTED] = now + grace_s
        self.words[_TURNS] += 1

    def heard(self, now: float) -> None:
        """The database has answered."""
        self.times[_SEEN] = now

    def lost(self) -> None:
        """The database is away."""
        self.times[_SEEN] = -1.0

    def ticked(self, kind: str, ticks: int) -> None:
        if kind in TICKS:
            self.words[TICKS[kind]] += ticks

    @property
    def turned_at(self) -> float:
        return self.times[_TURNED]

    @property
    def expected_by(self) -> float:
        """0 before its first turn."""
        return self.times[_EXPECTED]

    @property
    def seen_at(self) -> float:
        """When the database last answered; 0: not asked yet; negative: it is away."""
        return self.times[_SEEN]

    @property
    def turns(self) -> int:
        return self.words[_TURNS]

    def ticks(self) -> dict[str, int]:
        return {kind: self.words[word] for kind, word in TICKS.items()}


class Figures:
    """All sheets of a pool. Untouched ones cost no memory."""

    def __init__(self, pages: int) -> None:
        self._map = mmap.mmap(-1, (pages + 1) * SHEET)
        buffer = memoryview(self._map)
        raw = [buffer[index * SHEET : (index + 1) * SHEET] for index in range(pages + 1)]
        self.sheets = [Sheet(one) for one in raw[:pages]]
        self.keeper = KeeperSheet(raw[pages])

    def total(self, known: dict[tuple[str, str], None]) -> dict[tuple[str, str], list[float]]:
        """Words of each series over all sheets, up to the last bucket.

        known: what is told apart, which only grows: a counter never moves from one name to another.
        """
        totals: dict[tuple[str, str], list[float]] = {}
        for sheet in (*self.sheets, self.keeper):
            for name, at in sheet.series():
                if name not in known:
                    if len(known) < SERIES and name[0] != OTHER:
                        known[name] = None
                    else:
                        name = OTHER, OTHER
                values: list[float] = list(sheet.words[at : at + BUCKET + len(BUCKETS_S) + 1])
                values[SUM] = sheet.times[at + SUM]
                before = totals.get(name)
                totals[name] = (
                    values if before is None else [a + b for a, b in zip(before, values, strict=True)]
                )
        if not any(totals[OTHER, OTHER]):
            del totals[OTHER, OTHER]
        return totals
