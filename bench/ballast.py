"""Ballast: the drain among rows that a claim has nothing to do with, as ratio to tables without them.

A million finished jobs; a million pending in another queue; half a million in the drained queue that are due
tomorrow, at all four levels; a million in the drained queue that are parked. Both databases take their turns and keep
what earlier rounds left. What it cannot see: ballast that does not fit into memory.
"""

from __future__ import annotations

from bench.common import Bench, Connection, Series, Table, connect
from bench.drain import ours

JOBS, ROUNDS, MILLION = 200_000, 5, 1_000_000

FINISHED = """
INSERT INTO queuety.finished_jobs (
    id, queue, handler, state, priority, attempts, max_attempts, payload, available_at, created_at, started_at,
    finished_at, worker
)
SELECT
    nextval(pg_get_serial_sequence('queuety.jobs', 'id')), 'default', 'noop', 'completed', 2, 1, 3, '{}', now(),
    now(), now(), now(), 'bench#1'
FROM generate_series(1, %s)
"""
ELSEWHERE = "INSERT INTO queuety.jobs (handler, queue) SELECT 'noop', 'elsewhere' FROM generate_series(1, %s)"
FUTURE = """
INSERT INTO queuety.jobs (handler, priority, available_at)
SELECT 'noop', n %% 4, now() + interval '1 day' FROM generate_series(1, %s) AS n
"""
PARKED = """
INSERT INTO queuety.jobs (handler, parked_on, parked_at) SELECT 'noop', 'bench:full', now() FROM generate_series(1, %s)
"""


def measure(bench: Bench) -> None:
    jobs, rounds = bench.options.jobs or JOBS, bench.options.rounds or ROUNDS
    million = max(1, int(MILLION * bench.options.scale))
    with bench.database() as plain, bench.database() as full:
        with connect(full) as conn:
            _fill(conn, million)
        for workers in (1, 2):
            series = Series()
            for _ in range(rounds):
                for name, url in (("without", plain), ("with ballast", full)):
                    with connect(url) as conn:
                        series.add(name, ours(conn, url, workers, jobs, clear=False))
            bench.show(_table(series, workers, jobs, million))


def _fill(conn: Connection, million: int) -> None:
    for statement, count in (
        (FINISHED, million),
        (ELSEWHERE, million),
        (FUTURE, million // 2),
        (PARKED, million),
    ):
        conn.execute(statement.encode(), [count])
    conn.execute("VACUUM (ANALYZE) queuety.jobs, queuety.finished_jobs")
    conn.execute("CHECKPOINT")


def _table(series: Series, workers: int, jobs: int, million: int) -> Table:
    ratio, span = series.ratio("with ballast", "without")
    return Table(
        f"ballast: {jobs:,} no-op jobs, {workers} worker{'s' * (workers > 1)}, among {million:,} finished, "
        f"{million:,} pending elsewhere, {million // 2:,} future, {million:,} parked",
        ("", "jobs/s", "spread", "÷ without", "by round"),
        [
            ("without", series.median("without"), series.spread("without"), 1.0, ""),
            ("with ballast", series.median("with ballast"), series.spread("with ballast"), ratio, span),
        ],
    )
