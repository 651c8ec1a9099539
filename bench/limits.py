"""Limits: whether they hold over a fleet, how well what they allow is used, and what they cost.

group: three pools (3, 3 and 2 workers) and one concurrency group of 3; once without kills, with a fifth of the jobs,
and once while a random worker is killed every few seconds. rate: four pools of one worker and a rate of 100 in a
second. Both are told from the ledger that the handlers write, never from Queuety's own tables. parked: the drain of
plain jobs among a million that are parked on full groups. price: the drain of jobs in a group that is never full.
What it cannot see: pools on several hosts, whose network lies between an end and the next start; a run that was killed
counts until just before the signal was sent.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psutil

from bench.common import Bench, BenchError, Connection, Series, Table, connect, percentile, until, until_empty
from bench.drain import ours
from bench.ledger import Ledger, fullest_window, gaps, longest_short, most_at_once, share_in_use
from bench.pool import Pool
from queuety import Queuety

Row = tuple[str | float | int | None, ...]

GROUP_JOBS, POOLS, PLACES = 10_000, (3, 3, 2), 3
KILL_S = 2.0, 4.0  # between two kills, at random
MANY_ATTEMPTS = 50  # a job that is killed often is still completed
RATE_JOBS, RATE_POOLS, RATE = 3_000, (1, 1, 1, 1), (100, 1.0)
DRAIN_JOBS, ROUNDS, MILLION, GROUPS = 200_000, 5, 1_000_000, 10_000
NEVER_FULL = '{"group": "wide", "concurrency": 1000}'
LAST = "SELECT j.id FROM queuety.jobs AS j ORDER BY j.id DESC LIMIT 1"

PARKED = """
INSERT INTO queuety.jobs (handler, limits, parked_on, parked_at)
SELECT 'noop', jsonb_build_object('group', 'g' || n %% %s, 'concurrency', 1), 'group:g' || n %% %s, now()
FROM generate_series(1, %s) AS n
"""
RUNNING = """
INSERT INTO queuety.jobs (handler, limits, state, attempts, lease, worker, claimed_at, lease_until)
VALUES (
    'noop', '{"group": "g0", "concurrency": 1}', 'processing', 1, nextval('queuety.leases'), 'bench#1', now(),
    now() + interval '10 years'
)
"""
STOPPED = """
INSERT INTO queuety.meters (kind, name, concurrency) SELECT 'group', 'g' || n, 0 FROM generate_series(0, %s) AS n
"""


def group(bench: Bench) -> None:
    """Measure a concurrency group, without kills and with."""
    jobs = bench.options.jobs or GROUP_JOBS
    rows = [
        _group(bench, "without kills", max(1, jobs // 5), killing=False),
        _group(bench, "with kills", jobs, killing=True),
    ]
    sizes = " + ".join(map(str, POOLS))
    bench.show(
        Table(
            f"group: {PLACES} places, pools of {sizes} workers, jobs of {bench.options.busy_ms:g} ms",
            (
                *("", "jobs", "runs", "kills", "runs killed", "most at once", "% in use"),
                *("gap p50 ms", "gap p99 ms", "longest not full ms"),
            ),
            rows,
            (
                "in use: all runs together, of the time from first start to last end in every place",
                "gap: from an end to the start that takes the place; not full: fewer runs than places",
            ),
        )
    )


def rate(bench: Bench) -> None:
    """Measure a rate."""
    jobs = bench.options.jobs or RATE_JOBS
    most, window_s = RATE
    with _fleet(bench, RATE_POOLS) as fleet:

        @fleet.app.job(rate_limit=RATE)
        def mark() -> None:
            """Known here by its name and limit only."""

        mark.enqueue_many({} for _ in range(jobs))
        fleet.until_done(jobs)
        starts, begun = fleet.ledger.starts(), {job for job, *_ in fleet.ledger.lines()}
    span = (starts[-1] - starts[most - 1]) / 1e9 if len(starts) > most else 0.0
    bench.show(
        Table(
            f"rate: {most} in {window_s:g} s, {len(RATE_POOLS)} pools of 1 worker, {jobs:,} no-op jobs",
            ("", "in all"),
            [
                ("starts", len(starts)),
                ("jobs started", len(begun)),
                (f"starts in the fullest {window_s:g} s", fullest_window(starts, window_s)),
                (f"starts/s after the first {most}", (len(starts) - most) / span if span else None),
            ],
        )
    )


def parked(bench: Bench) -> None:
    """Measure the drain of plain jobs among those that are parked on full groups."""
    jobs, rounds = bench.options.jobs or DRAIN_JOBS, bench.options.rounds or ROUNDS
    million = max(1, int(MILLION * bench.options.scale))
    groups = max(1, int(GROUPS * bench.options.scale))
    names = "without", "on one group", f"on {groups:,} groups"
    with ExitStack() as stack:
        places = {name: stack.enter_context(bench.database()) for name in names}
        for name, count in zip(names[1:], (1, groups), strict=True):
            with connect(places[name]) as conn:
                _park(conn, million, count)
        for workers in (1, 2):
            series = Series()
            for _ in range(rounds):
                for name, url in places.items():
                    with connect(url) as conn:
                        series.add(name, ours(conn, url, workers, jobs, clear=False))
            title = f"parked: {_drained(jobs, workers)}, among {million:,} parked on full groups"
            bench.show(_compared(title, series, "without"))
        for name in names[1:]:
            with connect(places[name]) as conn:
                _all_parked(conn, million)


def price(bench: Bench) -> None:
    """Measure the drain of jobs in a group that is never full."""
    jobs, rounds = bench.options.jobs or DRAIN_JOBS, bench.options.rounds or ROUNDS
    series = Series()
    with bench.database() as url, connect(url) as conn:
        for _ in range(rounds):
            series.add("plain", ours(conn, url, 1, jobs))
            series.add("in a group of 1,000", ours(conn, url, 1, jobs, limits=NEVER_FULL))
    bench.show(_compared(f"price: {_drained(jobs, 1)}", series, "plain"))


class Fleet:
    """Pools of one database, their ledger, and a caller."""

    def __init__(self, url: str, conn: Connection, ledger: Ledger, pools: list[Pool]) -> None:
        self.app = Queuety(url)
        self.ledger = ledger
        self.kills: list[tuple[int, int]] = []  # process, monotonic nanoseconds just before
        self._conn = conn
        self._pools = pools
        self._kill_at = 0.0

    def until_asleep(self) -> None:
        """Wait until every worker is ready and every pool sleeps."""

        def asleep() -> bool:
            self._check()
            row = self._conn.execute(
                """
                SELECT
                    (SELECT count(*) FROM queuety.workers AS w WHERE w.kind = 'worker'),
                    (SELECT count(DISTINCT s.pool) FROM queuety.sleepers AS s)
                """
            ).fetchone()
            return row == (sum(pool.workers for pool in self._pools), len(self._pools))

        until("a fleet that sleeps", asleep)

    def until_done(self, jobs: int, *, killing: bool = False) -> None:
        """Wait until so many jobs are completed and none is left. killing: random workers, on the way."""
        self._kill_at = time.monotonic() + random.uniform(*KILL_S)

        def look() -> None:
            self._check()
            if killing and time.monotonic() >= self._kill_at:
                self._kill_at = time.monotonic() + random.uniform(*KILL_S)
                self._kill()

        until_empty(self._conn, LAST, look)
        row = self._conn.execute(
            "SELECT count(*) FROM queuety.finished_jobs AS f WHERE f.state = 'completed'"
        ).fetchone()
        if row != (jobs,):
            raise BenchError(f"{jobs} jobs were written and {row and row[0]} are completed")

    def _kill(self) -> None:
        workers = [one for pool in self._pools for kind, one in pool.processes() if kind == "worker"]
        if workers:
            victim = random.choice(workers)
            before = time.monotonic_ns()
            with suppress(psutil.NoSuchProcess):
                victim.kill()
                self.kills.append((victim.pid, before))

    def _check(self) -> None:
        for pool in self._pools:
            pool.child.check()


@contextmanager
def _fleet(bench: Bench, sizes: tuple[int, ...]) -> Iterator[Fleet]:
    """Pools of so many workers each, which sleep, on a fresh database."""
    with ExitStack() as stack:
        url = stack.enter_context(bench.database())
        conn = stack.enter_context(connect(url))
        ledger = stack.enter_context(Ledger.open())
        pools = [stack.enter_context(Pool(url, size, ledger=ledger.fd)) for size in sizes]
        fleet = Fleet(url, conn, ledger, pools)
        stack.callback(fleet.app.close)
        fleet.until_asleep()
        yield fleet


def _group(bench: Bench, name: str, jobs: int, *, killing: bool) -> Row:
    """One row of the group's table."""
    with _fleet(bench, POOLS) as fleet:

        @fleet.app.job(
            concurrency_group="bench", concurrency_limit=PLACES, max_attempts=MANY_ATTEMPTS, backoff=[0]
        )
        def busy(ms: float) -> None:
            """Known here by its name and limits only."""

        busy.enqueue_many({"ms": bench.options.busy_ms} for _ in range(jobs))
        fleet.until_done(jobs, killing=killing)
        runs = fleet.ledger.runs(fleet.kills)
    between = [] if killing else gaps(runs)  # a place that a kill has freed is not an end's
    return (
        name,
        jobs,
        len(runs),
        len(fleet.kills),
        sum(run.killed for run in runs),
        most_at_once(runs),
        100 * share_in_use(runs, PLACES),
        *(percentile(between, share) if between else None for share in (0.5, 0.99)),
        longest_short(runs, PLACES),
    )


def _park(conn: Connection, million: int, groups: int) -> None:
    """Write jobs that are parked on so many full groups: by a run that lasts, or stopped by hand."""
    conn.execute(PARKED.encode(), [groups, groups, million])
    if groups == 1:
        conn.execute(RUNNING.encode())
    else:
        conn.execute(STOPPED.encode(), [groups - 1])
    conn.execute("VACUUM (ANALYZE) queuety.jobs, queuety.meters")
    conn.execute("CHECKPOINT")


def _all_parked(conn: Connection, million: int) -> None:
    row = conn.execute("SELECT count(*) FROM queuety.jobs AS j WHERE j.parked_on LIKE 'group:%'").fetchone()
    if row != (million,):
        raise BenchError(f"of {million} jobs parked on full groups {row and row[0]} still are")


def _drained(jobs: int, workers: int) -> str:
    return f"{jobs:,} no-op jobs, {workers} worker{'s' * (workers > 1)}"


def _compared(title: str, series: Series, to: str) -> Table:
    rows: list[Row] = [
        (name, series.median(name), series.spread(name), *series.ratio(name, to)) for name in series
    ]
    return Table(title, ("", "jobs/s", "spread", f"÷ {to}", "by round"), rows)
