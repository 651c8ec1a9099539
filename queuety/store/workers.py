"""The processes of all pools, as rows: for people to look at. Nothing that decides anything reads them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from queuety import __version__
from queuety.store import reader, watching
from queuety.store.connect import Connection


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A process of a pool.

    kind: keeper, worker or scheduler.  pool: what the processes of one pool have in common.
    silent_s: seconds since its last sign of life.  jobs: ids of the jobs that it holds.
    """

    id: int
    name: str
    kind: str
    host: str
    pid: int
    pool: int | None
    queues: tuple[str, ...]
    version: str
    started_at: datetime
    seen_at: datetime
    silent_s: float
    jobs: tuple[int, ...]


def register(
    conn: Connection, kind: str, name: str, queues: Sequence[str], handlers: Sequence[str] | None, pool: int
) -> int:
    """Note a process; returns its id. kind: keeper, worker or scheduler.  pool: the supervisor's process id."""
    row = conn.execute(
        """
        INSERT INTO queuety.workers (pool, kind, name, host, pid, queues, handlers, version)
        VALUES (%s, %s, %s, %s, %s, %s::text[], %s::text[], %s)
        RETURNING id
        """,
        [
            pool,
            kind,
            name,
            socket.gethostname(),
            os.getpid(),
            list(queues),
            None if handlers is None else list(handlers),
            __version__,
        ],
    ).fetchone()
    assert row is not None
    return int(row[0])


def replace(conn: Connection, before: int) -> None:
    """Forget a keeper whose place another one has taken."""
    unregister(conn, [before])
    wake(conn, before)


def seen(conn: Connection, ids: Sequence[int]) -> list[int]:
    """Note that these processes show life; returns those that others have forgotten, for want of it."""
    rows = conn.execute(
        """
        UPDATE queuety.workers AS w
        SET seen_at = statement_timestamp()
        WHERE w.id = ANY (%s::bigint[])
        RETURNING w.id
        """,
        [list(ids)],
    ).fetchall()
    return sorted({*ids} - {row[0] for row in rows})


def restore(
    conn: Connection, kind: str, name: str, queues: Sequence[str], handlers: Sequence[str] | None, pool: int,
    processes: Mapping[int, int],
) -> None:  # fmt: skip
    """Note processes that were forgotten while they lived, cut off from the database. processes: id → process id."""
    conn.execute(
        """
        INSERT INTO queuety.workers (id, pool, kind, name, host, pid, queues, handlers, version)
        SELECT one.id, %s, %s, %s, %s, one.pid, %s::text[], %s::text[], %s
        FROM unnest(%s::bigint[], %s::integer[]) AS one (id, pid)
        ON CONFLICT DO NOTHING
        """,
        [
            pool,
            kind,
            name,
            socket.gethostname(),
            list(queues),
            None if handlers is None else list(handlers),
            __version__,
            list(processes),
            list(processes.values()),
        ],
    )


def tell(conn: Connection, keeper: int, memory: str) -> None:
    """Note what a keeper's pool has, JSON text, for those who look."""
    conn.execute("UPDATE queuety.workers AS w SET memory = %s::jsonb WHERE w.id = %s", [memory, keeper])


def unregister(conn: Connection, ids: Sequence[int]) -> None:
    """Forget processes that have left."""
    conn.execute("DELETE FROM queuety.workers AS w WHERE w.id = ANY (%s::bigint[])", [list(ids)])


def forget_silent(conn: Connection, silent_s: float) -> int:
    """Forget processes without a sign of life for `silent_s` seconds, and sleepers and listeners that are gone."""
    gone = conn.execute(
        """
        DELETE FROM queuety.workers AS w
        WHERE w.seen_at < statement_timestamp() - make_interval(secs => %s::float8)
        """,
        [silent_s],
    ).rowcount
    conn.execute(
        """
        DELETE FROM queuety.sleepers AS s
        WHERE NOT EXISTS (SELECT FROM queuety.workers AS w WHERE w.id = s.pool)
        """
    )
    watching.forget_lapsed(conn)
    return gone


def sleep(conn: Connection, keeper: int, queues: Sequence[str]) -> None:
    """Register that a pool sleeps on these queues: from now on an enqueue notifies it."""
    conn.execute(
        """
        INSERT INTO queuety.sleepers (pool, queue)
        SELECT %s, q.queue FROM unnest(%s::text[]) AS q (queue)
        ON CONFLICT DO NOTHING
        """,
        [keeper, list(queues)],
    )


def wake(conn: Connection, keeper: int) -> None:
    """Take the registration back: the pool looks by itself."""
    conn.execute("DELETE FROM queuety.sleepers AS s WHERE s.pool = %s", [keeper])


def handlers(conn: Connection, ids: Sequence[int]) -> list[str]:
    """Names of all handlers that these workers have."""
    return [
        row[0]
        for row in conn.execute(
            "SELECT DISTINCT unnest(w.handlers) FROM queuety.workers AS w WHERE w.id = ANY (%s::bigint[])",
            [list(ids)],
        )
    ]


def living_handlers(conn: Connection) -> set[str]:
    """Names of all handlers that any worker has, of those that have shown life in the last minute."""
    return {
        row[0]
        for row in conn.execute(
            """
            SELECT DISTINCT unnest(w.handlers)
            FROM queuety.workers AS w
            WHERE w.seen_at > statement_timestamp() - interval '1 minute'
            """
        )
    }


def living(conn: Connection, queue: str, handler: str) -> bool:
    """Whether a worker that has shown life in the last minute works this queue and has this handler."""
    row = conn.execute(
        """
        SELECT EXISTS (
            SELECT
            FROM queuety.workers AS w
            WHERE w.kind = 'worker'
                AND w.seen_at > statement_timestamp() - interval '1 minute'
                AND %s = ANY (w.queues)
                AND %s = ANY (w.handlers)
        )
        """,
        [queue, handler],
    ).fetchone()
    return row is not None and bool(row[0])


def listing(conn: Connection) -> list[WorkerRow]:
    """All processes that are registered, in the order of their ids. Index: jobs_leases."""
    rows = reader.rows(
        conn,
        """
        SELECT
            w.id, w.name, w.kind, w.host, w.pid, w.pool, w.queues, w.version, w.started_at, w.seen_at,
            extract(EPOCH FROM statement_timestamp() - w.seen_at)::float8, held.jobs
        FROM queuety.workers AS w
        LEFT JOIN (
            SELECT j.worker, array_agg(j.id ORDER BY j.id) AS jobs
            FROM queuety.jobs AS j
            WHERE j.lease_until IS NOT NULL
            GROUP BY j.worker
        ) AS held ON held.worker = w.name || '#' || w.id
        ORDER BY w.id
        """,
    )
    return [_row(row) for row in rows]


def _row(row: tuple[Any, ...]) -> WorkerRow:
    number, name, kind, host, pid, pool, queues, version, started_at, seen_at, silent_s, jobs = row
    return WorkerRow(
        id=number,
        name=name,
        kind=kind,
        host=host,
        pid=pid,
        pool=pool,
        queues=tuple(queues),
        version=version,
        started_at=started_at,
        seen_at=seen_at,
        silent_s=silent_s,
        jobs=tuple(jobs or ()),
    )
