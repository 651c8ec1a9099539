"""Schedules: what a scheduler costs with 10,000 of them, beside the same process with none.

A third tick every five minutes, a third hourly, a third daily, at minutes of their own; so most ticks come at the
beginning of a minute, and whole minutes are watched. No pool runs: the jobs are written, not worked. Both schedulers
run at the same time, each on a database of its own. CPU time as in `idle`. What it cannot see: next ticks are reckoned
anew once an hour, 500 a second, and the journal is pruned by pools.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import psutil

from bench.child import Child
from bench.common import Bench, Connection, Table, connect, until
from bench.idle import cpu_s
from queuety.features.schedules import sync
from queuety.model import NewJob, NewSchedule
from queuety.store import connect as store

COUNT, SETTLE_S = 10_000, 40.0  # it takes 20 s to reckon them anew, once at the start


def measure(bench: Bench) -> None:
    seconds = 60 * math.ceil(bench.options.seconds / 60)
    with bench.database() as full, bench.database() as empty:
        with store.connect(full) as conn:
            sync(conn, list(_schedules(COUNT)), "bench")
            conn.execute("ANALYZE")
        with _scheduler(full) as loaded, _scheduler(empty) as idle:
            for url, child in ((full, loaded), (empty, idle)):
                with connect(url) as conn:
                    until("a scheduler at work", lambda conn=conn, child=child: _registered(conn, child))  # type: ignore[misc]
            time.sleep(SETTLE_S)
            with connect(full) as conn, connect(empty) as other:
                watched = {
                    "scheduler": (_process(loaded), _process(idle)),
                    "the server's for it": (_backend(conn), _backend(other)),
                }
                before, began = _ticks(conn), time.monotonic()
                used = {name: [cpu_s([one]) for one in both] for name, both in watched.items()}
                time.sleep(seconds)
                took = time.monotonic() - began
                spent = {
                    name: [cpu_s([one]) - so_far for one, so_far in zip(both, used[name], strict=True)]
                    for name, both in watched.items()
                }
                ticks = _ticks(conn) - before
    rows: list[tuple[str | float | int | None, ...]] = [("ticks in that time", ticks, 0)]
    rows += [(f"CPU %, {name}", *(100 * one / took for one in both)) for name, both in spent.items()]
    title = f"schedules: a scheduler for {took:.0f} s"
    bench.show(Table(title, ("", f"{COUNT:,} schedules", "none"), rows, ("100 % is one core",)))


def _schedules(count: int) -> Iterator[NewSchedule]:
    for number in range(count):
        minute, hour = number // 3 % 60, number // 180 % 24
        cron = (f"{minute % 5}-59/5 * * * *", f"{minute} * * * *", f"{minute} {hour} * * *")[number % 3]
        yield NewSchedule(f"schedule {number}", NewJob("nothing", "{}"), cron=cron, timezone="Europe/Berlin")


def _scheduler(url: str) -> Child:
    return Child("queuety.cli.main", "--log-level", "error", "scheduler", url=url)


def _registered(conn: Connection, child: Child) -> bool:
    child.check()
    return conn.execute("SELECT FROM queuety.workers AS w WHERE w.kind = 'scheduler'").fetchone() is not None


def _process(child: Child) -> psutil.Process:
    return psutil.Process(child.pid)


def _backend(conn: Connection) -> psutil.Process:
    """The server process behind the scheduler's connection."""
    row = conn.execute(
        """
        SELECT a.pid
        FROM pg_stat_activity AS a
        WHERE a.datname = current_database() AND a.application_name LIKE 'queuety scheduler %'
        """
    ).fetchone()
    assert row is not None
    return psutil.Process(int(row[0]))


def _ticks(conn: Connection) -> int:
    row = conn.execute("SELECT count(*) FROM queuety.schedule_ticks").fetchone()
    assert row is not None
    return int(row[0])
