"""Latency: from enqueue to the handler's first line, on an idle pool of 4.

One job at a time, after a pause of 0.1 to 0.4 s, so that the pool sleeps. The handler reads CLOCK_MONOTONIC, which
all processes of a host share. "From the call" includes the INSERT and its commit; "from the return" is what is left
once the caller has gone on, and may be below zero. What it cannot see: a database on another host.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack

from bench.common import Bench, BenchError, Table, percentile
from bench.peers.environment import Peer, peers
from bench.pool import Pool
from queuety import Queuety

SAMPLES, WORKERS, GROUP = 300, 4, 10
Sample = tuple[float, float]


def measure(bench: Bench) -> None:
    samples = bench.options.samples or SAMPLES
    with ExitStack() as stack:
        url = stack.enter_context(bench.database())
        sources = {"queuety": _ours(url, stack)}
        notes = []
        for peer in peers(bench.options):
            place = stack.enter_context(bench.database(migrated=False))
            peer.install(place)
            sources[peer.name] = _theirs(peer, place, stack)
            notes.append(f"{peer.name} {peer.version}: {peer.settings}, 1 process")
        taken: dict[str, list[Sample]] = {name: [] for name in sources}
        for source in sources.values():
            for _ in range(3):
                next(source)  # the first ones connect and prepare
        while any(len(found) < samples for found in taken.values()):
            for name, source in sources.items():  # in turns, so that nobody has the quieter minute
                taken[name] += [next(source) for _ in range(min(GROUP, samples - len(taken[name])))]
    rows: list[tuple[str | float | int | None, ...]] = []
    for name, found in taken.items():
        for what, values in (("call", [a for a, _ in found]), ("return", [b for _, b in found])):
            rows.append(
                (
                    f"{name}, from the {what}",
                    *(percentile(values, share) for share in (0.5, 0.99)),
                    max(values),
                )
            )
    bench.show(
        Table(
            f"latency: enqueue to start, idle pool of {WORKERS}, {samples} samples",
            ("", "p50 ms", "p99 ms", "max ms"),
            rows,
            tuple(notes),
        )
    )


def _pause() -> None:
    time.sleep(random.uniform(0.1, 0.4))


def _ours(url: str, stack: ExitStack) -> Iterator[Sample]:
    """Milliseconds from call and return of enqueue to the start, one after the other."""
    pool = stack.enter_context(Pool(url, WORKERS))
    pool.until_asleep()
    app = Queuety(url)
    stack.callback(app.close)

    @app.job
    def stamp(n: int) -> None:
        """Known here by its name and signature only."""

    n = 0
    while True:
        n += 1
        _pause()
        called = time.monotonic_ns()
        stamp.enqueue(n)
        returned = time.monotonic_ns()
        number, began = pool.stamp()
        if number != n:
            raise BenchError(f"job {number} began where {n} was due")
        yield (began - called) / 1e6, (began - returned) / 1e6


def _theirs(peer: Peer, url: str, stack: ExitStack) -> Iterator[Sample]:
    worker = stack.enter_context(peer.worker(url))
    worker.hear()
    worker.go()
    client = stack.enter_context(peer.pulse(url))
    client.hear()
    time.sleep(2)
    while True:
        _pause()
        client.go()
        told = client.hear()
        began = int(worker.hear(60)["began"])
        yield (began - int(told["called"])) / 1e6, (began - int(told["returned"])) / 1e6
