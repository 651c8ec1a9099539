"""States that tests begin with."""

from __future__ import annotations

from queuety.store.claims import Claimed
from queuety.store.connect import Connection
from queuety.store.lanes import Lanes
from queuety.store.statements import statement


def claim_within(conn: Connection, queues: tuple[str, ...] = ("default",), size: int = 1) -> list[Claimed]:
    """A worker's claim inside the transaction that `conn` is in: open until the test ends it."""
    lanes = Lanes(queues)
    conn.execute(statement("pin"))
    rows = conn.execute(
        statement("claim"),
        {
            **lanes.values(),
            "size": size,
            "worker": "w#1",
            "stale": 60.0,
            "skip": "{}",
            "budgeted": "{}",
            "limits": None,
        },
    ).fetchall()
    return lanes.order([Claimed._make(row) for row in rows])
