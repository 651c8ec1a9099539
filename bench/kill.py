"""Kill: from a worker's SIGKILL by its own job to the next start of that job, with a back-off of nothing.

In a pool of 4 the next start is another worker's; in a pool of 1 a new worker has to be forked, to import the
application and to connect first. What it cannot see: the death of a whole host.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.common import Bench, BenchError, Table, percentile
from bench.pool import Pool
from queuety import Queuety

SAMPLES = 30


def measure(bench: Bench) -> None:
    samples = bench.options.samples or SAMPLES
    rows: list[tuple[str | float | int | None, ...]] = []
    for workers in (4, 1):
        with bench.database() as url:
            found = list(_samples(url, workers, samples))
        rows.append((f"pool of {workers}", percentile(found, 0.5), percentile(found, 0.9), max(found)))
    bench.show(
        Table(
            f"kill: SIGKILL of a worker to the next start of its job, {samples} samples",
            ("", "p50 ms", "p90 ms", "max ms"),
            rows,
        )
    )


def _samples(url: str, workers: int, samples: int) -> Iterator[float]:
    app = Queuety(url)
    with Pool(url, workers) as pool:
        for n in range(samples):
            pool.until_asleep()
            app.enqueue("die", {"n": n}, backoff=[0], max_attempts=2)
            first, second = pool.stamp(), pool.stamp()
            if first[0] != n or second[0] != n:
                raise BenchError(f"jobs {first[0]} and {second[0]} began where {n} was due twice")
            yield (second[1] - first[1]) / 1e6
    app.close()
