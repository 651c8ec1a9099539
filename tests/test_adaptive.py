"""The adaptive pool: it follows the work that can be done, and never disturbs what runs."""

from __future__ import annotations

import re
import signal
import time

import pytest

from queuety import Queuety
from queuety.store.connect import connect
from tests.checks import attempts, sound, starts, states
from tests.daemon import daemon, read_ledger, until

QUICK = {"QUEUETY_STALE_TIMEOUT": "3", "QUEUETY_WORKER_SLEEP": "0.5"}
INTERVAL_S = 0.4
LOOKS_S = 5 * INTERVAL_S  # long enough for the pool to have been reconsidered a few times


def extent(least, most, grace="2s", interval=f"{INTERVAL_S}s"):
    """The options of an adaptive pool."""
    return (
        f"--min-workers={least}",
        f"--max-workers={most}",
        f"--idle-grace={grace}",
        f"--scale-interval={interval}",
    )


def changes(pool):
    """Each change of the size that the pool has logged."""
    return [(int(old), int(new)) for old, new in re.findall(r"(\d+) -> (\d+) workers", pool.log())]


def alive(pool):
    return len(pool.workers())


# ── growing ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.alone
def test_a_jump_of_the_backlog_is_answered_within_two_intervals(database, tmp_path):
    app = Queuety(database)

    with daemon(database, *extent(1, 5, interval="1s"), log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        app.enqueue_many([("sleep", {"seconds": 1})] * 200)
        began = time.monotonic()
        until(lambda: alive(pool) == 5, 5)
        took = time.monotonic() - began
        pool.signal(signal.SIGQUIT)
        pool.wait()

    assert took < 2 + 1  # a second for a loaded machine to fork
    assert changes(pool) == [(1, 5)]
    assert "1 -> 5 workers: " in pool.log()


def test_jobs_of_a_handler_that_the_pool_lacks_do_not_make_it_grow(database, tmp_path):
    """Though they are due and not parked yet, since its only worker is busy."""
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with daemon(database, *extent(1, 5), ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        app.enqueue("sleep", {"seconds": 3 * LOOKS_S})
        until(lambda: starts(ledger))
        app.enqueue_many([("nosuch", {})] * 50)
        time.sleep(LOOKS_S)
        before = changes(pool), alive(pool)
        app.enqueue("ok")
        until(lambda: changes(pool) == [(1, 2)], 10, "for the job whose handler it has")
        assert pool.stop() == 0

    assert before == ([], 1)


def test_work_that_cannot_run_does_not_make_the_pool_grow(database, tmp_path):
    app = Queuety(database)
    app.pause("paused")
    for _ in range(20):
        for queue in ("paused", "nobody", "parked"):
            app.enqueue("sleep", {"seconds": 0.5}, queue=queue)
        app.enqueue("sleep", {"seconds": 0.5}, delay=3600)
    with connect(database, name="test") as conn:
        conn.execute(
            "UPDATE queuety.jobs SET parked_on = 'handler:nobody', parked_at = now() WHERE queue = 'parked'"
        )

    options = "--queue=paused,default,parked", *extent(1, 5)
    with daemon(database, *options, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        time.sleep(LOOKS_S)
        before = changes(pool), alive(pool)
        app.resume("paused")
        until(lambda: alive(pool) == 5, 10)
        pool.stop()

    assert before == ([], 1)


@pytest.mark.parametrize("in_bulk", [False, True], ids=["one by one", "in bulk"])
@pytest.mark.parametrize("limit", [1, 2])
def test_limited_work_raises_no_more_workers_than_may_run_it(database, tmp_path, limit, in_bulk):
    app = Queuety(database)

    @app.job(name="sleep", concurrency_group="narrow", concurrency_limit=limit)
    def narrow(seconds: float) -> None: ...

    with daemon(database, *extent(1, 5), log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        if in_bulk:
            narrow.enqueue_many([{"seconds": 0.5}] * 40)
        else:
            for _ in range(40):
                narrow.enqueue(seconds=0.5)
        time.sleep(2 * LOOKS_S)
        found = alive(pool)
        done = states(database)["completed"]
        pool.stop()

    assert found == limit
    assert done >= 4


def test_work_that_nobody_can_take_does_not_keep_the_pool_large(database, tmp_path):
    app = Queuety(database)
    app.enqueue_many([("ok", {})] * 20)

    with connect(database, name="test") as conn, conn.transaction():
        conn.execute("SELECT FROM queuety.jobs FOR UPDATE")
        with daemon(database, *extent(1, 3, "1s"), log=tmp_path / "log", env=QUICK) as pool:
            pool.ready(3)
            until(lambda: alive(pool) == 1, 10)
            time.sleep(LOOKS_S)
            assert pool.stop() == 0

    assert changes(pool) == [(1, 3), (3, 1)]


def test_quick_jobs_do_not_raise_workers_that_would_find_nothing(database, tmp_path):
    app = Queuety(database)

    with daemon(database, *extent(1, 5, interval="1s"), log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        for _ in range(20):  # they tell how quick they are
            app.enqueue("ok").wait(5)
        for _ in range(20):
            app.enqueue_many([("ok", {})] * 100)
            time.sleep(0.1)
        until(lambda: set(states(database)) == {"completed"})
        assert pool.stop() == 0

    assert changes(pool) == []


def test_with_a_target_there_are_as_many_workers_as_it_takes_to_be_in_time(database, tmp_path):
    app = Queuety(database)

    options = *extent(1, 5), "--target-wait=60s"
    with daemon(database, *options, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        for _ in range(3):
            app.enqueue("sleep", {"seconds": 0.1}).wait(5)
        app.enqueue_many([("sleep", {"seconds": 0.1})] * 30)
        until(lambda: states(database)["completed"] == 33)
        assert pool.stop() == 0

    assert changes(pool) == []


def test_the_pool_grows_only_while_memory_for_another_worker_is_free(database, tmp_path):
    app = Queuety(database)
    meminfo = tmp_path / "proc" / "meminfo"
    meminfo.parent.mkdir()

    def free(megabytes):
        new = meminfo.with_suffix(".new")
        new.write_text(f"MemTotal: 8000000 kB\nMemAvailable: {megabytes * 1024} kB\n")
        new.replace(meminfo)

    free(140)
    env = {**QUICK, "QUEUETY_TEST_SYSTEM_ROOT": str(tmp_path)}
    with daemon(database, *extent(1, 4), log=tmp_path / "log", env=env) as pool:
        pool.ready(1)
        app.enqueue_many([("sleep", {"seconds": 0.5})] * 100)
        until(lambda: "memory for another one is not free" in pool.log())
        time.sleep(LOOKS_S)
        held = changes(pool), alive(pool), pool.log().count("is not free")
        free(4000)
        until(lambda: alive(pool) == 4, 10)
        pool.signal(signal.SIGQUIT)
        pool.wait()

    assert held == ([], 1, 1)
    assert changes(pool) == [(1, 4)]


# ── shrinking ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seconds", [3, pytest.param(20, marks=pytest.mark.soak)])
def test_shrinking_disturbs_no_job(database, tmp_path, seconds):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with daemon(database, *extent(1, 6), ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        app.enqueue_many([("sleep", {"seconds": seconds})] * 6)
        until(lambda: states(database)["completed"] == 6, seconds + 20)
        until(lambda: alive(pool) == 1, 10)
        assert pool.stop() == 0

    assert set(attempts(database).values()) == {1}
    assert set(starts(ledger).values()) == {1}
    assert changes(pool)[0] == (1, 6)
    assert changes(pool)[-1][1] == 1
    sound(database, ledger, pool)


def test_a_busy_worker_stays_while_the_idle_leave(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with daemon(database, *extent(1, 4, "1s"), ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        app.enqueue_many([("sleep", {"seconds": seconds}) for seconds in (6, 0.5, 0.5, 0.5)])
        until(lambda: len(starts(ledger)) == 4)
        busy = read_ledger(ledger)[0].pid
        until(lambda: alive(pool) == 1, 10)
        left = [one.pid for one in pool.workers()]
        assert pool.stop() == 0

    assert left == [busy]
    assert set(attempts(database).values()) == {1}
    sound(database, ledger, pool)


def test_a_short_pause_between_two_waves_changes_nothing(database, tmp_path):
    app = Queuety(database)
    wave = [("sleep", {"seconds": 0.6})] * 8

    with daemon(database, *extent(1, 4, "5s"), log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        for _ in range(2):
            app.enqueue_many(wave)
            until(lambda: "pending" not in states(database) and "processing" not in states(database))
            time.sleep(1)
        found = changes(pool)
        pids = {one.pid for one in pool.workers()}
        assert pool.stop() == 0

    assert found == [(1, 4)]
    assert len(pids) == 4


def test_jobs_that_come_while_the_pool_shrinks_end_well(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    options = extent(1, 6, "0s", "100ms")  # it follows every breath
    with daemon(database, *options, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        most = 0
        for size in (6, 1, 4, 2, 6, 1, 3, 6) * 2:
            app.enqueue_many([("sleep", {"seconds": 0.11})] * size)
            over = time.monotonic() + 0.25
            while time.monotonic() < over:
                most = max(most, alive(pool))
        until(lambda: set(states(database)) == {"completed"})
        until(lambda: alive(pool) == 1, 10)
        assert pool.stop() == 0

    assert most <= 6, "those that are leaving included"
    assert len(changes(pool)) > 2
    assert all(1 <= new <= 6 for _, new in changes(pool))
    assert set(attempts(database).values()) == {1}
    assert set(starts(ledger).values()) == {1}
    sound(database, ledger, pool)


# ── beside everything else that a pool does ───────────────────────────────────────────────────────


def test_ttin_and_ttou_move_the_least_number_of_workers_within_the_limits(database, tmp_path):
    with daemon(database, *extent(1, 2, "1s"), log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        pool.signal(signal.SIGTTIN)
        pool.ready(2)
        pool.signal(signal.SIGTTIN)  # never above the maximum
        until(lambda: pool.log().count("SIGTTIN: 2 to 2 workers") == 2)
        time.sleep(LOOKS_S)
        assert alive(pool) == 2
        pool.signal(signal.SIGTTOU)
        until(lambda: alive(pool) == 1, 10)
        pool.signal(signal.SIGTTOU)  # never below one
        until(lambda: pool.log().count("SIGTTOU: 1 to 2 workers") == 2)
        assert pool.stop() == 0


def test_hup_replaces_the_workers_of_a_pool_that_grows_and_shrinks(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with daemon(database, *extent(1, 4, "1s"), ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        old = {one.pid for one in pool.ready(1)}
        app.enqueue_many([("sleep", {"seconds": 1.5})] * 4)
        until(lambda: alive(pool) == 4, 10)
        old |= {one.pid for one in pool.workers()}
        pool.signal(signal.SIGHUP)
        until(lambda: alive(pool) == 1 and not old & {one.pid for one in pool.workers()}, 20)
        assert app.enqueue("ok").wait(5).state == "completed"
        assert pool.stop() == 0

    assert set(attempts(database).values()) == {1}
    sound(database, ledger, pool)


def test_without_its_keeper_the_pool_keeps_its_size_and_the_next_one_goes_on(database, tmp_path):
    app = Queuety(database)

    with daemon(database, *extent(2, 5, "1s"), log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(2)
        pool.keeper().kill()
        app.enqueue_many([("sleep", {"seconds": 1})] * 20)
        until(lambda: alive(pool) == 5, 10)
        until(lambda: set(states(database)) == {"completed"})
        pool.keeper().kill()
        until(lambda: alive(pool) == 2, 10)
        assert pool.stop() == 0

    assert changes(pool)[0] == (2, 5)


def test_workers_replaced_after_so_many_jobs_do_not_count_as_shrinking(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    options = *extent(1, 3), "--max-jobs=5", "--min-age=0"
    with daemon(database, *options, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        app.enqueue_many([("sleep", {"seconds": 0.1})] * 40)
        until(lambda: set(states(database)) == {"completed"})
        until(lambda: alive(pool) == 1, 10)
        assert pool.stop() == 0

    assert len({entry.pid for entry in read_ledger(ledger)}) >= 7
    assert changes(pool)[0] == (1, 3)
    sound(database, ledger, pool)


def test_a_pool_of_at_most_one_worker_ends_after_exactly_so_many_jobs(database, tmp_path):
    app = Queuety(database)
    app.enqueue_many([("ok", {})] * 10)

    with daemon(database, *extent(1, 1), "--max-jobs=7", log=tmp_path / "log", env=QUICK) as pool:
        assert pool.wait(20) == 0

    assert states(database) == {"completed": 7, "pending": 3}


def test_a_stop_finishes_what_runs_and_the_pool_no_longer_changes(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with daemon(
        database, *extent(1, 4, interval="100ms"), ledger=ledger, log=tmp_path / "log", env=QUICK
    ) as pool:
        pool.ready(1)
        app.enqueue_many([("sleep", {"seconds": 1.5})] * 40)
        until(lambda: len(starts(ledger)) == 4)
        pool.signal(signal.SIGTERM)
        assert pool.wait(10) == 0

    assert states(database) == {"completed": 4, "pending": 36}
    assert len(changes(pool)) == 1
    sound(database, ledger, pool)
