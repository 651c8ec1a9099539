"""Room for the next job: what a worker, and the keeper, know of it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from queuety.policy.admission import MATTERS, Here, Kind, NotHere, Place, Rules, admit
from queuety.policy.profile import Profile
from queuety.process import memory
from queuety.process.ledger import Page
from queuety.process.profiler import Profiler

if TYPE_CHECKING:
    from queuety.settings import Settings

FRESH_S = 0.1  # a reading is used so long where there is plenty
PLENTY = 2  # times what all workers together would take
ASKING_S = 0.01  # patience with a neighbour who is deciding; he takes a fraction of that


def rules(settings: Settings) -> Rules:
    """What is kept free, as the settings say."""
    return Rules(
        memory=settings.resource_memory_headroom_mb,
        system=settings.resource_system_memory_headroom_mb,
        time_s=settings.resource_time_headroom_ms,
        aware=settings.resource_system_memory_awareness,
    )


def promised(settings: Settings) -> bool:
    """True if somebody has set the worker's memory limit: then it is kept, and not only when to replace a worker."""
    return settings.origin("worker_max_memory") != "default"


class Room:
    """A worker's answer to whether there is room for its next job.

    What a job may take is reserved on the worker's page, so that workers which ask at the same moment do not count on
    the same memory. No lock: a worker announces first and reads the others' pages after that; of two that are deciding
    at once the one on the higher page counts on the other, who waits for it.
    """

    def __init__(self, settings: Settings, profiler: Profiler, page: Page, until: float, limit: int) -> None:
        self._rules = rules(settings)
        self._kept = promised(settings)
        self._profiler = profiler
        self._page = page
        self._until = until
        self._limit = limit
        self._system = memory.System()
        self._plenty = (0.0, 0)  # when it was read, bytes that were available
        self.taken = False  # memory is reserved for the job that runs
        self._tight = False

    def declines(self, handler: str, *, fresh: bool) -> NotHere | None:
        """Why a job of this handler is not to begin here; None: begin it, and call `leave` after it if `taken`.

        fresh: this worker has run nothing yet.
        """
        if not self._until and self._profiler.peaks.get(handler, 0) < MATTERS:
            return None
        profile = self._profiler.profile(handler)
        if profile is None:
            return None
        # Its own size decides only once it has run something: else a worker that starts a little larger than the
        # one before it would be replaced for ever.
        answer = self._decide(profile, self._page.base if fresh else memory.resident() or 0)
        if isinstance(answer, NotHere) and answer.kind is Kind.WORKER and not fresh and memory.trim():
            answer = self._decide(profile, memory.resident() or 0)
        return None if isinstance(answer, Here) else answer

    def leave(self) -> bool:
        """The job has ended: take its reservation back; True if others may wait for what it has freed."""
        tight, self._tight, self.taken = self._tight, False, False
        if tight:
            memory.trim()  # before the reservation ends: others would see neither
        self._page.reserved = 0
        return tight

    def _decide(self, profile: Profile, size: int) -> Here | NotHere:
        place = Place(
            limit=self._limit,
            kept=self._kept,
            base=self._page.base,
            size=size,
            left_s=self._until - time.monotonic() if self._until else None,
        )
        if (profile.peak or 0) < MATTERS:
            return admit(profile, place, self._rules)
        return self._reserve(profile, place)

    def _has_plenty(self, peak: int) -> bool:
        """True if all workers could take as much and more would be left; then nothing needs to be reserved."""
        if not self._rules.aware:
            return True
        read_at, available = self._plenty
        now = time.monotonic()
        if now - read_at > FRESH_S:
            available = self._system.available() or 0
            self._plenty = now, available
        workers = sum(1 for _ in self._page.ledger)
        return PLENTY * workers * peak + self._rules.system < available

    def _reserve(self, profile: Profile, place: Place) -> Here | NotHere:
        """Decide, and reserve what the job may take if it is let in."""
        page = self._page
        peak = profile.peak or 0
        page.resident = memory.resident() or 0
        page.reserved = -peak  # announced: only then look
        try:
            tight = not self._has_plenty(peak)
            answer = admit(profile, self._seen(place) if tight else place, self._rules)
            if isinstance(answer, Here):
                page.reserved = peak
                self.taken, self._tight = True, tight
            return answer
        finally:
            page.reserved = max(page.reserved, 0)

    def _seen(self, place: Place) -> Place:
        """The place with what the system really has, less what was promised to others."""
        page = self._page
        others = [other for other in page.ledger if other.index != page.index]
        # Those above who were deciding before we announced have not counted on us: their decision is awaited. Whoever
        # of them begins to decide after that has seen us, and need not be counted.
        decided = [other for other in others if other.index > page.index and _decided(other)]
        promised = memory.outstanding(decided, asking=False)
        promised += memory.outstanding(other for other in others if other not in decided)
        # Read last: what is taken between the two readings is counted twice rather than not at all.
        available, pressure = self._system.available(), self._system.pressure()
        return replace(
            place,
            available=None if available is None else available - promised,
            pressure=pressure.full if pressure else 0.0,
            alone=all(other.current < 0 for other in others),
        )


def _decided(other: Page) -> bool:
    """Wait until a neighbour is not deciding; False if that takes too long."""
    until = time.monotonic() + ASKING_S
    while other.reserved < 0:
        if time.monotonic() > until:
            return False
        time.sleep(0)
    return True
