"""What a worker's runs take: measured here, shared through the database, known before the next run."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from queuety.policy.admission import MATTERS
from queuety.policy.profile import Profile, Tally
from queuety.process import memory
from queuety.redaction import redact_text
from queuety.store import connect, profiles
from queuety.store.profiles import Taken

if TYPE_CHECKING:
    from queuety.process.ledger import Page
    from queuety.settings import Settings

log = logging.getLogger("queuety.worker")

MEASURED_S = (
    0.001  # a run that takes longer has its peak of memory read; a quicker one cannot have touched much
)
FIRST = 3  # so many runs of a handler are read anyway
WRITE_S = 5.0  # between two writes
NEWS_S = 0.2  # likewise, if a peak was found that others should know of
UNKNOWN_S = 1.0  # a handler without a profile is asked for again after so long


def known(row: Taken) -> Tally:
    """What the database tells of a handler."""
    return Tally(row.runs, row.seconds, list(row.durations), row.peak, row.passing)


class Profiler:
    """Measures runs and knows what the handlers at hand have taken, here and elsewhere."""

    def __init__(self, settings: Settings, page: Page) -> None:
        self.peaks: dict[str, int] = {}  # bytes; what the hot path looks at
        self._settings = settings
        self._page = page
        self._peak = memory.Peak()
        self._tallies: dict[str, Tally] = {}  # not yet written
        self._known: dict[str, Tally] = {}  # read, and written since
        self._read_at: dict[str, float] = {}
        self._news = False
        self._written_at = time.monotonic()

    # ── measuring ─────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """Measure from here on."""
        self._page.resident = self._peak.start() or 0

    def note(self, handler: str, took_s: float) -> None:
        """Take in a run that has ended. On the way of every job: cheap unless the run was long."""
        tally = self._tallies.get(handler)
        if tally is None:
            tally = self._tallies[handler] = Tally()
        tally.add(took_s)
        if took_s > MEASURED_S or tally.runs <= FIRST:
            self._measure(handler, tally)

    def _measure(self, handler: str, tally: Tally) -> None:
        taken = self._peak.stop()
        if taken is None:
            return
        left = self._peak.left()
        if left > MATTERS and memory.trim():  # freed, and not yet given back
            left = self._peak.left()
        self.begin()
        tally.took(taken, max(taken - left, 0))
        known = self.peaks.get(handler, 0)
        if taken > known:
            self.peaks[handler] = taken
            self._news = self._news or taken > known * 1.25 + (1 << 20)

    def profile(self, handler: str) -> Profile | None:
        """What is known of a handler; None without a run in the window."""
        total = Tally()
        for part in (self._known.get(handler), self._tallies.get(handler)):
            if part is not None:
                total.merge(part)
        return total.profile()

    # ── sharing ───────────────────────────────────────────────────────────────────────────────────

    def read(self, conn: connect.Connection, handlers: set[str]) -> None:
        """See to it that the profiles of these handlers are known and fresh. Asks the database now and then."""
        now = time.monotonic()
        ttl = self._settings.resource_profile_ttl
        read = self._read_at
        missing = [
            name
            for name in handlers
            if now - read.get(name, -1e9) > (ttl if name in self._known else min(ttl, UNKNOWN_S))
        ]
        if not missing:
            return
        found = profiles.read(conn, missing, self._settings.resource_profile_window_minutes)
        for name in missing:
            read[name] = now
            self._known.pop(name, None)
        for row in found:
            self._known[row.handler] = known(row)
        for name in missing:
            profile = self.profile(name)
            self.peaks[name] = (profile and profile.peak) or 0

    def write(self, conn: connect.Connection, *, last: bool = False) -> None:
        """Share what is new, now and then; `last`: now. Whatever fails is tried again or lost: it is advice."""
        waited = time.monotonic() - self._written_at
        if not self._tallies or not (last or waited > WRITE_S or (self._news and waited > NEWS_S)):
            return
        self._written_at = time.monotonic()
        rows = [
            Taken(name, tally.runs, tally.seconds, tally.durations, tally.peak, tally.passing)
            for name, tally in self._tallies.items()
        ]
        try:
            profiles.add(conn, rows)
        except connect.TROUBLE as error:
            if not connect.lost(error) and not connect.again(error):
                log.warning("what runs have taken cannot be written: %s", redact_text(str(error)))
            return
        for name, tally in self._tallies.items():
            if name in self._known:
                self._known[name].merge(tally)
            else:
                self._known[name] = tally
        self._tallies = {}
        self._news = False
