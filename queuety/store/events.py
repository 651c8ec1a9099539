"""The journal: what happened to a job on its way, apart from what its own row tells."""

from __future__ import annotations

from queuety.model import Event
from queuety.store.connect import Connection


def write(conn: Connection, job_id: int, lease: int, kind: str, data: str) -> bool:
    """Add an event to a running job's journal; False if the lease is no longer ours.

    data: JSON text.
    """
    return bool(
        conn.execute(
            """
            INSERT INTO queuety.job_events (job_id, attempt, type, data)
            SELECT j.id, j.attempts, %s, %s::json
            FROM queuety.jobs AS j
            WHERE j.id = %s AND j.lease = %s AND j.state = 'processing'
            """,
            [kind, data, job_id, lease],
        ).rowcount
    )


def read(conn: Connection, job_id: int, after: int = 0, limit: int = 1000) -> list[Event]:
    """Events of a job with an id above `after`, in order. Index: job_events (job_id, id)."""
    rows = conn.execute(
        """
        SELECT e.id, e.job_id, e.type, e.at, e.attempt, e.data
        FROM queuety.job_events AS e
        WHERE e.job_id = %s AND e.id > %s
        ORDER BY e.id
        LIMIT %s
        """,
        [job_id, after, limit],
    ).fetchall()
    return [Event(*row) for row in rows]
