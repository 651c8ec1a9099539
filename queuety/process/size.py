"""The size of an adaptive pool: what the supervisor sees of it, and what the policy makes of that."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from queuety.policy import scale
from queuety.policy.scale import History, Limits, Look
from queuety.process import memory
from queuety.process.ledger import Counter, Ledger, Mark, Page, Phase
from queuety.settings import Settings

if TYPE_CHECKING:
    from queuety.process.supervisor import Child

log = logging.getLogger("queuety.supervisor")

LEAST_COST = (
    32 << 20
)  # bytes; a worker that has not yet imported its application looks smaller than it will be


class Size:
    """Turns the keeper's word on the backlog into a number of workers."""

    def __init__(self, limits: Limits, settings: Settings, ledger: Ledger) -> None:
        self.limits = replace(
            limits, interval_s=settings.worker_pool_scale_interval, grace_s=settings.worker_pool_idle_grace
        )
        self._settings = settings
        # A sleeper looks by itself after 10 poll intervals; one that has not is stuck rather than idle.
        self._lately_s = max(2 * self.limits.interval_s, 12 * settings.worker_sleep)
        self._ledger = ledger
        self._system = memory.System()
        self._history = History()
        self._looked_at = time.monotonic()
        self._ended = 0
        self._worked: dict[tuple[int, float], float] = {}  # by page and its worker's birth
        self._held = False

    def decide(self, size: int, backlog: int, counts: list[int], leaving: int) -> int:
        """Workers wanted now.

        size: wanted until now.  backlog: jobs due and claimable.  counts: what all workers, past and present, have
        counted.  leaving: workers that were asked to, and that have a job to end first: they take their places along.
        """
        now = time.monotonic()
        limits = self.limits
        limits = replace(limits, maximum=max(limits.minimum, limits.maximum - leaving))
        alive = [page for page in self._ledger if page.phase != Phase.LEAVING and not page.told]
        look = Look(
            elapsed_s=now - self._looked_at,
            size=size,
            alive=len(alive),
            busy=sum(page.count > 0 for page in alive),
            backlog=backlog,
            held=sum(_held(page) for page in alive),
            ended=self._just_ended(counts),
            worked_s=self._just_worked(),
            age_s=_mean([max(0.0, now - page.began) for page in alive if page.current >= 0]),
            start_s=min((page.ready - page.born for page in alive if page.ready), default=0.0),
            idle=sum(now - page.empty < self._lately_s and not page.count for page in alive),
            room=self._room(alive) if backlog or limits.target_wait_s else None,
        )
        self._looked_at = now
        decision, self._history = scale.decide(limits, look, self._history)
        if decision.size != size:
            log.info("%d -> %d workers: %s", size, decision.size, decision.reason)
        if decision.held and not self._held:
            log.warning(
                "%d workers and no more for now, since memory for another one is not free: %s",
                decision.size,
                decision.reason,
            )
        self._held = decision.held
        return decision.size

    def shift(self, size: int, by: int) -> int:
        """Raise or lower the least number of workers (SIGTTIN, SIGTTOU); returns the number wanted now."""
        least = max(1, min(self.limits.minimum + by, self.limits.maximum))
        self.limits = replace(self.limits, minimum=least)
        log.info("%s: %d to %d workers", "SIGTTIN" if by > 0 else "SIGTTOU", least, self.limits.maximum)
        return max(size, least)

    def _just_ended(self, counts: list[int]) -> int:
        before, self._ended = self._ended, sum(counts[: Counter.SNOOZED + 1])
        return max(0, self._ended - before)

    def _just_worked(self) -> float:
        """Seconds that jobs took which ended since the last look; what a worker that died ended last is lost."""
        before, self._worked = self._worked, {(page.index, page.born): page.worked for page in self._ledger}
        return sum(worked - before.get(key, 0.0) for key, worked in self._worked.items())

    def _room(self, alive: list[Page]) -> int | None:
        if not self._settings.resource_system_memory_awareness:
            return None
        sizes = [memory.resident(page.pid) or 0 for page in alive if page.ready]
        free = self._system.available()
        return scale.room(
            None if free is None else free - memory.outstanding(alive),
            max(LEAST_COST, *sizes) if sizes else LEAST_COST,
            self._settings.resource_system_memory_headroom_mb,
            sum(not page.ready for page in alive),
        )


def spare(workers: Iterable[Child], *, busy_too: bool) -> list[Child]:
    """Those that may be asked to leave, in this order: asleep, idle, busy."""
    staying = [one for one in workers if not one.told]
    if not busy_too:
        staying = [one for one in staying if _idle(one.page)]
    return by_use(staying)


def by_use(workers: Iterable[Child]) -> list[Child]:
    """Those that would be missed least first: asleep, idle, busy; of these the oldest."""
    return sorted(
        workers, key=lambda one: (one.page.current >= 0, one.page.phase != Phase.SLEEPING, one.page.born)
    )


def _idle(page: Page) -> bool:
    """True if nobody would notice that the worker leaves; one that starts is not idle yet."""
    return page.ready > 0 and not page.count and not page.claiming


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _held(page: Page) -> int:
    """Jobs of a page that have not ended."""
    marks = bytes(page.marks[: page.count])
    return marks.count(Mark.HELD) + marks.count(Mark.BEGUN)
