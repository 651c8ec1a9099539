"""The journal: what happened to a job on its way, apart from what its own row tells."""

from __future__ import annotations

import heapq

from queuety.model import Event, Job, State
from queuety.store import reader, search
from queuety.store.connect import Connection
from queuety.store.statements import perform


def write(conn: Connection, job_id: int, lease: int, kind: str, data: str) -> bool:
    """Add an event to a running job's journal and tell those who watch it; False if the lease is no longer ours.

    data: JSON text.
    """
    values = {"kind": kind, "data": data, "id": job_id, "lease": lease}
    return bool(perform(conn, "note", **values).rowcount)


def read(conn: Connection, job_id: int, after: int = 0, limit: int = 1000) -> list[Event]:
    """Events of a job with an id above `after`, in order. Index: job_events (job_id, id)."""
    rows = reader.rows(
        conn,
        """
        SELECT e.id, e.job_id, e.type, e.at, e.attempt, e.data
        FROM queuety.job_events AS e
        WHERE e.job_id = %(id)s AND e.id > %(after)s
        ORDER BY e.id
        LIMIT %(limit)s
        """,
        {"id": search.check_id(job_id), "after": search.check_id(after, "after"), "limit": limit},
    )
    return [Event(*row) for row in rows]


def history(conn: Connection, job_id: int, limit: int = 1000, after: int = 0) -> list[Event]:
    """A job's life in order: its journal, and what its own row tells. Raises JobNotFound.

    Lines that come from the row (enqueued, started, completed, cancelled, buried) have the id 0.
    limit: lines of the journal at most; of a longer one the last are left out, the end is told nevertheless.
    after: only lines of the journal with ids above; what the row tells comes each time.
    """
    # The journal first: what happens between the two reads is then told by the row, and nothing twice.
    journal = read(conn, job_id, after, limit)
    job = search.find(conn, job_id)
    first, last = _told_by_row(job, journal)
    # The journal keeps its own order; what the row tells is put in between by time.
    return [*heapq.merge(first, journal, key=lambda event: event.at), *last]


def _told_by_row(job: Job, journal: list[Event]) -> tuple[list[Event], list[Event]]:
    first = [Event(0, job.id, "enqueued", job.created_at, None, None)]
    if job.started_at is not None:
        first.append(Event(0, job.id, "started", job.started_at, job.attempts or None, None))
    told = bool(journal) and journal[-1].type == "buried"
    if job.finished_at is None or (told and job.state is State.BURIED):
        return first, []
    data = {"error": job.error} if job.error and job.state is State.BURIED else None
    return first, [Event(0, job.id, str(job.state), job.finished_at, job.attempts or None, data)]
