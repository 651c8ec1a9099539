"""How things stand: what `why` and `doctor` ask the database, each with a bounded answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from queuety.store import reader
from queuety.store.connect import Connection

SILENT_S = 60.0  # a process that has not been seen for longer does not count as alive
MOST = 10_000  # jobs are counted no further


@dataclass(frozen=True, slots=True)
class Waiting:
    """A live job, and what may keep it. Times in seconds from now by the database's clock; see `live`."""

    id: int
    queue: str
    handler: str
    state: str
    priority: int
    attempts: int
    max_attempts: int
    available_at: datetime
    due_in_s: float
    parked_on: str | None
    parked_s: float | None
    worker: str | None
    claimed_s: float | None
    lease_left_s: float | None
    cancel_requested: bool
    error: dict[str, Any] | None
    limits: dict[str, Any] | None
    paused: bool
    paused_until: datetime | None
    pause_reason: str | None


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a pool. kind: keeper or worker.  memory: a keeper's word on its pool.  silent_s: not seen for."""

    id: int
    kind: str
    name: str
    host: str
    queues: tuple[str, ...]
    handlers: tuple[str, ...]
    version: str
    memory: dict[str, Any] | None
    silent_s: float

    @property
    def alive(self) -> bool:
        return self.silent_s <= SILENT_S


def live(conn: Connection, job_id: int) -> Waiting | None:
    """A pending or processing job; None if there is none with this id. Index: jobs_pkey."""
    found = reader.rows(
        conn,
        """
        SELECT
            j.id, j.queue, j.handler, j.state::text, j.priority, j.attempts, j.max_attempts, j.available_at,
            extract(EPOCH FROM j.available_at - statement_timestamp())::float8, j.parked_on,
            extract(EPOCH FROM statement_timestamp() - j.parked_at)::float8, j.worker,
            extract(EPOCH FROM statement_timestamp() - j.claimed_at)::float8,
            extract(EPOCH FROM j.lease_until - statement_timestamp())::float8, j.cancel_requested, j.error, j.limits,
            coalesce(
                q.paused_at IS NOT NULL AND (q.paused_until IS NULL OR q.paused_until > statement_timestamp()), false
            ),
            q.paused_until, q.pause_reason
        FROM queuety.jobs AS j
        LEFT JOIN queuety.queues AS q ON q.name = j.queue
        WHERE j.id = %(id)s
        """,
        {"id": job_id},
    )
    return Waiting(*found[0]) if found else None


def ahead(conn: Connection, job: Waiting) -> int:
    """How many due jobs of its queue are claimed before this one, counted up to MOST. Index: jobs_claim."""
    [(count,)] = reader.rows(
        conn,
        """
        SELECT count(*)
        FROM (
            SELECT 1
            FROM queuety.jobs AS j
            WHERE j.state = 'pending'
                AND j.parked_on IS NULL
                AND j.queue = %(queue)s
                AND j.available_at <= statement_timestamp()
                AND (
                    j.priority < %(priority)s
                    OR (j.priority = %(priority)s AND (j.available_at, j.id) < (%(at)s, %(id)s))
                )
            LIMIT %(most)s
        ) AS before
        """,
        {"queue": job.queue, "priority": job.priority, "at": job.available_at, "id": job.id, "most": MOST},
    )
    return int(count)


def processes(conn: Connection) -> list[Process]:
    """All processes that are registered."""
    found = reader.rows(
        conn,
        """
        SELECT
            w.id, w.kind, w.name, w.host, w.queues, coalesce(w.handlers, '{}'), w.version, w.memory,
            extract(EPOCH FROM statement_timestamp() - w.seen_at)::float8
        FROM queuety.workers AS w
        ORDER BY w.id
        """,
    )
    return [
        Process(number, kind, name, host, tuple(queues), tuple(handlers), version, memory, silent_s)
        for number, kind, name, host, queues, handlers, version, memory, silent_s in found
    ]


def busy(conn: Connection) -> int:
    """How many workers hold jobs. Index: jobs_leases."""
    [(count,)] = reader.rows(
        conn, "SELECT count(DISTINCT j.worker) FROM queuety.jobs AS j WHERE j.lease_until IS NOT NULL"
    )
    return int(count)


def parked(conn: Connection, key: str) -> tuple[int, float, tuple[str, ...]]:
    """(jobs parked on a key, counted up to MOST; seconds for which the oldest is due; their queues).

    Index: jobs_parked.
    """
    [(count, oldest, queues)] = reader.rows(
        conn,
        """
        SELECT
            count(*), coalesce(extract(EPOCH FROM statement_timestamp() - min(p.available_at)), 0)::float8,
            coalesce(array_agg(DISTINCT p.queue), '{}')
        FROM (
            SELECT j.available_at, j.queue FROM queuety.jobs AS j WHERE j.parked_on = %(key)s LIMIT %(most)s
        ) AS p
        """,
        {"key": key, "most": MOST},
    )
    return int(count), float(oldest), tuple(queues)


def parked_for(conn: Connection, queue: str) -> float:
    """Seconds for which the oldest parked job of a queue is due; 0 if there is none. Reads all parked jobs."""
    [(oldest,)] = reader.rows(
        conn,
        """
        SELECT coalesce(extract(EPOCH FROM statement_timestamp() - min(j.available_at)), 0)::float8
        FROM queuety.jobs AS j
        WHERE j.parked_on IS NOT NULL AND j.queue = %(queue)s
        """,
        {"queue": queue},
    )
    return max(0.0, float(oldest))


@dataclass(frozen=True, slots=True)
class Use:
    """What a limited key has and uses. set: the limit stands in the database, and wins over the job's own.

    limit: runs, cost units or starts at most; None: not known here.  used: of that.  window_s: of a rate.
    next_s: seconds until a rate has room again.
    """

    limit: int | None
    used: int
    set: bool
    window_s: float = 0.0
    next_s: float | None = None


def places(conn: Connection, group: str, of_job: int | None) -> Use:
    """Runs of a group. of_job: the limit that the job brings. Index: jobs_group."""
    [(limit, used)] = reader.rows(
        conn,
        """
        SELECT
            (SELECT m.concurrency FROM queuety.meters AS m WHERE m.kind = 'group' AND m.name = %(name)s),
            (queuety.group_use(%(name)s, 0)).places
        """,
        {"name": group},
    )
    return Use(of_job if limit is None else limit, used, limit is not None)


def units(conn: Connection, kind: str, name: str, by_settings: int | None) -> Use:
    """Cost units of a group or queue. kind: group or queue.  by_settings: the budget that the settings name."""
    used = "(queuety.group_use(%(name)s, 0)).cost" if kind == "group" else "queuety.queue_use(%(name)s, 0)"
    [(budget, cost)] = reader.rows(
        conn,
        f"SELECT (SELECT m.budget FROM queuety.meters AS m WHERE m.kind = %(kind)s AND m.name = %(name)s), {used}",
        {"kind": kind, "name": name},
    )
    return Use(by_settings if budget is None else budget, cost, budget is not None)


def starts(conn: Connection, name: str, count: int | None, window_s: float | None) -> Use:
    """Starts under a rate. count, window_s: what the job brings. Index: starts_window."""
    [(limit, window, used, next_s)] = reader.rows(
        conn,
        """
        SELECT r.rate_count, w.s, queuety.rate_use(%(key)s, w.s),
            (
                SELECT extract(EPOCH FROM min(s.begun_by) - clock_timestamp())::float8 + w.s
                FROM queuety.starts AS s
                WHERE s.key = %(key)s AND s.begun_by > clock_timestamp() - make_interval(secs => w.s)
            )
        FROM (SELECT 1) AS one
        LEFT JOIN queuety.meters AS r ON r.kind = 'rate' AND r.name = %(name)s
        CROSS JOIN LATERAL (SELECT coalesce(r.rate_s, %(window)s::float8, 1) AS s) AS w
        """,
        {"key": f"rate:{name}", "name": name, "window": window_s},
    )
    return Use(count if limit is None else limit, int(used), limit is not None, float(window), next_s)


def parked_before(conn: Connection, job: Waiting) -> int:
    """How many jobs of its queue wait for the same key with a better place, counted up to MOST. Index: jobs_parked."""
    [(count,)] = reader.rows(
        conn,
        """
        SELECT count(*)
        FROM (
            SELECT 1
            FROM queuety.jobs AS j
            WHERE j.parked_on = %(key)s
                AND j.queue = %(queue)s
                AND j.available_at <= statement_timestamp()
                AND (j.priority, j.available_at, j.id) < (%(priority)s, %(at)s, %(id)s)
            LIMIT %(most)s
        ) AS before
        """,
        {
            "key": job.parked_on, "queue": job.queue, "priority": job.priority, "at": job.available_at,
            "id": job.id, "most": MOST,
        },
    )  # fmt: skip
    return int(count)


def stranded(conn: Connection) -> tuple[int, float]:
    """(jobs whose lease has run out, counted up to MOST; seconds since the first did). Index: jobs_leases."""
    [(count, longest)] = reader.rows(
        conn,
        """
        SELECT count(*), coalesce(extract(EPOCH FROM statement_timestamp() - min(e.lease_until)), 0)::float8
        FROM (
            SELECT j.lease_until FROM queuety.jobs AS j WHERE j.lease_until < statement_timestamp() LIMIT %(most)s
        ) AS e
        """,
        {"most": MOST},
    )
    return int(count), float(longest)


# ── the server ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Server:
    """What of a server's state can hurt a queue.

    off: names of settings that are off and should not be.  oldest_s, oldest: the longest open transaction, seconds
    and whose.  prepared: prepared transactions that nobody has ended for minutes.  unvacuumed: whether the table of
    jobs is excluded from autovacuum.  dead, live: its row versions.
    """

    version: str
    database: str
    role: str
    off: tuple[str, ...]
    oldest_s: float
    oldest: str
    prepared: int
    unvacuumed: bool
    dead: int
    live: int


def server(conn: Connection) -> Server:
    """Look at the server. What the role may not see of others' sessions counts as not there."""
    [row] = reader.rows(
        conn,
        """
        SELECT
            current_setting('server_version'), current_database()::text, current_user::text,
            ARRAY(
                SELECT s.name
                FROM pg_settings AS s
                WHERE s.name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts')
                    AND s.setting = 'off'
                ORDER BY s.name
            ),
            coalesce(extract(EPOCH FROM statement_timestamp() - oldest.xact_start), 0)::float8,
            coalesce(oldest.who, ''),
            (SELECT count(*) FROM pg_prepared_xacts AS p WHERE p.prepared < statement_timestamp() - interval '5 min'),
            coalesce(
                (
                    SELECT c.reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off']
                    FROM pg_class AS c
                    WHERE c.oid = 'queuety.jobs'::regclass
                ),
                false
            ),
            coalesce(t.n_dead_tup, 0), coalesce(t.n_live_tup, 0)
        FROM (SELECT 1) AS one
        LEFT JOIN pg_stat_user_tables AS t ON t.relid = 'queuety.jobs'::regclass
        LEFT JOIN LATERAL (
            SELECT
                a.xact_start,
                'process ' || a.pid || coalesce(', ' || nullif(a.application_name, ''), '')
                    || coalesce(', ' || a.state, '') AS who
            FROM pg_stat_activity AS a
            WHERE a.backend_type = 'client backend'
                AND a.pid <> pg_backend_pid()
                AND a.xact_start IS NOT NULL
            ORDER BY a.xact_start
            LIMIT 1
        ) AS oldest ON true
        """,
    )
    version, database, role, off, oldest_s, oldest, prepared, unvacuumed, dead, rows = row
    return Server(
        version, database, role, tuple(off), oldest_s, oldest, prepared, bool(unvacuumed), dead, rows
    )


def partitions(conn: Connection) -> tuple[int, list[str]]:
    """(days from today on that every partitioned table has a partition for, default partitions that hold rows)."""
    [(days,)] = reader.rows(
        conn,
        """
        SELECT count(*)
        FROM generate_series(0, 60) AS d (n)
        WHERE NOT EXISTS (
            SELECT
            FROM generate_series(0, d.n) AS e (n)
            CROSS JOIN unnest(ARRAY['finished_jobs', 'job_events']) AS t (name)
            WHERE to_regclass(
                'queuety.' || t.name || to_char((now() AT TIME ZONE 'UTC')::date + e.n, '_YYYYMMDD')
            ) IS NULL
        )
        """,
    )
    names = ("finished_jobs_default", "job_events_default")
    held = [name for name in names if reader.rows(conn, f"SELECT EXISTS (SELECT FROM queuety.{name})")[0][0]]
    return int(days), held
