"""The clock of the schedules in one process: when to look, when to fire, whom to leave it to."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic

from queuety.model import Tick
from queuety.store import schedules
from queuety.store.connect import Connection

STAND_BACK_S = 3.0  # by how much pools let a scheduler go first; well within what counts as missed
AGAIN_S = 0.05  # between two looks while another process is at what is due
FOLLOW_S, FOLLOW_OWN_S = 3.0, 1.0  # between two looks how jobs have ended: in a pool, in a scheduler
REVISE_S, REVISE_AGAIN_S = 3600.0, 1.0


class Ticker:
    """Used by each keeper, and by the scheduler, which goes first.

    at: when it is to be called again at the latest, in seconds of the monotonic clock.
    """

    def __init__(self, *, own: bool = False) -> None:
        """own: this process schedules and does nothing else."""
        self._own = own
        self._follow_s = FOLLOW_OWN_S if own else FOLLOW_S
        self._fire_at = math.inf
        self._behind_s = 0.0
        self._free_since = math.inf  # since when a buffered tick is seen to be free
        self._elsewhere = False  # a scheduler looks after the schedules
        self._follow_at = math.inf
        self._followed_to = 0
        self._revise_at = math.inf
        self._revised_to: str | None = None

    @property
    def at(self) -> float:
        return min(self._fire_at, self._follow_at, self._revise_at)

    def look(self, conn: Connection) -> None:
        """Look when the next tick is due."""
        found = schedules.next_due(conn)
        now = monotonic()  # after the answer: earlier it would fire too early, for nothing
        self._elsewhere = found.elsewhere and not self._own
        self._behind_s = STAND_BACK_S if self._elsewhere else 0.0
        self._free_since = min(self._free_since, now) if found.free else math.inf
        due_at = math.inf if found.in_s is None else now + found.in_s
        self._fire_at = max(now, min(due_at, self._free_since) + self._behind_s)
        if not found.any:
            self._follow_at = self._revise_at = math.inf
        elif self._revise_at == math.inf:
            self._follow_at = self._revise_at = now

    def act(self, conn: Connection, now: float, told: Callable[[Tick], None] = lambda _: None) -> None:
        """Do what is due, each in transactions of its own.

        told: called with each tick that has run, was skipped or failed, or whose job has ended, once that is committed.
        """
        from queuety.features import ticking  # here: a pool without schedules does without cron

        if now >= self._fire_at:
            fired = ticking.fire(conn, behind_s=self._behind_s)
            for tick in fired.ticks:
                told(tick)
            self.look(conn)
            if not fired.ticks and self._fire_at <= monotonic():
                self._fire_at = now + AGAIN_S
        if now >= self._follow_at:
            if not self._elsewhere:  # each end is told once: to whom has callbacks for it
                ended, self._followed_to = ticking.follow(conn, self._followed_to)
                for tick in ended:
                    told(tick)
            self._follow_at = now + (AGAIN_S if self._followed_to else self._follow_s)
        if now >= self._revise_at:
            self._revised_to = ticking.revise(conn, self._revised_to)
            self._revise_at = now + (REVISE_AGAIN_S if self._revised_to else REVISE_S)
