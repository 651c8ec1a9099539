"""Whether a pool lives, has started and is ready, and what it answers over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus

from queuety.process import metrics
from queuety.process.exposition import OPENMETRICS, PROMETHEUS
from queuety.process.ledger import Ledger
from queuety.process.listener import Answer

GRACE_S = (
    90.0  # within which the keeper's loop turns, whatever the database does; longer only for hourly duties
)
HANGS_S = (
    30.0  # a keeper whose loop has not turned for so long tells nothing any more, not even of the database
)
SEEN_S = 45.0  # the keeper asks the database at least every 15 s, and waits 15 s for an answer
AGAIN_S = 1.0  # between two renderings of the metrics, however many ask

Verdict = tuple[bool, str]


class Health:
    """The answers of one pool. look: the pool now."""

    def __init__(self, ledger: Ledger, tally: metrics.Tally, look: Callable[[], metrics.Pool]) -> None:
        self._ledger = ledger
        self._tally = tally
        self._look = look
        self._started = time.monotonic()
        self._known: dict[tuple[str, str], None] = {}
        self._rendered: dict[bool, tuple[float, str]] = {}

    def answer(self, path: str, accept: str) -> Answer | None:
        """What a path answers; None: there is no such path."""
        now = time.monotonic()
        match path:
            case "/livez":
                return _told(self.lives(now))
            case "/readyz":
                lacks = self.lacks(self._look(), now)
                return _told((not lacks, lacks or "ready"))
            case "/startupz":
                return _told(self.has_started())
            case "/metrics":
                openmetrics = "application/openmetrics-text" in accept
                return Answer(
                    HTTPStatus.OK, self._metrics(openmetrics, now), OPENMETRICS if openmetrics else PROMETHEUS
                )
            case _:
                return None

    def lives(self, now: float) -> Verdict:
        """The supervisor's loop turns, or nobody would answer; so this is about the keeper's. Asks no database."""
        assert self._ledger.figures is not None
        by = self._ledger.figures.keeper.expected_by or self._started + GRACE_S
        if now > by:
            return False, f"the keeper's loop has not turned for {now - by + GRACE_S:.0f} s"
        return True, "lives"

    def has_started(self) -> Verdict:
        """A worker has been ready once: the application could be imported and the database reached."""
        tally = self._tally
        tally.ready_once = tally.ready_once or any(page.ready for page in self._ledger)
        started = tally.ready_once
        return started, "started" if started else "no worker has been ready yet"

    def lacks(self, pool: metrics.Pool, now: float) -> str:
        """Why the pool is not ready; empty if it is."""
        if pool.draining:
            return "draining"
        if not any(page.ready and not told for _, page, told in pool.workers):
            return "no worker is ready"
        assert self._ledger.figures is not None
        keeper = self._ledger.figures.keeper
        if not keeper.seen_at:
            return "the keeper has not reached the database yet"
        if now > keeper.expected_by - GRACE_S + HANGS_S:
            return f"the keeper hangs: its loop has not turned for {now - keeper.turned_at:.0f} s"
        return "the database is away" if self.database(now) is False else ""

    def database(self, now: float) -> bool | None:
        """The database has answered the keeper lately; None: nobody can tell, since the keeper is silent itself."""
        assert self._ledger.figures is not None
        keeper = self._ledger.figures.keeper
        if not keeper.seen_at or now - keeper.turned_at > HANGS_S:
            return None
        return keeper.seen_at > 0 and now - keeper.seen_at <= SEEN_S

    def _metrics(self, openmetrics: bool, now: float) -> str:
        at, text = self._rendered.get(openmetrics, (0.0, ""))
        if not text or now - at >= AGAIN_S:
            pool = self._look()
            text = metrics.expose(
                pool,
                self._ledger,
                self._tally,
                self._known,
                ready=not self.lacks(pool, now),
                database=self.database(now),
                openmetrics=openmetrics,
            )
            self._rendered[openmetrics] = now, text
        return text


def _told(verdict: Verdict) -> Answer:
    good, text = verdict
    return Answer(HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, text + "\n")
