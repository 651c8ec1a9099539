"""What a pool tells of itself in figures: the families, and their samples at one moment."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from queuety.process import host, memory
from queuety.process.exposition import Exposition, Family
from queuety.process.figures import BUCKET, BUCKETS_S, ENDINGS, SUM, Cause
from queuety.process.ledger import Counter, Ledger, Page, Phase

DEPTHS_OLD_S = 120.0  # the keeper's look at the queues is told no longer than this
EXITS = ("asked", "replaced", "early", "died", "cut")

_BY_HANDLER = ("queue", "handler")

SETTLEMENTS = Family(
    "queuety_job_settlements_total",
    "counter",
    "Runs by what became of their job.",
    labels=(*_BY_HANDLER, "settlement"),
)
FAILURES = Family(
    "queuety_job_failures_total",
    "counter",
    "Attempts that failed: the handler raised, was over its time limit, or its process died.",
    labels=(*_BY_HANDLER, "cause"),
)
RUNS = Family(
    "queuety_job_run_seconds", "histogram", "How long runs took, however they ended.", "seconds", _BY_HANDLER
)
GIVEN_BACK = Family("queuety_jobs_given_back_total", "counter", "Jobs that were claimed and not begun.")
PARKED = Family("queuety_jobs_parked_total", "counter", "Times that a job was parked instead of run.")
POOL = Family("queuety_pool_info", "gauge", "Always 1.", labels=("pool", "queues", "version"))
STARTED = Family(
    "queuety_pool_start_time_seconds",
    "gauge",
    "When the pool began, in seconds since 1970.",
    "seconds",
)
READY = Family("queuety_pool_ready", "gauge", "1 if /readyz says so.")
DRAINING = Family("queuety_pool_draining", "gauge", "1 once the pool is to stop.")
WANTED = Family("queuety_workers_wanted", "gauge", "Workers that the pool wants to have.")
WORKERS = Family("queuety_workers", "gauge", "Workers by what they are doing.", labels=("state",))
WORKERS_READY = Family("queuety_workers_ready", "gauge", "Workers that can claim and are not asked to leave.")
STARTS = Family("queuety_worker_starts_total", "counter", "Workers that were started.")
DEATHS = Family(
    "queuety_worker_exits_total",
    "counter",
    "Workers that ended, by why: asked, replaced by themselves, early at their start, died, or cut by us.",
    labels=("reason",),
)
LONGEST = Family(
    "queuety_longest_run_seconds", "gauge", "How long the longest of the present runs has taken.", "seconds"
)
MEMORY = Family(
    "queuety_resident_memory_bytes",
    "gauge",
    "Resident memory by kind of process, that of all workers added up.",
    "bytes",
    ("process",),
)
LARGEST = Family(
    "queuety_largest_worker_memory_bytes", "gauge", "Resident memory of the largest worker.", "bytes"
)
LOOPS = Family("queuety_supervisor_loops_total", "counter", "Turns of the supervisor's loop.")
KEEPER_STARTS = Family(
    "queuety_keeper_starts_total", "counter", "Keepers that were started: one, if all is well."
)
KEEPER_LOOPS = Family("queuety_keeper_loops_total", "counter", "Turns of the keeper's loop.")
KEEPER_SILENCE = Family(
    "queuety_keeper_silence_seconds", "gauge", "Time since the keeper's loop last turned.", "seconds"
)
DATABASE_UP = Family(
    "queuety_database_up",
    "gauge",
    "1 if the database answered the keeper lately; absent while nobody can tell.",
)
DATABASE_SILENCE = Family(
    "queuety_database_silence_seconds",
    "gauge",
    "Time since the database last answered the keeper; absent unless it is up.",
    "seconds",
)
TICKS = Family(
    "queuety_schedule_ticks_total",
    "counter",
    "Ticks of schedules that this pool ran, skipped, or failed to run.",
    labels=("result",),
)
DEPTH = Family(
    "queuety_queue_jobs",
    "gauge",
    "Jobs of this pool's queues in the database, each state counted up to 10000: due, later, parked, buried.",
    labels=("queue", "state"),
)
OLDEST = Family(
    "queuety_queue_oldest_due_seconds",
    "gauge",
    "How long the oldest due job has waited.",
    "seconds",
    ("queue",),
)
OVERDUE = Family(
    "queuety_schedules_overdue",
    "gauge",
    "Schedules of the database whose tick is late by more than a minute.",
)

FAMILIES = (
    *(SETTLEMENTS, FAILURES, RUNS, GIVEN_BACK, PARKED),
    *(
        POOL,
        STARTED,
        READY,
        DRAINING,
        WANTED,
        WORKERS,
        WORKERS_READY,
        STARTS,
        DEATHS,
        LONGEST,
        MEMORY,
        LARGEST,
    ),
    *(LOOPS, KEEPER_STARTS, KEEPER_LOOPS, KEEPER_SILENCE, DATABASE_UP, DATABASE_SILENCE),
    *(TICKS, DEPTH, OLDEST, OVERDUE),
)


@dataclass(slots=True)
class Tally:
    """What the supervisor counts of its own doing."""

    loops: int = 0
    starts: int = 0
    keeper_starts: int = 0
    exits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(EXITS, 0))
    depths: dict[str, Any] = field(default_factory=dict)  # as the keeper has told them
    depths_at: float = 0.0
    started_at: float = field(default_factory=time.time)
    ready_once: bool = False  # some worker has been ready


@dataclass(frozen=True, slots=True)
class Pool:
    """The pool at one moment. workers: process id, page, and whether it is asked to leave.  counts: by Counter."""

    name: str
    queues: str
    version: str
    wanted: int
    workers: list[tuple[int, Page, bool]]
    keeper: int
    draining: bool
    counts: list[int]


def expose(
    pool: Pool,
    ledger: Ledger,
    tally: Tally,
    known: dict[tuple[str, str], None],
    *,
    ready: bool,
    database: bool | None,
    openmetrics: bool,
) -> str:
    """All families as text.

    known: series told apart so far, see Figures.total.  database: whether it answers; None: nobody can tell.
    """
    out = Exposition(openmetrics=openmetrics)
    now = time.monotonic()
    _jobs(out, pool, ledger, known)
    _one(out, READY, ready)
    _processes(out, pool, tally, now, cut_off=database is False)
    if database is not None:
        _one(out, DATABASE_UP, database)
    _keeper(out, ledger, tally, now, database=bool(database))
    _database(out, ledger, tally, now)
    return out.text()


def _jobs(out: Exposition, pool: Pool, ledger: Ledger, known: dict[tuple[str, str], None]) -> None:
    assert ledger.figures is not None
    totals = ledger.figures.total(known)
    names = {name: dict(zip(_BY_HANDLER, name, strict=True)) for name in sorted(totals)}
    out.family(SETTLEMENTS)
    for name, labels in names.items():
        for word, ending in enumerate(ENDINGS):
            out.sample(SETTLEMENTS.name, totals[name][word], {**labels, "settlement": ending})
    out.family(FAILURES)
    for name, labels in names.items():
        for cause in Cause:
            out.sample(FAILURES.name, totals[name][cause], {**labels, "cause": cause.name.lower()})
    out.family(RUNS)
    for name, labels in names.items():
        _histogram(out, totals[name], labels)
    _one(out, GIVEN_BACK, pool.counts[Counter.GIVEN_BACK])
    _one(out, PARKED, pool.counts[Counter.PARKED])


def _histogram(out: Exposition, values: list[float], labels: dict[str, str]) -> None:
    total = 0.0
    for place, most in enumerate((*BUCKETS_S, None)):
        total += values[BUCKET + place]
        # Written alike in both formats, as OpenMetrics wants it.
        out.sample(f"{RUNS.name}_bucket", total, {**labels, "le": "+Inf" if most is None else repr(most)})
    out.sample(f"{RUNS.name}_sum", values[SUM], labels)
    out.sample(f"{RUNS.name}_count", total, labels)


def _processes(out: Exposition, pool: Pool, tally: Tally, now: float, *, cut_off: bool) -> None:
    _one(out, POOL, 1, {"pool": pool.name, "queues": pool.queues, "version": pool.version})
    _one(out, STARTED, tally.started_at)
    _one(out, DRAINING, pool.draining)
    _one(out, WANTED, pool.wanted)
    phases = [page.phase for _, page, _ in pool.workers]
    out.family(WORKERS)
    for phase in (Phase.BOOTING, Phase.LOOKING, Phase.RUNNING, Phase.SLEEPING, Phase.LEAVING):
        out.sample(WORKERS.name, phases.count(phase), {"state": phase.name.lower()})
    able = sum(bool(page.ready) and not told for _, page, told in pool.workers)
    _one(out, WORKERS_READY, 0 if cut_off else able)
    _one(out, STARTS, tally.starts)
    out.family(DEATHS)
    for reason, count in tally.exits.items():
        out.sample(DEATHS.name, count, {"reason": reason})
    runs = [now - page.began for _, page, _ in pool.workers if page.current >= 0]
    _one(out, LONGEST, max(0.0, *runs, 0.0))
    sizes = [memory.resident(pid) or 0 for pid, _, _ in pool.workers]
    out.family(MEMORY)
    out.sample(MEMORY.name, host.own_memory(), {"process": "supervisor"})
    out.sample(MEMORY.name, (memory.resident(pool.keeper) or 0) if pool.keeper else 0, {"process": "keeper"})
    out.sample(MEMORY.name, sum(sizes), {"process": "workers"})
    _one(out, LARGEST, max(sizes, default=0))


def _keeper(out: Exposition, ledger: Ledger, tally: Tally, now: float, *, database: bool) -> None:
    assert ledger.figures is not None
    sheet = ledger.figures.keeper
    _one(out, LOOPS, tally.loops)
    _one(out, KEEPER_STARTS, tally.keeper_starts)
    _one(out, KEEPER_LOOPS, sheet.turns)
    if sheet.turned_at:
        _one(out, KEEPER_SILENCE, max(0.0, now - sheet.turned_at))
    if database:
        _one(out, DATABASE_SILENCE, max(0.0, now - sheet.seen_at))
    out.family(TICKS)
    for kind, count in sheet.ticks().items():
        out.sample(TICKS.name, count, {"result": kind})


def _database(out: Exposition, ledger: Ledger, tally: Tally, now: float) -> None:
    if not tally.depths or now - tally.depths_at > DEPTHS_OLD_S:
        return
    queues = tally.depths["queues"]
    out.family(DEPTH)
    for queue, depth in queues.items():
        for state in ("due", "later", "parked", "buried"):
            out.sample(DEPTH.name, depth[state], {"queue": queue, "state": state})
    out.family(OLDEST)
    for queue, depth in queues.items():
        # What is due goes on waiting while nobody looks.
        waited = depth["oldest"] + (now - tally.depths_at) if depth["due"] else 0.0
        out.sample(OLDEST.name, waited, {"queue": queue})
    _one(out, OVERDUE, tally.depths["overdue"])


def _one(out: Exposition, family: Family, value: float, labels: dict[str, str] | None = None) -> None:
    out.family(family)
    out.sample(family.name, value, labels)
