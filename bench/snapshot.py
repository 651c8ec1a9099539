"""Snapshot: the drain while a transaction elsewhere holds an old snapshot, as ratio to the drain without it.

A REPEATABLE READ transaction of another session is opened after the jobs have been written and stays open until the
last one is settled, so that no row and no index entry of the whole drain can be cleaned up. What it cannot see:
snapshots that stay open for longer than one drain.
"""

from __future__ import annotations

from contextlib import ExitStack

import psycopg

from bench.common import Bench, Series, Table, connect
from bench.drain import load, time_ours
from bench.pool import Pool

JOBS, ROUNDS = 1_000_000, 3


def measure(bench: Bench) -> None:
    jobs, rounds = bench.options.jobs or JOBS, bench.options.rounds or ROUNDS
    with bench.database() as url:
        for workers in (1, 2):
            series = Series()
            for _ in range(rounds):
                series.add("without", _drain(url, workers, jobs, held=False))
                series.add("snapshot held", _drain(url, workers, jobs, held=True))
            ratio, span = series.ratio("snapshot held", "without")
            bench.show(
                Table(
                    f"snapshot: {jobs:,} no-op jobs, {workers} worker{'s' * (workers > 1)}",
                    ("", "jobs/s", "spread", "÷ without", "by round"),
                    [
                        ("without", series.median("without"), series.spread("without"), 1.0, ""),
                        (
                            "snapshot held",
                            series.median("snapshot held"),
                            series.spread("snapshot held"),
                            ratio,
                            span,
                        ),
                    ],
                )
            )


def _drain(url: str, workers: int, jobs: int, *, held: bool) -> float:
    with ExitStack() as stack:
        conn = stack.enter_context(connect(url))
        first = load(conn, jobs)
        if held:
            other = stack.enter_context(psycopg.connect(url))
            other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            other.execute("SELECT 1 FROM queuety.jobs AS j LIMIT 1")
        pool = stack.enter_context(Pool(url, workers))
        pool.until_asleep()
        return time_ours(conn, pool, first, jobs)
