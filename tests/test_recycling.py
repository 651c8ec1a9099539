"""Workers are replaced, not missed; and a pool with nothing to do does nothing."""

from __future__ import annotations

import re
import time

import psutil
import pytest

from queuety import Queuety
from tests.checks import attempts, sound, starts, states
from tests.daemon import daemon, read_ledger, until
from tests.servers import own_server

ROUGH = "tests.apps.rough:app"
QUICK = {"QUEUETY_STALE_TIMEOUT": "3", "QUEUETY_WORKER_MIN_AGE": "0"}


def family(pool):
    """The supervisor and all its children."""
    return [psutil.Process(pool.pid), *psutil.Process(pool.pid).children()]


def cpu(processes):
    """Seconds of processor time that these processes have used."""
    return sum(sum(one.cpu_times()[:2]) for one in processes)


# ── replacing ─────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_is_replaced_after_its_number_of_jobs(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    app.enqueue_many([("ok", {})] * 40)

    with daemon(
        database, "--workers=2", "--max-jobs=5", ledger=ledger, log=tmp_path / "log", env=QUICK
    ) as pool:
        until(lambda: states(database) == {"completed": 40}, 30)
        pool.ready(2)
        assert pool.stop() == 0

    ran: dict[int, int] = {}
    for entry in read_ledger(ledger):
        if entry.what == "start":
            ran[entry.pid] = ran.get(entry.pid, 0) + 1
    assert max(ran.values()) == 5
    assert len(ran) == 8
    sound(database, ledger, pool)


def test_a_single_worker_with_a_number_of_jobs_ends_the_command_after_exactly_so_many(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    app.enqueue_many([("ok", {})] * 8)

    with daemon(database, "--max-jobs=5", ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        assert pool.wait(15) == 0

    assert states(database) == {"completed": 5, "pending": 3}
    sound(database, ledger, pool)


@pytest.mark.parametrize("place", [0, 4], ids=["the first", "the last"])
def test_a_number_of_jobs_is_exact_though_one_of_them_kills_its_worker(database, tmp_path, place):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    for number in range(9):
        app.enqueue(*(("kill_self", {}) if number == place else ("ok", {})), max_attempts=1)

    with daemon(database, "--max-jobs=5", ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        assert pool.wait(15) == 0

    assert states(database) == {"buried": 1, "completed": 4, "pending": 4}
    sound(database, ledger, pool)


def recycled(database, tmp_path, *, jobs, seconds):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    app.enqueue_many([("ok", {})] * jobs)

    with daemon(
        database, "--workers=4", "--max-jobs=1", ledger=ledger, log=tmp_path / "log", env=QUICK
    ) as pool:
        until(lambda: states(database) == {"completed": jobs}, seconds)
        assert pool.stop() == 0

    assert len(starts(ledger)) == jobs
    assert set(starts(ledger).values()) == {1}
    assert set(attempts(database).values()) == {1}
    sound(database, ledger, pool)


def test_a_worker_that_leaves_right_after_its_job_is_not_taken_for_dead(database, tmp_path):
    recycled(database, tmp_path, jobs=16, seconds=40)


@pytest.mark.soak
def test_a_thousand_workers_that_leave_right_after_their_job_are_not_taken_for_dead(database, tmp_path):
    recycled(database, tmp_path, jobs=1000, seconds=900)


def test_a_worker_that_has_grown_is_replaced_between_jobs(database, tmp_path):
    app = Queuety(database)

    with daemon(
        database, "--max-memory=150MB", app=ROUGH, ledger=tmp_path / "l", log=tmp_path / "log", env=QUICK
    ) as pool:
        first = app.enqueue("grow", {"mb": 200}).result(10)
        until(lambda: "replaced at" in pool.log())  # memory is looked at a few times a second
        second = app.enqueue("grow", {"mb": 1}).result(10)
        assert app.enqueue("grow", {"mb": 1}).result(10) == second
        assert pool.stop() == 0

    assert first != second


# ── growing ───────────────────────────────────────────────────────────────────────────────────────


def test_memory_does_not_grow_with_the_number_of_jobs(database, tmp_path):
    app = Queuety(database)

    def run(jobs):
        before = states(database)["completed"]
        app.enqueue_many([("echo", {"value": number}) for number in range(jobs)])
        until(lambda: states(database)["completed"] == before + jobs, 60)

    with daemon(database, "--workers=2", "--max-jobs=0", log=tmp_path / "log") as pool:
        pool.ready(2)
        run(3000)
        before = {one.pid: one.memory_info().rss for one in family(pool)}
        run(20_000)
        after = {one.pid: one.memory_info().rss for one in family(pool)}
        assert pool.stop() == 0

    assert set(after) == set(before)
    assert [pid for pid in after if after[pid] - before[pid] > 10 << 20] == []


# ── idling ────────────────────────────────────────────────────────────────────────────────────────


def transactions(log):
    """How many transactions our own sessions made, by the server's log: its counters include autovacuum's."""
    count, inside = 0, set()
    for pid, text in re.findall(
        r"^<queuety [^>]*> (\d+) LOG:  ?(?:statement|execute \S+): (.*)$", log, re.MULTILINE
    ):
        count += pid not in inside
        if text.startswith("BEGIN"):
            inside.add(pid)
        elif text.startswith(("COMMIT", "ROLLBACK")):
            inside.discard(pid)
    return count


def idle(tmp_path, *, seconds):
    """An idle pool of 4: share of one processor that it uses, transactions a second."""
    with own_server(log_statement="all", log_line_prefix="<%a> %p ") as server:
        with daemon(server.url, "--workers=4", log=tmp_path / "log") as pool:
            pool.ready(4)
            time.sleep(2)
            before, logged, began = cpu(family(pool)), len(server.log()), time.monotonic()
            time.sleep(seconds)
            said, took = server.log()[logged:], time.monotonic() - began
            share = (cpu(family(pool)) - before) / took
            assert pool.stop() == 0
        assert transactions(said) > 0, "the log was understood"
        return share, transactions(said) / took


def test_an_idle_pool_asks_the_database_no_more_than_its_poll_interval_says(tmp_path):
    share, rate = idle(tmp_path, seconds=3)

    assert share < 0.05, "nothing spins"
    assert rate < 4


@pytest.mark.soak
def test_an_idle_pool_uses_no_processor(tmp_path):
    share, rate = idle(tmp_path, seconds=60)

    assert share < 0.01
    assert rate <= 2


def without_database(tmp_path, *, seconds):
    with own_server() as server, daemon(server.url, "--workers=4", log=tmp_path / "log") as pool:
        pool.ready(4)
        server.kill()
        time.sleep(2)
        before, began, lines = cpu(family(pool)), time.monotonic(), pool.log().count("\n")
        time.sleep(seconds)
        share = (cpu(family(pool)) - before) / (time.monotonic() - began)
        assert pool.log().count("\n") - lines < 20
        assert pool.stop(5) == 0
        return share


@pytest.mark.soak
def test_a_pool_without_its_database_does_not_spin(tmp_path):
    assert without_database(tmp_path, seconds=4) < 0.1


@pytest.mark.soak
def test_a_pool_without_its_database_uses_no_processor(tmp_path):
    assert without_database(tmp_path, seconds=60) < 0.02
