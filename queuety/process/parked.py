"""Jobs parked on limits and on handlers: the keeper unparks what there is room for, and what has waited too long."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from queuety.process.plan import Plan
from queuety.store import claims

if TYPE_CHECKING:
    from queuety.store.connect import Connection
    from queuety.store.lanes import Lanes

PLACES = 500  # jobs unparked for one limited key at a time
BATCH = 100  # jobs unparked for one handler at a time
SOON_S = 0.005  # between two looks for room under a rate


class Parked:
    """What waits for a key in a pool's queues."""

    def __init__(self, plan: Plan, lanes: Lanes) -> None:
        self._settings = plan.settings
        self._lanes = lanes
        self._budgets = claims.budgets(plan.settings)
        self._after: str | None = None  # the limited key to go on after
        self._overdue_at = 0.0

    def refill(self, conn: Connection, now: float) -> tuple[int, float]:
        """Unpark what groups, budgets and rates have room for; returns how many, and when to look again.

        Very many keys are gone through bit by bit, in a tenth of the time.
        """
        unparked, next_s, self._after = claims.refill(
            conn, self._lanes, self._budgets, places=PLACES, after=self._after
        )
        again = now + self._settings.worker_sleep
        if self._after is not None:
            again = min(again, now + max(10 * (time.monotonic() - now), SOON_S))
        elif next_s is not None:
            again = min(again, now + max(next_s + 0.001, SOON_S))
        return unparked, again

    def tell(self, conn: Connection, keys: Collection[str]) -> int:
        """Refill keys that have become freer; returns how many were unparked.

        Other pools are told if what waits for them is theirs to run.
        """
        if not keys:
            return 0
        return claims.refill(conn, self._lanes, self._budgets, places=PLACES, keys=sorted(keys))[0]

    def unpark(self, conn: Connection, handlers: list[str]) -> int:
        """Unpark what waits for one of these handlers, and what has waited for any for too long; returns how many."""
        keys = [f"handler:{name}" for name in handlers]
        now = time.monotonic()
        if now >= self._overdue_at:
            grace = self._settings.unknown_handler_grace
            self._overdue_at = now + min(max(grace / 10, 1.0), 60.0)
            keys += claims.overdue(conn, grace)
        return claims.unpark(conn, keys, BATCH) if keys else 0
