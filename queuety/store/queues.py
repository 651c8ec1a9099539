"""Queues: pause, resume, and what they hold."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

from queuety.errors import QueuetyError, UsageError
from queuety.names import check_queue
from queuety.store import reader
from queuety.store.connect import Connection
from queuety.store.statements import statement
from queuety.store.transactions import repeated
from queuety.texts import clean
from queuety.units import INSTANT_ACCEPTED, instant

MAX_REASON = 500
PATIENCE_S = 30.0  # how long a pause waits for claims that have begun

# Claims hold this lock, shared, from before their snapshot to their end: see pin.sql. One that is seen here may have
# missed the pause; one that is not yet here will see it.
_CLAIMING = """
    SELECT l.pid, l.virtualtransaction
    FROM pg_locks AS l
    INNER JOIN pg_database AS d ON d.oid = l.database
    WHERE d.datname = current_database()
        AND l.locktype = 'advisory'
        AND l.classid = 0
        AND l.objid = 7100001
        AND l.objsubid = 1
"""
_LISTING = """
    WITH live AS (
        SELECT
            j.queue,
            count(*) FILTER (
                WHERE j.state = 'pending' AND j.parked_on IS NULL AND j.available_at <= statement_timestamp()
            ) AS due,
            count(*) FILTER (
                WHERE j.state = 'pending' AND j.parked_on IS NULL AND j.available_at > statement_timestamp()
            ) AS later,
            count(*) FILTER (WHERE j.state = 'pending' AND j.parked_on IS NOT NULL) AS parked,
            count(*) FILTER (WHERE j.state = 'processing') AS processing,
            min(j.available_at) FILTER (
                WHERE j.state = 'pending' AND j.parked_on IS NULL AND j.available_at <= statement_timestamp()
            ) AS oldest
        FROM queuety.jobs AS j
        GROUP BY j.queue
    ),
    paused AS (
        SELECT
            q.name, q.paused_at, q.paused_until, q.pause_reason,
            q.paused_at IS NOT NULL AND (q.paused_until IS NULL OR q.paused_until > statement_timestamp()) AS holds
        FROM queuety.queues AS q
    )
    SELECT
        coalesce(live.queue, paused.name) COLLATE "C" AS name,
        coalesce(paused.holds, false),
        CASE WHEN paused.holds THEN paused.paused_at END,
        CASE WHEN paused.holds THEN paused.paused_until END,
        CASE WHEN paused.holds THEN paused.pause_reason END,
        coalesce(live.due, 0), coalesce(live.later, 0), coalesce(live.parked, 0), coalesce(live.processing, 0),
        extract(EPOCH FROM statement_timestamp() - live.oldest)::float8
    FROM live
    FULL JOIN paused ON paused.name = live.queue
    ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue as it stands.

    paused: whether the pause holds now; paused_at, paused_until and reason are None if it does not.
    due, later: jobs that wait, by whether their time has come.  parked: jobs that wait for something else.
    oldest_due_s: seconds for which the oldest due job has waited.
    """

    name: str
    paused: bool
    paused_at: datetime | None
    paused_until: datetime | None
    reason: str | None
    due: int
    later: int
    parked: int
    processing: int
    oldest_due_s: float | None


def pause(conn: Connection, queue: str, *, reason: str = "", until: datetime | None = None) -> None:
    """Pause a queue: once this returns, no claim takes from it. What runs goes on.

    reason: cleaned, up to MAX_REASON characters.  until: an aware time ahead; None: until it is resumed.
    A pause that holds already gets the new reason and end. Waits for the claims that have begun, without holding
    up others; raises QueuetyError, the queue being paused, if one of them takes longer than PATIENCE_S.
    """
    name = check_queue(queue)
    if not isinstance(reason, str):
        raise UsageError(f"the reason is a text, not {type(reason).__name__}", "give a str")
    end = None if until is None else instant(until, what="until")
    values = {"queue": name, "reason": clean(reason.strip(), MAX_REASON) or None, "until": end}
    if repeated(conn, lambda: conn.execute(statement("pause"), values, prepare=False).fetchone()) is None:
        raise UsageError(f"until={end} has passed", INSTANT_ACCEPTED)
    wait_for_claims(conn, f"the queue {name!r} is paused")


def resume(conn: Connection, queue: str) -> bool:
    """Let a paused queue go on, and wake who sleeps on it; False if it was not paused."""
    values = {"queue": check_queue(queue)}
    row = repeated(conn, lambda: conn.execute(statement("resume"), values, prepare=False).fetchone())
    return row is not None and bool(row[0])


def listing(conn: Connection) -> list[QueueRow]:
    """Every queue that holds live jobs or for which something is set, by name. Reads all live jobs once."""
    return [QueueRow(*row) for row in reader.rows(conn, _LISTING)]


def wait_for_claims(conn: Connection, done: str) -> None:
    """Wait until the claims that may have missed what was just committed are over. done: it in words.

    Taking their lock exclusively would do the same, but every later claim of the fleet would queue behind us.
    """
    old = set(conn.execute(_CLAIMING, prepare=False).fetchall())
    since = time.monotonic()
    while old:
        if time.monotonic() - since > PATIENCE_S:
            pids = ", ".join(str(pid) for pid, _ in sorted(old))
            raise QueuetyError(
                f"{done}, but a claim that began before has not ended in {PATIENCE_S:g} s",
                f"look in pg_stat_activity for pid {pids}",
            )
        time.sleep(0.005 if time.monotonic() - since < 0.5 else 0.05)
        old &= set(conn.execute(_CLAIMING, prepare=False).fetchall())
