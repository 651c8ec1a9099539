"""Idle: what a pool of 4 with an empty queue costs.

Transactions are the difference of pg_stat_database, asked from another database; sessions hand in their counts up to
ten seconds late, which is why the watch begins only then, and autovacuum's transactions are among them. CPU time is
the scheduler's where the kernel tells it (nanoseconds), else in ticks. What it cannot see: duties run once an hour.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from bench.common import Bench, Table, connect
from bench.pool import Pool

WORKERS, SETTLE_S = 4, 15.0


def measure(bench: Bench) -> None:
    seconds = bench.options.seconds
    with bench.database() as url, Pool(url, WORKERS) as pool:
        pool.until_asleep()
        own = pool.processes()
        backends = pool.backends()
        pool.hang_up()
        time.sleep(SETTLE_S)
        with connect(bench.server.url) as conn:

            def transactions() -> int:
                row = conn.execute(
                    "SELECT d.xact_commit + d.xact_rollback FROM pg_stat_database AS d WHERE d.datname = %s",
                    [urlsplit(url).path[1:]],
                ).fetchone()
                return int(row[0]) if row else 0

            before, began = transactions(), time.monotonic()
            used = {kind: cpu_s(one for name, one in own if name == kind) for kind, _ in own}
            served = cpu_s(backends)
            time.sleep(seconds)
            took = time.monotonic() - began
            done = transactions() - before
            used = {kind: cpu_s(one for name, one in own if name == kind) - used[kind] for kind in used}
            served = cpu_s(backends) - served
    rows: list[tuple[str | float | int | None, ...]] = [
        ("transactions/s", done / took),
        *((f"CPU %, {kind}{'s' * (kind == 'worker')}", 100 * spent / took) for kind, spent in used.items()),
        ("CPU %, the pool's processes together", 100 * sum(used.values()) / took),
        ("CPU %, the server's for it", 100 * served / took),
    ]
    bench.show(
        Table(f"idle: pool of {WORKERS} for {took:.0f} s", ("", "in all"), rows, ("100 % is one core",))
    )


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """CPU seconds that the processes have used so far, all threads."""
    return sum(_scheduled_s(one.pid) or sum(one.cpu_times()[:2]) for one in processes)


def _scheduled_s(pid: int) -> float:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
