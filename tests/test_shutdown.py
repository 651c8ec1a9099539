"""Stopping: clean, in time, and nothing lost."""

from __future__ import annotations

import signal
import time

import psutil
import pytest

from queuety import Queuety
from tests.checks import ends, remaining, sessions, sound, starts, states
from tests.daemon import daemon, read_ledger, until

ROUGH = "tests.apps.rough:app"
QUICK = {"QUEUETY_STALE_TIMEOUT": "3", "QUEUETY_WORKER_SLEEP": "0.5", "QUEUETY_WORKER_MIN_AGE": "0"}


def test_a_stop_lets_the_running_job_finish_and_starts_no_other(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    first, second = app.enqueue("sleep", {"seconds": 2}), app.enqueue("sleep", {"seconds": 2})

    with daemon(database, ledger=ledger, log=tmp_path / "log") as pool:
        until(lambda: read_ledger(ledger))
        code = pool.stop()
        left = time.monotonic()

    assert code == 0
    assert (first.state(), first.job().attempts) == ("completed", 1)
    assert (second.state(), second.job().attempts) == ("pending", 0)
    assert left - read_ledger(ledger)[-1].at < 1
    sound(database, ledger, pool)


@pytest.mark.parametrize(("count", "number"), [(1, signal.SIGTERM), (4, signal.SIGINT)])
def test_idle_processes_leave_within_two_seconds(database, tmp_path, count, number):
    with daemon(database, f"--workers={count}", "--sleep=30", log=tmp_path / "log") as pool:
        pool.ready(count)
        until(lambda: not Queuety(database).jobs())  # they may well be asleep by then
        processes = psutil.Process(pool.pid).children()
        pool.signal(number)
        code = pool.wait(2)

    assert code == 0
    assert remaining(processes, 0) == []
    sound(database, None, pool)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_stops_as_cleanly_as_one_to_the_supervisor(database, tmp_path, number):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    running = [app.enqueue("sleep", {"seconds": 1}) for _ in range(2)]
    waiting = app.enqueue("sleep", {"seconds": 1})

    with daemon(database, "--workers=2", ledger=ledger, log=tmp_path / "log") as pool:
        until(lambda: len(starts(ledger)) == 2)
        pool.signal_group(number)
        code = pool.wait()

    assert code == 0
    assert [job.state() for job in running] == ["completed", "completed"]
    assert (waiting.state(), waiting.job().attempts) == ("pending", 0)
    sound(database, ledger, pool)


def test_a_worker_that_is_told_to_stop_finishes_its_job_and_is_replaced(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    first, second = app.enqueue("sleep", {"seconds": 1}), app.enqueue("sleep", {"seconds": 0})

    with daemon(database, ledger=ledger, log=tmp_path / "log") as pool:
        until(lambda: starts(ledger))
        pool.workers()[0].send_signal(signal.SIGTERM)
        first.wait(10), second.wait(10)
        code = pool.stop()

    pids = [entry.pid for entry in read_ledger(ledger) if entry.what == "start"]
    assert code == 0
    assert len(set(pids)) == 2
    assert starts(ledger) == {first.id: 1, second.id: 1}
    sound(database, ledger, pool)


@pytest.mark.alone
def test_a_busy_pool_starts_nothing_once_it_is_told_to_stop(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    app.enqueue_many([("sleep", {"seconds": 0.05})] * 300)

    with daemon(database, "--workers=2", ledger=ledger, log=tmp_path / "log") as pool:
        until(lambda: len(read_ledger(ledger)) > 20)
        told = time.monotonic()
        code = pool.stop()

    late = [entry for entry in read_ledger(ledger) if entry.what == "start" and entry.at > told + 0.2]
    begun = starts(ledger)
    assert code == 0
    assert late == []
    assert begun == ends(ledger)
    assert states(database) == {"completed": len(begun), "pending": 300 - len(begun)}
    assert all(job.attempts == 0 for job in app.jobs(state="pending", limit=300))
    sound(database, ledger, pool)


def test_a_second_term_cuts_what_runs_and_gives_it_back(database, tmp_path):
    ledger = tmp_path / "ledger"
    job = Queuety(database).enqueue("sleep", {"seconds": 60}, max_attempts=1)

    with daemon(database, ledger=ledger, log=tmp_path / "log") as pool:
        until(lambda: starts(ledger))
        pool.signal(signal.SIGTERM)
        until(lambda: "stopping" in pool.log())
        pool.signal(signal.SIGTERM)
        code = pool.wait(3)

    assert code == 75
    assert (job.state(), job.job().attempts) == ("pending", 0)


def test_a_second_ctrl_c_cuts_what_runs_and_says_so_by_its_own_code(database, tmp_path):
    ledger = tmp_path / "ledger"
    job = Queuety(database).enqueue("sleep", {"seconds": 60})

    with daemon(database, ledger=ledger, log=tmp_path / "log") as pool:
        until(lambda: starts(ledger))
        pool.signal(signal.SIGINT)
        until(lambda: "stopping" in pool.log())
        pool.signal(signal.SIGINT)
        code = pool.wait(3)

    assert code == 130
    assert (job.state(), job.job().attempts) == ("pending", 0)


def test_quit_cuts_at_once(database, tmp_path):
    ledger = tmp_path / "ledger"
    job = Queuety(database).enqueue("spin", {"seconds": 60})

    with daemon(database, ledger=ledger, log=tmp_path / "log") as pool:
        until(lambda: starts(ledger))
        pool.signal(signal.SIGQUIT)
        code = pool.wait(3)

    assert code == 75
    assert (job.state(), job.job().attempts) == ("pending", 0)


def test_a_drain_that_takes_too_long_gives_the_jobs_back_as_they_were(database, tmp_path):
    ledger = tmp_path / "ledger"
    job = Queuety(database).enqueue("fail_then_hang", {}, backoff=[0], max_attempts=2)

    with daemon(database, "--stop-timeout=1", app=ROUGH, ledger=ledger, log=tmp_path / "log") as pool:
        until(lambda: starts(ledger)[job.id] == 2)
        told = time.monotonic()
        code = pool.stop(5)

    assert code == 75
    assert time.monotonic() - told >= 1
    assert (job.state(), job.job().attempts) == ("pending", 1)


def test_a_pool_killed_in_its_drain_costs_its_job_one_attempt(database, tmp_path):
    ledger = tmp_path / "ledger"
    job = Queuety(database).enqueue("hang_once", {}, backoff=[0])

    with daemon(database, app=ROUGH, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        until(lambda: starts(ledger))
        pool.signal(signal.SIGTERM)
        until(lambda: "stopping" in pool.log())
        pool.kill()
    with daemon(database, app=ROUGH, ledger=ledger, log=tmp_path / "new", env=QUICK) as pool:
        done = job.wait(10)
        assert pool.stop() == 0

    assert (done.state, done.attempts) == ("completed", 2)
    assert starts(ledger) == {job.id: 2}
    sound(database, ledger, pool)


def test_workers_whose_supervisor_is_killed_finish_what_they_hold_and_leave(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    app.enqueue_many([("sleep", {"seconds": 1.5})] * 12)

    with daemon(database, "--workers=3", ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        until(lambda: len(starts(ledger)) == 3)
        family = psutil.Process(pool.pid).children()
        pool.process.kill()
        killed = time.monotonic()
        pool.process.wait()
        alive = remaining(family, 8)

    assert len(family) == 4
    assert alive == []
    assert all(entry.at < killed for entry in read_ledger(ledger) if entry.what == "start")
    assert states(database) == {"completed": 3, "pending": 9}
    sound(database, ledger, pool)


def test_sleeping_workers_and_the_keeper_follow_a_killed_supervisor_at_once(database, tmp_path):
    with daemon(database, "--workers=3", "--sleep=60", log=tmp_path / "log") as pool:
        pool.ready(3)
        family = psutil.Process(pool.pid).children()
        time.sleep(0.3)  # until they sleep; before that they would leave even sooner
        pool.process.kill()
        pool.process.wait()
        alive = remaining(family, 3)

    assert alive == []
    assert sessions(database) == []


@pytest.mark.soak
def test_orphans_do_not_pile_up_over_restarts(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    app.enqueue_many([("sleep", {"seconds": 1})] * 100)
    everybody: set[psutil.Process] = set()

    for number in range(5):
        with daemon(database, "--workers=3", ledger=ledger, log=tmp_path / f"log{number}", env=QUICK) as pool:
            before = len(starts(ledger))
            until(lambda: len(starts(ledger)) > before + 2)  # noqa: B023
            everybody |= set(psutil.Process(pool.pid).children())
            alive = [one for one in remaining(everybody, 0) if "worker" in one.name()]
            assert len(alive) <= 6, "those of this pool, and those of the last one that finish what they hold"
            pool.process.kill()
            pool.process.wait()
    alive = remaining(everybody, 10)

    assert alive == []
    assert starts(ledger) == ends(ledger)
    assert set(starts(ledger).values()) == {1}
    assert sum(states(database).values()) == 100


@pytest.mark.alone
def test_a_handler_that_makes_its_worker_deaf_to_signals_cannot_keep_it_from_leaving(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    app.enqueue("ignore_signals")
    app.enqueue_many([("sleep", {"seconds": 0.05})] * 200)

    with daemon(database, app=ROUGH, ledger=ledger, log=tmp_path / "log") as pool:
        until(lambda: len(starts(ledger)) > 5)
        told = time.monotonic()
        code = pool.stop(5)

    assert code == 0
    assert [entry for entry in read_ledger(ledger) if entry.what == "start" and entry.at > told + 0.3] == []
    sound(database, ledger, pool)
