"""Jobs parked for want of memory: the keeper unparks as many as there is room for."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from queuety.policy.admission import Place, room_for
from queuety.policy.profile import Profile
from queuety.process import memory
from queuety.process.ledger import Ledger, Phase
from queuety.process.plan import Plan
from queuety.process.profiler import known
from queuety.process.room import promised, rules
from queuety.store import claims, profiles

if TYPE_CHECKING:
    from queuety.store.connect import Connection

PREFIX = "memory:"
AGAIN_S = 0.02  # between two looks at the memory while jobs wait for it
PATIENCE_S = 0.1, 2.0  # no more is unparked until what was is begun, or for so long: at first, at last


class Waiting:
    """What waits for memory, and whether this pool has it.

    A pool unparks only jobs of its own queues and handlers, and only as many as its workers can begin. Then it waits
    until those were begun, with growing patience if none ever is: another pool may take and park them again.
    """

    def __init__(self, plan: Plan, ledger: Ledger) -> None:
        self._plan = plan
        self._ledger = ledger
        self._rules = rules(plan.settings)
        self._kept = promised(plan.settings)
        self._system = memory.System()
        self._profiles: dict[str, Profile | None] = {}  # of the handlers that wait
        self._next = 0.0
        self._hold = (0.0, 0)  # until when, unless so many runs were begun by then
        self._begun = 0
        self._patience = PATIENCE_S[0]

    @property
    def any(self) -> bool:
        return bool(self._profiles)

    def look(self, conn: Connection, handlers: list[str]) -> None:
        """Find which of these handlers' jobs wait, and what they take."""
        waiting = [key.removeprefix(PREFIX) for key in claims.waiting(conn, PREFIX)]
        ours = set(waiting) & set(handlers)
        self._profiles = dict.fromkeys(sorted(ours))
        if ours and self._plan.settings.resource_admission:
            window = self._plan.settings.resource_profile_window_minutes
            for row in profiles.read(conn, list(self._profiles), window):
                self._profiles[row.handler] = known(row).profile()

    def unpark(self, conn: Connection, now: float, *, still: bool = False) -> int:
        """Unpark as many jobs as there is room for; returns how many. still: nothing runs, nothing is under way."""
        if still:
            self._next, self._hold = now, (now, 0)
        if not self._profiles or now < self._next:
            return 0
        self._next = now + AGAIN_S
        begun = sum(page.run for page in self._ledger)
        until, runs = self._hold
        idle = sum(1 for page in self._ledger if page.ready and page.current < 0 and not page.told)
        if not idle or (now < until and begun < runs):
            return 0
        place = self._place()
        done = 0
        for handler, profile in self._profiles.items():
            room = min(room_for(profile, place, self._rules), idle - done)
            if room > 0:
                done += claims.unpark_here(conn, PREFIX + handler, self._plan.queues, room)
        if done:
            self._patience = PATIENCE_S[0] if begun != self._begun else min(2 * self._patience, PATIENCE_S[1])
            self._begun = begun
            self._hold = now + self._patience, begun + done
        return done

    def tell(self) -> dict[str, Any]:
        """What this pool has, for those who look: bytes, percent."""
        place = self._place()
        reading, pressure = self._system.read(), self._system.pressure()
        free = sum(max((memory.resident(page.pid) or 0) - page.base, 0) for page in self._ledger if page.base)
        return {
            "limit": place.limit if place.kept else 0,
            "base": place.base,
            "headroom": self._rules.memory,
            "system_headroom": self._rules.system,
            "admission": self._plan.settings.resource_admission,
            "aware": self._rules.aware,
            "window_s": self._plan.settings.resource_profile_window_minutes,
            "available": reading.available,
            "most": None if reading.available is None else reading.available + free,
            "system_limit": reading.limit,
            "source": reading.source,
            "pressure": None if pressure is None else asdict(pressure),
        }

    def _place(self) -> Place:
        pages = [page for page in self._ledger if page.phase != Phase.LEAVING]
        base = max((page.base for page in pages), default=0)
        limit = self._plan.settings.worker_max_memory
        if limit and base > limit:
            limit = base + memory.HEADROOM
        promised = memory.outstanding(pages)  # first: see Room
        available, pressure = self._system.available(), self._system.pressure()
        return Place(
            limit=limit,
            kept=self._kept,
            base=base,
            size=base,
            available=None if available is None else available - promised,
            pressure=pressure.full if pressure else 0.0,
            alone=all(page.current < 0 for page in pages),
        )
