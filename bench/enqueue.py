"""Enqueue: single from one and from eight clients against bare INSERTs, bulk against a bare COPY, same table.

Each client is a process with one connection; the time runs from go to the end of the last client. No pool is
running. The bare INSERT has the same columns and commits each row; the bare COPY sends lines that were made before
the clock started, and lets the table number them. What it cannot see: payloads that are large, a network.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench.child import Child
from bench.common import Bench, Series, Table, connect
from bench.peers.environment import Peer, peers

SINGLE, BULK, ROUNDS = 4_000, 200_000, 5


def measure(bench: Bench) -> None:
    asked, rounds = bench.options.jobs, bench.options.rounds or ROUNDS
    single, bulk = min(asked or SINGLE, SINGLE), asked or BULK
    with ExitStack() as stack:
        url = stack.enter_context(bench.database())
        others = [
            (peer, stack.enter_context(bench.database(migrated=False))) for peer in peers(bench.options)
        ]
        for peer, place in others:
            peer.install(place)
        for clients in (1, 8):
            series = Series()
            for _ in range(rounds):
                for name, way in (("bare INSERT", "insert"), ("queuety", "single")):
                    series.add(name, _rate(url, way, clients, single))
                for peer, place in others:
                    series.add(peer.name, _their_rate(peer, place, clients, single))
            title = (
                f"enqueue: {clients} client{'s' * (clients > 1)}, {single:,} jobs each, one transaction a job"
            )
            bench.show(_table(title, series, "bare INSERT"))
        series = Series()
        for _ in range(rounds):
            for name, way in (("bare COPY", "copy"), ("queuety", "bulk")):
                series.add(name, _rate(url, way, 1, bulk))
            for peer, place in others:
                series.add(peer.name, peer.load(place, max(1000, bulk // peer.share)))
        bench.show(_table(f"enqueue: bulk, {bulk:,} jobs in one call", series, "bare COPY"))


def _rate(url: str, way: str, clients: int, jobs: int) -> float:
    """Jobs per second of all clients together."""
    with connect(url) as conn:
        conn.execute("TRUNCATE queuety.jobs")
        conn.execute("CHECKPOINT")
    with ExitStack() as stack:
        crew = [stack.enter_context(Child("bench.client", way, str(jobs), url=url)) for _ in range(clients)]
        return _time(crew, jobs)


def _their_rate(peer: Peer, url: str, clients: int, jobs: int) -> float:
    jobs = max(500, jobs // peer.share)
    with ExitStack() as stack:
        crew = [stack.enter_context(peer.client(url, jobs)) for _ in range(clients)]
        return _time(crew, jobs)


def _time(crew: list[Child], jobs: int) -> float:
    for child in crew:
        child.hear()
    began = time.monotonic()
    for child in crew:
        child.go()
    ended = max(float(child.hear()["ended"]) for child in crew)
    return len(crew) * jobs / (ended - began)


def _table(title: str, series: Series, bare: str) -> Table:
    rows: list[tuple[str | float | int | None, ...]] = []
    for name in series:
        ratio, span = series.ratio(name, bare)
        rows.append((name, series.median(name), series.spread(name), ratio, span))
    return Table(title, ("", "jobs/s", "spread", f"÷ {bare}", "by round"), rows)
