"""How jobs stand, and the last that they have told of their way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queuety.model import State
from queuety.store import reader
from queuety.store.connect import Connection


def progress(conn: Connection, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """The last progress event of each of these jobs that has one: its data and `at`. Index: job_events (job_id, id)."""
    if not ids:
        return {}
    rows = reader.rows(
        conn,
        """
        SELECT one.id, e.at, e.data
        FROM unnest(%(ids)s::bigint[]) AS one (id)
        CROSS JOIN LATERAL (
            SELECT v.at, v.data
            FROM queuety.job_events AS v
            WHERE v.job_id = one.id AND v.type = 'progress'
            ORDER BY v.id DESC
            LIMIT 1
        ) AS e
        """,
        {"ids": list(ids)},
    )
    return {job_id: {**(data if isinstance(data, dict) else {}), "at": at} for job_id, at, data in rows}


def states(conn: Connection, ids: Sequence[int]) -> dict[int, State]:
    """The states of those of these jobs that are there. Index: the primary keys."""
    rows = reader.rows(
        conn,
        "SELECT a.id, a.state::text FROM queuety.all_jobs AS a WHERE a.id = ANY (%(ids)s)",
        {"ids": list(ids)},
    )
    return {job_id: State(state) for job_id, state in rows}
