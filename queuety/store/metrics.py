"""What handlers have come to lately, and what waits for them, from the database."""

from __future__ import annotations

from dataclasses import dataclass

from queuety.store import reader
from queuety.store.connect import Connection
from queuety.store.statements import statement

MOST_READ = 1_000_000  # jobs that ended, and as many buried ones
MOST_PENDING = 100_000  # of one queue and priority, and of what is parked


@dataclass(frozen=True, slots=True)
class HandlerMetrics:
    """One handler's figures.

    completed, cancelled, buried: jobs that ended within the window.
    failed: attempts of these jobs that failed, whether the job was tried again or buried.
    mean_s, p95_s: of the runs that completed them; None without one.
    pending: jobs that were due longer ago than asked for and do not run; `parked` of them wait for a limit, for memory
    or for a handler.  oldest_s: how long the oldest of them has been due.
    """

    handler: str
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    buried: int = 0
    mean_s: float | None = None
    p95_s: float | None = None
    pending: int = 0
    parked: int = 0
    oldest_s: float | None = None

    @property
    def error_rate(self) -> float | None:
        """Failed attempts among those that came to an end, 0 to 1; None without one."""
        ended = self.completed + self.failed
        return self.failed / ended if ended else None


@dataclass(frozen=True, slots=True)
class Metrics:
    """Figures of all handlers, by name. capped: more jobs ended than were read, so they are too small."""

    window_s: float
    longer_s: float
    handlers: tuple[HandlerMetrics, ...]
    capped: bool = False


def metrics(conn: Connection, window_s: float, longer_s: float) -> Metrics:
    """Read what ended within the window, up to MOST_READ, and what has been pending for longer, up to MOST_PENDING."""
    with conn.transaction():
        # A day's partition holds far more than a window: never read one from end to end, whatever the statistics say.
        conn.execute("SELECT set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)")
        ended = reader.rows(conn, statement("ended_by_handler"), {"window": window_s, "size": MOST_READ})
        waiting = reader.rows(conn, statement("long_pending"), {"longer": longer_s, "size": MOST_PENDING})
    late = {row[0]: row[1:] for row in waiting}
    found = [
        HandlerMetrics(name, completed, failed, cancelled, buried, mean, p95, *late.pop(name, (0, 0, None)))
        for name, completed, cancelled, buried, failed, mean, p95, _ in ended
    ]
    found += [
        HandlerMetrics(name, pending=pending, parked=parked, oldest_s=oldest)
        for name, (pending, parked, oldest) in late.items()
    ]
    read = ended[0][7] if ended else 0
    return Metrics(
        window_s, longer_s, tuple(sorted(found, key=lambda one: one.handler)), capped=read >= MOST_READ
    )
