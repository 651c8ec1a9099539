"""Real pools that are limited, watched from outside by what their handlers note."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from queuety import Queuety
from queuety.store.connect import connect
from tests.checks import attempts, states
from tests.daemon import Daemon, Entry, daemon, read_ledger, until
from tests.test_meters import app as app

LIMITED = "tests.apps.limited:app"
QUICK = {"QUEUETY_WORKER_SLEEP": "0.5", "QUEUETY_STALE_TIMEOUT": "4"}


def spans(ledger: Path) -> list[tuple[float, float]]:
    """When each run began and ended, by the handlers' notes; one that was killed ends where its worker did."""
    begun: dict[tuple[int, int], Entry] = {}
    found = []
    for entry in read_ledger(ledger):
        if entry.what == "start":
            begun[entry.job, entry.attempt] = entry
        else:
            found.append((begun.pop((entry.job, entry.attempt)).at, entry.at))
    return sorted([*found, *((entry.at, entry.at) for entry in begun.values())])


def most_at_once(runs: list[tuple[float, float]]) -> int:
    """How many ran at the same time at most."""
    moments = sorted([(at, 1) for at, _ in runs] + [(at, -1) for _, at in runs], key=lambda m: (m[0], m[1]))
    most = now = 0
    for _, step in moments:
        now += step
        most = max(most, now)
    return most


def most_within(starts: list[float], seconds: float) -> int:
    """How many starts the fullest window of that length holds; a start on its end is outside."""
    most = first = 0
    for last, at in enumerate(starts):
        while at - starts[first] >= seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


@pytest.fixture
def pools(database: str, tmp_path: Path) -> Iterator[list[Daemon]]:
    """Three pools, eight workers in all."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                daemon(
                    database,
                    f"--workers={count}",
                    app=LIMITED,
                    ledger=tmp_path / "ledger",
                    log=tmp_path / f"log{number}",
                    env=QUICK,
                )
            )
            for number, count in enumerate((3, 3, 2))
        ]


def drained(database: str, seconds: float) -> None:
    def empty() -> bool:
        with connect(database) as conn:
            return conn.execute("SELECT count(*) FROM queuety.jobs").fetchone() == (0,)

    until(empty, seconds, "an empty table of jobs")


class Killer(threading.Thread):
    """Kills a random worker of the pools now and then."""

    def __init__(self, pools: list[Daemon], every_s: float) -> None:
        super().__init__(daemon=True)
        self.pools, self.every_s = pools, every_s
        self.kills = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(random.uniform(0.5, 1.5) * self.every_s):
            workers = random.choice(self.pools).workers()
            if workers:
                with suppress(psutil.NoSuchProcess):
                    random.choice(workers).kill()
                    self.kills += 1


@pytest.mark.parametrize(
    ("jobs", "seconds", "every_s"),
    [
        pytest.param(150, 0.05, 1.0),
        pytest.param(10_000, 0.03, 5.0, marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
def test_a_group_of_three_holds_over_three_pools_whose_workers_are_killed(
    app: Queuety,
    database: str,
    pools: list[Daemon],
    tmp_path: Path,
    jobs: int,
    seconds: float,
    every_s: float,
):
    for pool in pools:
        pool.ready(2)
    killer = Killer(pools, every_s)
    killer.start()

    app.enqueue_many([("work", {"seconds": seconds})] * jobs)
    drained(database, 60 + jobs * seconds)
    killer.over.set()

    runs = spans(tmp_path / "ledger")
    assert killer.kills > 0
    assert most_at_once(runs) <= 3
    assert states(database)["completed"] == jobs


@pytest.mark.parametrize("how", ["return", "raise", "die", "cancel", "delete", "kill"])
def test_every_kind_of_end_frees_its_place(
    app: Queuety, database: str, pools: list[Daemon], tmp_path: Path, how: str
):
    pools[0].ready(3)
    first = [
        app.enqueue("ends", {"how": "sleep" if how in ("cancel", "delete", "kill") else how})
        for _ in range(2)
    ]
    until(lambda: len(read_ledger(tmp_path / "ledger")) >= 2)
    began = time.monotonic()
    rest = [app.enqueue("ends", {"how": "return"}) for _ in range(20)]
    for job in first:
        if how == "cancel":
            job.cancel()
        elif how == "delete":
            with connect(database) as conn:
                conn.execute("DELETE FROM queuety.jobs WHERE id = %s", [job.id])
        elif how == "kill":
            victim = next(e.pid for e in read_ledger(tmp_path / "ledger") if e.job == job.id)
            with suppress(psutil.NoSuchProcess):
                psutil.Process(victim).kill()

    until(lambda: all(job.state().final for job in rest), 15)

    ended = [e.at for e in read_ledger(tmp_path / "ledger") if e.job in {job.id for job in rest}]
    if (
        how != "delete"
    ):  # a run whose row is gone goes on until its worker hears of it; its place is free at once
        assert most_at_once(spans(tmp_path / "ledger")) <= 2
    assert min(ended) - began < 4


def test_a_group_of_one_runs_all_of_its_jobs(
    app: Queuety, database: str, pools: list[Daemon], tmp_path: Path
):
    pools[0].ready(3)
    for _ in range(10):
        app.enqueue("work", {"seconds": 0.02}, concurrency_group="one", concurrency_limit=1)

    drained(database, 20)

    runs = spans(tmp_path / "ledger")
    assert len(runs) == 10
    assert most_at_once(runs) == 1


@pytest.mark.parametrize("jobs", [8, pytest.param(20, marks=pytest.mark.soak)])
def test_a_rate_costs_no_attempt(app: Queuety, database: str, pools: list[Daemon], tmp_path: Path, jobs: int):
    pools[0].ready(3)
    for _ in range(jobs):
        app.enqueue("twice")

    drained(database, jobs + 10)

    starts = [entry.at for entry in read_ledger(tmp_path / "ledger") if entry.what == "start"]
    assert len(starts) == jobs
    assert most_within(sorted(starts), 1.0) <= 2
    assert set(attempts(database).values()) == {1}
    assert sorted(starts)[-1] - min(starts) < jobs / 2 + 2


@pytest.mark.parametrize("jobs", [350, pytest.param(3000, marks=pytest.mark.soak)])
def test_a_hundred_a_second_over_four_pools(app: Queuety, database: str, tmp_path: Path, jobs: int):
    with ExitStack() as stack:
        pools = [
            stack.enter_context(
                daemon(
                    database,
                    "--queue=rated",
                    app=LIMITED,
                    ledger=tmp_path / "ledger",
                    log=tmp_path / f"log{number}",
                )
            )
            for number in range(4)
        ]
        for pool in pools:
            pool.ready()
        app.enqueue_many([("hundred", {})] * jobs)
        drained(database, jobs / 100 * 2 + 20)

    starts = sorted(entry.at for entry in read_ledger(tmp_path / "ledger") if entry.what == "start")
    assert len(starts) == jobs
    assert most_within(starts, 1.0) <= 100


@pytest.mark.parametrize("how", ["return", "raise", "die", "cancel", "kill", "urgent"])
def test_a_place_that_becomes_free_is_taken_without_waiting_for_a_poll(
    app: Queuety, database: str, tmp_path: Path, how: str
):
    ledger = tmp_path / "ledger"
    slow = {"QUEUETY_WORKER_SLEEP": "60"}
    with daemon(database, "--workers=2", app=LIMITED, ledger=ledger, log=tmp_path / "log", env=slow) as pool:
        pool.ready(2)
        one = {"concurrency_group": "one", "concurrency_limit": 1}
        way = "sleep" if how in ("cancel", "kill") else "return" if how == "urgent" else how
        first = app.enqueue("ends", {"how": way}, max_attempts=1, **one)
        until(lambda: read_ledger(ledger))
        if how == "urgent":  # whoever frees the place has something better to do than to take it
            app.enqueue("costs", {"seconds": 3}, queue="default", priority="urgent")
        second = app.enqueue("ends", {"how": "return"}, **one)
        if how == "cancel":
            first.cancel()
        elif how == "kill":
            psutil.Process(read_ledger(ledger)[0].pid).kill()

        until(lambda: second.state().final, 15, pool.log())

    assert most_at_once([run for run in spans(ledger) if run[0] != run[1]]) <= 2


def test_a_lone_worker_and_a_flush_run_all_that_their_own_ends_make_room_for(
    app: Queuety, database: str, tmp_path: Path
):
    app.enqueue_many([("work", {})] * 30)
    with connect(database) as conn:
        conn.execute("UPDATE queuety.jobs SET parked_on = 'group:three', parked_at = now()")

    assert app.worker().flush().completed == 30

    app.enqueue_many([("work", {})] * 30)
    with daemon(database, "--workers=2", app=LIMITED, command="flush", log=tmp_path / "log") as pool:
        assert pool.wait(30) == 0
        assert "30 completed" in pool.log()


def test_a_flush_and_once_never_wait_for_a_limit(app: Queuety, database: str, tmp_path: Path):
    app.limit("group:three", concurrency=0)
    app.enqueue_many([("work", {})] * 5)
    free = app.enqueue("free")

    with daemon(database, app=LIMITED, command="flush", log=tmp_path / "log") as pool:
        assert pool.wait(30) == 0
        assert "5 parked" in pool.log()
    with daemon(database, "--once", app=LIMITED, log=tmp_path / "log") as pool:
        assert pool.wait(30) == 0

    assert free.state() == "completed"
    assert states(database)["pending"] == 5


@pytest.mark.parametrize("how", ["return", "cancel", "kill", "urgent"])
def test_a_place_is_handed_over_to_another_pool_without_waiting_for_a_poll(
    app: Queuety, database: str, tmp_path: Path, how: str
):
    ledger, slow = tmp_path / "ledger", {"QUEUETY_WORKER_SLEEP": "60"}
    theirs = "--queue=qa" if how == "urgent" else "--queue=qb"
    with (
        daemon(database, "--queue=qa", app=LIMITED, ledger=ledger, log=tmp_path / "a", env=slow) as first,
        daemon(database, theirs, app=LIMITED, ledger=ledger, log=tmp_path / "b", env=slow) as second,
    ):
        first.ready()
        second.ready()
        time.sleep(1.0)  # asleep, and registered as such
        one = {"concurrency_group": "one", "concurrency_limit": 1, "max_attempts": 1}
        long = {"how": "sleep"} if how in ("cancel", "kill") else {"how": "return"}
        holder = app.enqueue("ends", long, queue="qa", **one)
        until(lambda: read_ledger(ledger))
        waiting = app.enqueue("ends", {"how": "return"}, queue=theirs.removeprefix("--queue="), **one)
        if how == "urgent":
            app.enqueue("costs", {"seconds": 3}, queue="qa", priority="urgent")
            app.enqueue("costs", {"seconds": 3}, queue="qa", priority="urgent")
        if how == "cancel":
            holder.cancel()
        elif how == "kill":
            psutil.Process(read_ledger(ledger)[0].pid).kill()

        until(lambda: waiting.state().final, 15, first.log() + second.log())


def test_a_rate_is_kept_up_by_a_pool_that_hardly_polls(app: Queuety, database: str, tmp_path: Path):
    ledger, slow = tmp_path / "ledger", {"QUEUETY_WORKER_SLEEP": "60"}
    with daemon(database, app=LIMITED, ledger=ledger, log=tmp_path / "log", env=slow) as pool:
        pool.ready()
        jobs = [app.enqueue("twice") for _ in range(9)]

        until(lambda: all(job.state().final for job in jobs), 20, pool.log())

    assert most_within(sorted(e.at for e in read_ledger(ledger) if e.what == "start"), 1.0) <= 2


def test_a_limit_that_is_raised_is_used_at_once(app: Queuety, database: str, tmp_path: Path):
    slow = {"QUEUETY_WORKER_SLEEP": "60"}
    app.limit("group:three", concurrency=0)
    with daemon(database, app=LIMITED, log=tmp_path / "log", env=slow) as pool:
        pool.ready()
        jobs = [app.enqueue("work") for _ in range(3)]
        until(lambda: app.find(jobs[0].id).parked_on)
        time.sleep(1.0)

        app.limit("group:three", concurrency=1)

        until(lambda: all(job.state().final for job in jobs), 15, pool.log())
