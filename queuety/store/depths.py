"""How deep queues are, for metrics: bounded, so that it may be asked now and then whatever there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from queuety.store.connect import Connection
from queuety.store.statements import statement, texts

MOST = 10_000  # counted no further
LATE_S = 60.0  # a schedule whose tick is late by more is overdue


class Depth(NamedTuple):
    """Jobs of one queue by what they wait for, each counted up to MOST; oldest: seconds that a due one has waited."""

    due: int
    later: int
    parked: int
    buried: int
    oldest: float


def look(conn: Connection, queues: Sequence[str]) -> tuple[dict[str, Depth], int]:
    """(depth of each of these queues, schedules that are overdue)."""
    rows = conn.execute(
        statement("depths"), {"queues": texts(list(queues)), "size": MOST, "late": LATE_S}
    ).fetchall()
    return {row[0]: Depth(*row[1:6]) for row in rows}, max((row[6] for row in rows), default=0)
