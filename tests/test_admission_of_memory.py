"""Memory and time: what runs take is measured, and a job begins only where there is room for it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from queuety import Queuety
from queuety.policy.profile import CLASSES
from queuety.process.memory import ROOT
from queuety.store import profiles
from queuety.store.connect import Connection
from queuety.store.profiles import Taken
from tests.daemon import Daemon, daemon, read_ledger, until

APP = "tests.apps.memory:app"
MB = 1 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a run has taken")


@pytest.fixture
def app(database):
    with_url = Queuety(database)
    yield with_url
    with_url.close()


@pytest.fixture
def files(tmp_path):
    return {"app": APP, "ledger": tmp_path / "ledger", "log": tmp_path / "log"}


def taught(conn: Connection, handler: str, *, mb: int = 0, seconds: float = 0.05) -> None:
    """A handler that has run before."""
    durations = [0] * CLASSES
    durations[min(int(2 * seconds) + 20, CLASSES - 1)] = 1
    profiles.add(conn, [Taken(handler, 1, seconds, durations, mb * MB, mb * MB)])


def peaks(conn: Connection) -> dict[str, int]:
    return dict(conn.execute("SELECT handler, max(peak) FROM queuety.profiles GROUP BY handler").fetchall())


def parked(conn: Connection, key: str) -> int:
    [count] = conn.execute("SELECT count(*) FROM queuety.jobs WHERE parked_on = %s", [key]).fetchone() or (0,)
    return int(count)


def claims_so_far(conn: Connection) -> int:
    [number] = conn.execute("SELECT last_value FROM queuety.leases").fetchone() or (0,)
    return int(number)


class Container:
    """A directory with the files that the kernel shows of a container with limited memory."""

    def __init__(self, root: Path, limit_mb: int, used_mb: int = 0) -> None:
        self.root = root
        self.group = root / "sys/fs/cgroup"
        self.group.mkdir(parents=True)
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text("0::/\n")
        self.limit(limit_mb)
        self.use(used_mb * MB)
        self.env = {ROOT: str(root)}

    def limit(self, mb: int) -> None:
        self._write("memory.max", mb * MB)

    def use(self, size: int) -> None:
        self._write("memory.current", size)

    def _write(self, name: str, size: int) -> None:
        new = self.group / f"{name}.new"
        new.write_text(f"{size}\n")
        new.rename(self.group / name)  # a reader never sees half of it


# ── measuring ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_peak_of_a_job_is_its_own_in_a_worker_that_ran_a_bigger_one_before(database, app, conn, files):
    jobs = [app.enqueue("big", {"mb": 90}), *(app.enqueue("small", {"mb": 25}) for _ in range(3))]

    with daemon(database, "--max-memory=1GB", **files) as pool:
        until(lambda: app.stats().completed == len(jobs), what=pool.log())
        assert pool.stop() == 0

    assert len({entry.pid for entry in read_ledger(files["ledger"])}) == 1
    assert 88 * MB <= peaks(conn)["big"] <= 96 * MB
    assert 23 * MB <= peaks(conn)["small"] <= 31 * MB


def test_a_run_that_its_worker_did_not_survive_teaches_what_it_took(database, app, conn, files):
    jobs = [app.enqueue("killed", {"mb": 80}), app.enqueue("endless")]

    with daemon(database, **files) as pool:
        until(lambda: app.stats().completed + app.stats().buried == len(jobs), what=pool.log())
        until(lambda: {"killed", "endless"} <= set(peaks(conn)))
        assert pool.stop() == 0

    [first] = profiles.read(conn, ["endless"], 3600)
    assert first.seconds >= 0.5
    assert 78 * MB <= peaks(conn)["killed"] <= 90 * MB


# ── the worker's own limit ────────────────────────────────────────────────────────────────────────────


def test_a_handler_without_history_is_let_in_whatever_it_takes(database, app, files):
    job = app.enqueue("big", {"mb": 200})

    with daemon(database, "--max-memory=64MB", **files) as pool:
        until(lambda: app.find(job.id).state == "completed", what=pool.log())


def test_a_worker_near_its_limit_is_replaced_before_the_job_and_not_after(database, app, conn, files):
    taught(conn, "small", mb=60)
    kept, job = app.enqueue("keep", {"mb": 60}), app.enqueue("small", {"mb": 60})

    with daemon(database, "--max-memory=160MB", **files) as pool:
        until(lambda: app.find(job.id).state == "completed", what=pool.log())
        log = pool.log()

    first, second = [entry for entry in read_ledger(files["ledger"]) if entry.what == "start"]
    assert (first.job, second.job) == (kept.id, job.id)
    assert first.pid != second.pid
    assert "replaced before a job of small: it takes 60 MB on top of the worker's" in log
    assert app.find(job.id).attempts == 1


def test_a_replaced_worker_does_not_end_a_command_that_is_to_run_more_jobs(database, app, conn, files):
    taught(conn, "small", mb=60)
    jobs = [app.enqueue("keep", {"mb": 60}), app.enqueue("small", {"mb": 60})]

    with daemon(database, "--max-memory=160MB", "--max-jobs=2", **files) as pool:
        assert pool.wait(20) == 0

    assert [app.find(job.id).state for job in jobs] == ["completed", "completed"]


def test_a_worker_that_has_room_is_not_replaced(database, app, conn, files):
    taught(conn, "small", mb=40)
    jobs = [app.enqueue("small", {"mb": 40}) for _ in range(5)]

    with daemon(database, "--max-memory=160MB", **files) as pool:
        until(lambda: app.stats().completed == len(jobs), what=pool.log())

    assert len({entry.pid for entry in read_ledger(files["ledger"])}) == 1


def test_a_job_that_fits_in_no_worker_is_parked_and_not_spun_on(database, app, conn, files):
    taught(conn, "big", mb=200)
    job = app.enqueue("big", {"mb": 1})
    others = [app.enqueue("take", {"mb": 1, "seconds": 0}) for _ in range(5)]

    with daemon(database, "--max-memory=128MB", "--sleep=0.1", "--workers=2", **files) as pool:
        until(lambda: parked(conn, "memory:big"), what=pool.log())
        until(lambda: app.stats().completed == len(others), what=pool.log())
        before = claims_so_far(conn)
        time.sleep(1)
        assert claims_so_far(conn) - before <= 60  # two idle workers that still look, and nothing claimed
        assert pool.log().count("is parked") == 1
        assert pool.stop() == 0

    found = app.find(job.id)
    assert (found.state, found.attempts, found.parked_on) == ("pending", 0, "memory:big")


def test_a_job_that_finds_no_room_takes_no_start_of_its_rate_and_no_place_of_its_group(
    database, app, conn, files
):
    taught(conn, "big", mb=200)
    limits: dict[str, Any] = {
        "rate_limit": (1, 600),
        "rate_key": "api",
        "concurrency_group": "g",
        "concurrency_limit": 1,
    }
    app.enqueue("big", {"mb": 1}, **limits)

    with daemon(database, "--max-memory=128MB", "--sleep=0.2", **files) as pool:
        until(lambda: parked(conn, "memory:big"), what=pool.log())
        other = app.enqueue("ok", **limits)
        until(lambda: app.find(other.id).state == "completed", what=pool.log())


def test_a_limit_that_nobody_has_set_holds_up_no_job(database, app, conn, files):
    taught(conn, "big", mb=200)
    job = app.enqueue("big", {"mb": 200})

    with daemon(database, **files) as pool:
        until(lambda: app.find(job.id).state == "completed", what=pool.log())


def test_a_profile_that_is_out_of_the_window_holds_up_nothing(database, app, conn, files):
    taught(conn, "big", mb=200)
    job = app.enqueue("big", {"mb": 1})

    with daemon(database, "--max-memory=128MB", env={"QUEUETY_RESOURCE_PROFILE_TTL": "0.1"}, **files) as pool:
        until(lambda: parked(conn, "memory:big"), what=pool.log())
        conn.execute("UPDATE queuety.profiles SET minute = minute - interval '2 hours'")
        until(lambda: app.find(job.id).state == "completed", what=pool.log())


def test_admission_can_be_switched_off(database, app, conn, files):
    taught(conn, "big", mb=200)
    job = app.enqueue("big", {"mb": 1})

    with daemon(database, "--max-memory=64MB", env={"QUEUETY_RESOURCE_ADMISSION": "off"}, **files) as pool:
        until(lambda: app.find(job.id).state == "completed", what=pool.log())


# ── the container ─────────────────────────────────────────────────────────────────────────────────────


def test_a_job_waits_until_the_container_has_the_memory_for_it(database, app, conn, files, tmp_path):
    container = Container(tmp_path / "container", limit_mb=300, used_mb=100)
    taught(conn, "big", mb=150)
    job, other = app.enqueue("big", {"mb": 20}), app.enqueue("take", {"mb": 1})

    with daemon(database, "--sleep=0.2", env=container.env, **files) as pool:
        until(lambda: parked(conn, "memory:big"), what=pool.log())
        until(lambda: app.find(other.id).state == "completed", what=pool.log())
        assert "it takes 150 MB, and 200 MB are to be had here with 128 MB kept free" in pool.log()

        container.limit(500)
        until(lambda: app.find(job.id).state == "completed", 5, pool.log())

    assert app.find(job.id).attempts == 1


def test_another_pool_that_has_the_memory_takes_what_this_one_has_parked(
    database, app, conn, files, tmp_path
):
    small = Container(tmp_path / "small", limit_mb=200)
    taught(conn, "big", mb=150)
    job = app.enqueue("big", {"mb": 20})

    with daemon(database, "--name=small", env=small.env, **files) as pool:
        until(lambda: parked(conn, "memory:big"), what=pool.log())
        with daemon(database, "--name=large", **files):
            until(lambda: app.find(job.id).state == "completed", what=pool.log())

    assert (app.find(job.id).worker or "").startswith("large")


def test_flush_runs_one_after_the_other_what_has_no_room_side_by_side(database, app, conn, files, tmp_path):
    container = Container(tmp_path / "container", limit_mb=250)
    taught(conn, "take", mb=100)
    jobs = [app.enqueue("take", {"mb": 20, "seconds": 0.2}) for _ in range(6)]

    with daemon(database, "--workers=4", command="flush", env=container.env, **files) as pool:
        assert pool.wait(30) == 0

    assert app.stats().completed == len(jobs)
    assert most_at_once(files["ledger"]) == 1


def test_flush_ends_though_a_job_fits_nowhere_and_says_so(database, app, conn, files, tmp_path):
    container = Container(tmp_path / "container", limit_mb=250)
    taught(conn, "big", mb=900)
    app.enqueue("big", {"mb": 1})

    with daemon(database, command="flush", env=container.env, **files) as pool:
        assert pool.wait(30) == 0

    assert "0 jobs; 1 parked" in pool.log()


def most_at_once(ledger: Path) -> int:
    running = most = 0
    for entry in sorted(read_ledger(ledger), key=lambda entry: entry.at):
        running += 1 if entry.what == "start" else -1
        most = max(most, running)
    return most


# ── the time left ─────────────────────────────────────────────────────────────────────────────────────


def test_a_run_near_its_end_leaves_what_would_not_end_in_time(database, app, conn, files):
    taught(conn, "sleep", seconds=2)
    long = [app.enqueue("sleep", {"seconds": 2}) for _ in range(4)]
    quick = [app.enqueue("ok") for _ in range(20)]

    with daemon(database, "--max-time=5", command="flush", **files) as pool:
        assert pool.wait(20) == 0

    assert all(app.find(job.id).state == "completed" for job in quick)
    left = [job for job in long if app.find(job.id).state == "pending"]
    assert 2 <= len(left) <= 3
    assert all(app.find(job.id).attempts == 0 for job in left)
    assert f"{len(left)} left that there was no time or place for" in pool.log()


def test_once_leaves_a_job_that_would_not_end_in_time_and_takes_the_next(database, app, conn, files):
    taught(conn, "sleep", seconds=60)
    long, quick = app.enqueue("sleep", {"seconds": 60}), app.enqueue("ok")

    with daemon(database, "--once", "--max-time=20", **files) as pool:
        assert pool.wait(15) == 0

    assert app.find(quick.id).state == "completed"
    assert (app.find(long.id).state, app.find(long.id).attempts) == ("pending", 0)


# ── the storm ─────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def accounted(container: Container, pool: Daemon) -> Iterator[Callable[[], int]]:
    """Let the container's files tell what the pool's processes really take; the most it was is returned."""
    over = threading.Event()
    most = [0]

    def account() -> None:
        parent = psutil.Process(pool.pid)
        while not over.is_set():
            total = 0
            with suppress(psutil.NoSuchProcess):
                for one in [parent, *parent.children()]:
                    with suppress(psutil.NoSuchProcess):
                        total += one.memory_info().rss - one.memory_info().shared
            container.use(total)
            most[0] = max(most[0], total)
            time.sleep(0.002)

    thread = threading.Thread(target=account)
    thread.start()
    try:
        yield lambda: most[0]
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("jobs", "workers"), [(40, 4), pytest.param(300, 8, marks=pytest.mark.soak)], ids=["small", "storm"]
)
def test_a_storm_of_memory_in_a_small_container_kills_no_process(
    jobs, workers, database, app, conn, files, tmp_path
):
    container = Container(tmp_path / "container", limit_mb=512)
    taught(conn, "take", mb=100)
    env = {**container.env, "QUEUETY_RESOURCE_SYSTEM_MEMORY_HEADROOM_MB": "48"}
    payloads: list[dict[str, Any]] = [{"mb": 50 + 50 * n % 51, "seconds": 0.1} for n in range(jobs)]
    app.enqueue_many([("take", payload) for payload in payloads])

    with (
        daemon(database, f"--workers={workers}", env=env, **files) as pool,
        accounted(container, pool) as most,
    ):
        until(lambda: app.stats().completed == jobs, 120, pool.log())
        assert pool.stop() == 0

    assert most() <= 512 * MB
    assert most_at_once(files["ledger"]) >= 2
    assert len(read_ledger(files["ledger"])) == 2 * jobs  # each began once, and ended
    assert "ended (signal" not in pool.log()
