"""The sleeping workers of a pool: registering them for NOTIFY, and waking them."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from queuety.process.ledger import Ledger, Page, Phase
from queuety.store import claims, workers
from queuety.store.connect import Connection
from queuety.store.lanes import Lanes

JUST_CLAIMED_S = 0.1  # a worker that claimed so recently will soon look again
AWAKE_S = 0.2  # a pool that looks by itself stays registered for so long, against flapping
AGAIN_S = 0.02  # one worker is not woken twice within so long


class Sleepers:
    """Wakes sleeping workers, and keeps the pool registered as a sleeper while nobody in it looks."""

    def __init__(self, ledger: Ledger, queues: tuple[str, ...]) -> None:
        self._ledger = ledger
        self._queues = queues
        self.lanes = Lanes(queues)
        self._registered = False
        self._awake_since = 0.0
        self._looked_at = 0.0
        self._woken: dict[int, float] = {}

    def forget(self) -> None:
        """Forget the registration: the connection is a new one."""
        self._registered = False

    @property
    def settling(self) -> bool:
        """True while a registration is about to be taken back."""
        return self._awake_since > 0

    def asleep(self) -> list[Page]:
        return [page for page in self._ledger if page.phase == Phase.SLEEPING]

    def wake(self, count: int) -> None:
        """Wake up to `count` sleeping workers."""
        now = time.monotonic()
        for page in self.asleep():
            if count <= 0:
                return
            if now - self._woken.get(page.index, 0.0) > AGAIN_S:
                self._woken[page.index] = now
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(page.pid, signal.SIGUSR1)
                count -= 1

    def look(self, conn: Connection, now: float) -> float | None:
        """Wake as many as there is due work; returns the seconds until the next job falls due."""
        self._looked_at = now
        due, next_s = claims.look(conn, self.lanes, max(1, len(self.asleep())))
        self.wake(due)
        return next_s

    def mind(self, conn: Connection, keeper: int, now: float, *, poked: bool) -> None:
        """Register or take back, as it is; `poked`: a worker has said that there may be more work than its own."""
        sleeping = bool(self.asleep())
        looking = any(
            page.phase == Phase.LOOKING
            or (page.phase == Phase.RUNNING and now - page.claimed < JUST_CLAIMED_S)
            for page in self._ledger
        )
        if sleeping and not looking:
            self._awake_since = 0.0
            if not self._registered:
                workers.sleep(conn, keeper, self._queues)
                self._registered = True
                # Look once more: what was enqueued before the registration has notified nobody.
                self.look(conn, now)
        elif self._registered:
            self._awake_since = self._awake_since or now
            if now - self._awake_since > AWAKE_S:
                self.deregister(conn, keeper)
        if poked and sleeping and looking and now - self._looked_at > AGAIN_S:
            self.look(conn, now)

    def deregister(self, conn: Connection, keeper: int) -> None:
        if self._registered:
            workers.wake(conn, keeper)
        self._registered, self._awake_since = False, 0.0
