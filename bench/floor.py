"""`python -m bench.floor`: the least that draining can cost with our statements.

Bare psycopg, one connection, settle and claim in one commit, 500 jobs at a time, the payload decoded and a no-op
called. No ledger, no leases to watch, no time limits, no errors, no other process.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, LiteralString

from bench.common import Connection, connect
from bench.speech import say, wait_for_go
from queuety.store.statements import statement

SIZE = 500
_LEVELS = 4
_FRONT = ("-Infinity", 0)


def noop() -> None:
    """Do nothing."""


def drain(conn: Connection) -> int:
    """Run what is due in the queue "default"; returns how many jobs."""
    cursor: tuple[Any, Any] = _FRONT
    ids: list[int] = []
    lease = total = 0
    while True:
        with conn.pipeline(), conn.transaction():
            conn.execute(_text("pin"), prepare=True)
            if ids:
                conn.execute(_text("complete"), _completed(ids, lease), prepare=True)
            claimed = conn.execute(_text("claim"), _wanted(cursor), prepare=True)
        rows = claimed.fetchall()
        total += len(ids)
        ids = []
        if not rows:
            if cursor == _FRONT:
                return total
            cursor = _FRONT
            continue
        lease = rows[0][1]
        for row in rows:
            json.loads(row[3])
            noop()
            ids.append(row[0])
        # All jobs are of one lane here, so one cursor does.
        cursor = max((row[8], row[0]) for row in rows) if len(rows) == SIZE else _FRONT


def _text(name: str) -> LiteralString:
    return statement(name)


def _completed(ids: list[int], lease: int) -> dict[str, Any]:
    moments = "{" + ",".join(["0.001"] * len(ids)) + "}"
    nothing = "{" + ",".join(["NULL"] * len(ids)) + "}"
    return {
        "lease": lease,
        "ids": "{" + ",".join(map(str, ids)) + "}",
        "began": moments,
        "ended": moments,
        "results": nothing,
        "errors": nothing,
    }


def _wanted(cursor: tuple[Any, Any]) -> dict[str, Any]:
    at, job_id = cursor
    return {
        "queues": ["default"] * _LEVELS,
        "priorities": "{0,1,2,3}",
        "after_at": f"{{-Infinity,-Infinity,{at},-Infinity}}",
        "after_id": f"{{0,0,{job_id},0}}",
        "size": SIZE,
        "worker": f"floor#{os.getpid()}",
        "stale": 60.0,
        # No weights, nothing skipped, no budgets, no handlers with limits; and no statement that admits.
        "lines": "{1,1,1,1}",
        "caps": "{1000000}",
        "skip": "{}",
        "budgeted": "{}",
        "limits": None,
    }


def main() -> int:
    with connect(os.environ["QUEUETY_DATABASE_URL"]) as conn:
        conn.execute("SELECT 1")
        wait_for_go()
        say(ran=drain(conn))
    return 0


if __name__ == "__main__":
    sys.exit(main())
