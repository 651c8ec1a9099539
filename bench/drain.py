"""Drain: no-op jobs with default settings, from go to an empty table.

The jobs are in the table, vacuumed and analysed, before anybody starts; each contestant has imported, connected and
waits. For our pool go is the moment its paused queue is resumed: a sleeping pool, its wake-up and the growth of its
batches from one job up are inside the time. The end is seen from outside, by a look at the table every 10 ms, so
that everybody is timed by the same clock. What it cannot see: jobs that do something, payloads that are large.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench.child import Child
from bench.common import Bench, BenchError, Connection, Series, Table, connect, until_empty
from bench.peers.environment import Peer, peers
from bench.pool import Pool

JOBS, ROUNDS = 200_000, 5
PAUSE = "INSERT INTO queuety.queues (name, paused_at) VALUES ('default', now()) ON CONFLICT DO NOTHING"


def measure(bench: Bench) -> None:
    jobs, rounds = bench.options.jobs or JOBS, bench.options.rounds or ROUNDS
    with ExitStack() as stack:
        url = stack.enter_context(bench.database())
        others = [
            (peer, stack.enter_context(bench.database(migrated=False))) for peer in peers(bench.options)
        ]
        for peer, place in others:
            peer.install(place)
        for workers in (1, 2):
            series = Series()
            for _ in range(rounds):
                with connect(url) as conn:
                    series.add("floor", floor(conn, url, workers, jobs))
                    series.add("queuety", ours(conn, url, workers, jobs))
                for peer, place in others:
                    series.add(peer.name, theirs(peer, place, workers, jobs))
            bench.show(_table(series, workers, jobs, [peer for peer, _ in others]))


def load(conn: Connection, jobs: int, *, clear: bool = True, limits: str | None = None) -> int:
    """Write `jobs` no-op jobs that are due; returns the lowest id.

    clear: empty the tables first.  limits: JSON, what each must have room for.
    """
    if clear:
        conn.execute("TRUNCATE queuety.jobs, queuety.finished_jobs")
    conn.execute(PAUSE)
    row = conn.execute(
        """
        WITH written AS (
            INSERT INTO queuety.jobs (handler, limits) SELECT 'noop', %s::jsonb FROM generate_series(1, %s)
            RETURNING id
        )
        SELECT min(written.id) FROM written
        """,
        [limits, jobs],
    ).fetchone()
    conn.execute("VACUUM (ANALYZE) queuety.jobs")
    conn.execute("CHECKPOINT")
    assert row is not None
    return int(row[0])


def ours(
    conn: Connection, url: str, workers: int, jobs: int, *, clear: bool = True, limits: str | None = None
) -> float:
    """Jobs per second of a pool."""
    first = load(conn, jobs, clear=clear, limits=limits)
    with Pool(url, workers) as pool:
        pool.until_asleep()
        return time_ours(conn, pool, first, jobs)


def time_ours(conn: Connection, pool: Pool, first: int, jobs: int) -> float:
    """Jobs per second from the moment the loaded queue is resumed."""
    began = time.monotonic()
    with conn.transaction():
        conn.execute("DELETE FROM queuety.queues WHERE name = 'default'")
        conn.execute("SELECT pg_notify('queuety', 'q:default')")
    ended = until_empty(conn, _left(first), pool.child.check)
    _all_completed(conn, first, jobs)
    return jobs / (ended - began)


def floor(conn: Connection, url: str, workers: int, jobs: int) -> float:
    """Jobs per second of the bare loop."""
    first = load(conn, jobs)
    conn.execute("DELETE FROM queuety.queues")
    with ExitStack() as stack:
        crew = [stack.enter_context(Child("bench.floor", url=url)) for _ in range(workers)]
        return jobs / _time(conn, crew, _left(first))


def theirs(peer: Peer, url: str, workers: int, jobs: int) -> float:
    """Jobs per second of a peer; a slow one is given fewer jobs."""
    jobs = max(1000, jobs // peer.share)
    peer.load(url, jobs)
    with connect(url) as conn, ExitStack() as stack:
        conn.execute("VACUUM (ANALYZE)")
        conn.execute("CHECKPOINT")
        crew = [stack.enter_context(peer.worker(url)) for _ in range(workers)]
        return jobs / _time(conn, crew, peer.left)


def _time(conn: Connection, crew: list[Child], look: str) -> float:
    for child in crew:
        child.hear()

    def check() -> None:
        for child in crew:
            child.check()

    began = time.monotonic()
    for child in crew:
        child.go()
    return until_empty(conn, look, check) - began


def _left(first: int) -> str:
    # From the end: while jobs are left, the look ends at once and passes no dead rows.
    return f"SELECT j.id FROM queuety.jobs AS j WHERE j.id >= {first} ORDER BY j.id DESC LIMIT 1"


def _all_completed(conn: Connection, first: int, jobs: int) -> None:
    row = conn.execute(
        "SELECT count(*) FROM queuety.finished_jobs AS f WHERE f.id >= %s AND f.state = 'completed'", [first]
    ).fetchone()
    if row is None or row[0] != jobs:
        raise BenchError(f"{jobs} jobs were written and {row and row[0]} are completed")


def _table(series: Series, workers: int, jobs: int, others: list[Peer]) -> Table:
    rows: list[tuple[str | float | int | None, ...]] = []
    for name in series:
        ratio, span = series.ratio(name, "floor")
        rows.append(
            (
                name,
                series.median(name),
                series.spread(name),
                1 / ratio,
                series.ratio("queuety", name)[0],
                span,
            )
        )
    return Table(
        f"drain: {jobs:,} no-op jobs, {workers} worker{'s' * (workers > 1)}",
        ("", "jobs/s", "spread", "floor ÷ this", "queuety ÷ this", "this ÷ floor by round"),
        rows,
        tuple(f"{peer.name} {peer.version}: {peer.settings}" for peer in others),
    )
