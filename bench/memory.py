"""Memory: of each process of a pool that has just run some jobs, and of what the application takes by itself.

RSS counts shared pages in full, PSS by share, USS not at all: USS is what ends with the process. The baseline is a
process that imports the application and psycopg and connects, so that "over the baseline" is what being a worker adds.
What it cannot see: what handlers allocate.
"""

from __future__ import annotations

import time

import psutil

from bench.child import Child
from bench.common import Bench, Table, connect
from bench.drain import load, time_ours
from bench.pool import Pool

WORKERS, JOBS = 2, 20_000
MB = 1024 * 1024


def measure(bench: Bench) -> None:
    jobs = min(bench.options.jobs or JOBS, JOBS)
    with bench.database() as url, connect(url) as conn:
        first = load(conn, jobs)
        with Pool(url, WORKERS) as pool, Child("bench.baseline", url=url) as child:
            child.hear()
            pool.until_asleep()
            time_ours(conn, pool, first, jobs)
            time.sleep(1)
            baseline = _read(psutil.Process(child.pid))
            found = [(kind, _read(one)) for kind, one in pool.processes()]
    rows: list[tuple[str | float | int | None, ...]] = [
        ("application + psycopg alone", *baseline, None, None)
    ]
    for kind, read in found:
        over = (read[0] - baseline[0], read[2] - baseline[2]) if kind == "worker" else (None, None)
        rows.append((kind, *read, *over))
    few = [read for kind, read in found if kind in ("supervisor", "keeper")]
    rows.append(
        ("supervisor + keeper", *(sum(read[place] for read in few) for place in range(3)), None, None)
    )
    bench.show(
        Table(
            f"memory: pool of {WORKERS} after {jobs:,} jobs, MB",
            ("", "RSS", "PSS", "USS", "RSS over baseline", "USS over baseline"),
            rows,
        )
    )


def _read(process: psutil.Process) -> tuple[float, float, float]:
    """RSS, PSS and USS in MB; PSS is nan where the kernel does not tell."""
    info = process.memory_full_info()
    return info.rss / MB, getattr(info, "pss", float("nan")) / MB, info.uss / MB
