"""How much there is of everything."""

from __future__ import annotations

from dataclasses import dataclass

from queuety.store import queues, reader
from queuety.store.connect import Connection
from queuety.store.queues import QueueRow

MOST_FINISHED = 1_000_000  # finished jobs counted at most, newest partitions or not: the cost stays bounded
SILENT_S = 60.0  # a worker that has not been seen for longer is not counted

_ENDED = """
    SELECT
        count(*) FILTER (WHERE f.state = 'completed'),
        count(*) FILTER (WHERE f.state = 'cancelled'),
        (SELECT count(*) FROM queuety.buried_jobs),
        (
            SELECT count(*)
            FROM queuety.workers AS w
            WHERE w.kind = 'worker'
                AND w.seen_at > statement_timestamp() - make_interval(secs => %(silent)s::float8)
        )
    FROM (
        SELECT f.state
        FROM queuety.finished_jobs AS f
        WHERE f.finished_at > statement_timestamp() - interval '1 day'
        LIMIT %(most)s
    ) AS f
"""


@dataclass(frozen=True, slots=True)
class Stats:
    """Numbers of jobs by state, over all queues and by queue.

    due, later, parked: pending jobs, see QueueRow.
    completed, cancelled: ended within the last 24 hours; `capped` if there are more than were counted.
    buried: all that are kept.  workers: seen within the last SILENT_S seconds.
    """

    due: int
    later: int
    parked: int
    processing: int
    completed: int
    cancelled: int
    buried: int
    capped: bool
    workers: int
    queues: tuple[QueueRow, ...]

    @property
    def pending(self) -> int:
        return self.due + self.later + self.parked


def stats(conn: Connection) -> Stats:
    """Count. Reads all live and buried jobs, and up to MOST_FINISHED of the last day's finished ones."""
    rows = tuple(queues.listing(conn))
    [(completed, cancelled, buried, workers)] = reader.rows(
        conn, _ENDED, {"silent": SILENT_S, "most": MOST_FINISHED}
    )
    return Stats(
        due=sum(row.due for row in rows),
        later=sum(row.later for row in rows),
        parked=sum(row.parked for row in rows),
        processing=sum(row.processing for row in rows),
        completed=completed,
        cancelled=cancelled,
        buried=buried,
        capped=completed + cancelled == MOST_FINISHED,
        workers=workers,
        queues=rows,
    )
