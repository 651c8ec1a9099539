"""The pool: its signals, its size, and what it does about processes that die."""

from __future__ import annotations

import re
import signal
import time

import psutil
import pytest

from queuety import Queuety
from queuety.store.connect import connect
from tests.checks import attempts, ends, remaining, sound, starts, states
from tests.daemon import daemon, read_ledger, until

ROUGH = "tests.apps.rough:app"
VERSIONS = "tests.apps.versions:app"
QUICK = {"QUEUETY_STALE_TIMEOUT": "3", "QUEUETY_WORKER_SLEEP": "0.5", "QUEUETY_WORKER_MIN_AGE": "0"}


@pytest.fixture
def version(tmp_path):
    """A file that says what importing the application does; and the environment that names it."""
    file = tmp_path / "version"
    file.write_text("ok")
    return file


@pytest.fixture
def env(version):
    return {**QUICK, "QUEUETY_TEST_VERSION": str(version)}


def pids(processes):
    return {one.pid for one in processes}


# ── signals ───────────────────────────────────────────────────────────────────────────────────────


def test_hup_replaces_the_workers_one_by_one_and_lets_them_finish(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with daemon(database, "--workers=3", ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        old = pids(pool.ready(3))
        busy = app.enqueue("sleep", {"seconds": 2})
        until(lambda: starts(ledger))
        pool.signal(signal.SIGHUP)
        fewest, most = 99, 0
        while pids(pool.workers()) & old:
            able = pool.able()
            fewest, most = min(fewest, len(able)), max(most, len(pool.workers()))
            time.sleep(0.01)
        new = pids(pool.ready(3))
        assert pool.stop() == 0

    assert new.isdisjoint(old)
    assert (busy.state(), busy.job().attempts) == ("completed", 1)
    assert fewest >= 3, "a successor is ready before its predecessor leaves"
    assert most <= 4, "one at a time, and the busy one has left before the next successor comes"
    sound(database, ledger, pool)


@pytest.mark.parametrize("options", [("--workers=2",), ("--min-workers=1", "--max-workers=2")])
def test_hup_again_and_again_raises_one_worker_too_many_and_no_more(database, tmp_path, options):
    """However long the jobs of those are that are to leave: connections and memory are reckoned with one more."""
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    app.enqueue_many([("sleep", {"seconds": 2})] * 12)

    with daemon(database, *options, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        until(lambda: len(pool.able()) == 2 and len(starts(ledger)) >= 2)
        old, seen = set(), [0]

        def watched(condition):
            seen.append(len(pool.workers()))
            return condition()

        for _ in range(4):
            old |= pids(pool.workers())
            pool.signal(signal.SIGHUP)
            for _ in range(30):
                watched(lambda: time.sleep(0.02))
        until(lambda: watched(lambda: set(states(database)) == {"completed"}), 40)
        until(lambda: watched(lambda: pids(pool.workers()).isdisjoint(old)))
        assert pool.stop() == 0

    assert max(seen) == 3
    assert len({entry.pid for entry in read_ledger(ledger)}) > 2
    sound(database, ledger, pool)


def test_hup_does_not_end_a_command_that_is_to_run_so_many_jobs(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with daemon(database, "--max-jobs=2", ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        old = pids(pool.ready(1))
        pool.signal(signal.SIGHUP)
        until(lambda: pool.able() and pids(pool.workers()).isdisjoint(old), 10)
        assert app.enqueue("ok").wait(5).state == "completed"
        assert app.enqueue("ok").wait(5).state == "completed"
        assert pool.wait() == 0

    sound(database, ledger, pool)


@pytest.mark.parametrize("broken", ["raise", "crash", "exit"])
def test_hup_with_a_broken_new_version_leaves_the_old_workers_at_work(
    database, tmp_path, version, env, broken
):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with daemon(database, "--workers=2", app=VERSIONS, ledger=ledger, log=tmp_path / "log", env=env) as pool:
        old = pids(pool.ready(2))
        version.write_text(broken)
        pool.signal(signal.SIGHUP)
        until(lambda: "the old ones go on" in pool.log(), 10)
        job = app.enqueue("version")
        assert job.result(5) == "ok"
        until(lambda: pids(pool.workers()) == old, 5)

        version.write_text("ok")  # repaired
        pool.signal(signal.SIGHUP)
        until(lambda: pids(pool.workers()).isdisjoint(old), 10)
        pool.ready(2)
        assert pool.stop() == 0

    sound(database, ledger)


def test_ttin_and_ttou_add_and_remove_a_worker_and_spare_the_busy(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with daemon(database, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        pool.signal(signal.SIGTTIN)
        pool.ready(2)
        pool.signal(signal.SIGTTIN)
        pool.ready(3)
        busy = app.enqueue("sleep", {"seconds": 2})
        until(lambda: starts(ledger))
        pool.signal(signal.SIGTTOU)
        until(lambda: len(pool.workers()) == 2, 5)
        pool.signal(signal.SIGTTOU)
        until(lambda: len(pool.workers()) == 1, 5)
        assert busy.state() == "processing"
        pool.signal(signal.SIGTTOU)  # never below one
        assert busy.wait(5).attempts == 1
        assert app.enqueue("ok").wait(5).state == "completed"
        assert pool.stop() == 0

    sound(database, ledger, pool)


def test_usr1_tells_what_every_worker_is_doing(database, tmp_path):
    ledger = tmp_path / "ledger"
    job = Queuety(database).enqueue("sleep", {"seconds": 60})

    with daemon(database, "--workers=2", ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(2)
        until(lambda: starts(ledger))
        until(lambda: "idle" in str([one.cmdline() for one in pool.workers()]))
        pool.signal(signal.SIGUSR1)
        until(lambda: len(re.findall(r"worker \d+ \(process \d+\)", pool.log())) == 2)
        said = pool.log()
        pool.signal(signal.SIGQUIT)
        assert pool.wait() == 75

    assert f"runs job {job.id} sleep" in said


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGTTIN, signal.SIGWINCH])
def test_a_signal_meant_for_the_supervisor_does_no_harm_when_it_goes_to_the_whole_group(
    database, tmp_path, number
):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    job = app.enqueue("sleep", {"seconds": 1})

    with daemon(database, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        until(lambda: starts(ledger))
        keeper = pool.keeper().pid
        pool.signal_group(number)
        assert job.wait(5).attempts == 1
        assert app.enqueue("ok").wait(5).state == "completed"
        assert pool.keeper().pid == keeper
        assert pool.stop() == 0

    sound(database, ledger, pool)


# ── deaths ────────────────────────────────────────────────────────────────────────────────────────


def test_a_killed_keeper_is_replaced_and_no_job_notices(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    slow = app.enqueue("sleep", {"seconds": 5})
    quick = app.enqueue_many([("sleep", {"seconds": 0.02})] * 100)

    with daemon(database, "--workers=2", ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        until(lambda: ends(ledger))
        for _ in range(3):
            pool.keeper().kill()
            time.sleep(0.3)
        assert {job.wait(10).state for job in quick} == {"completed"}
        assert slow.wait(10).state == "completed"  # longer than the stale timeout: somebody has renewed it
        assert app.enqueue("ok").wait(5).state == "completed"
        assert pool.stop() == 0

    assert set(starts(ledger).values()) == {1}
    assert set(attempts(database).values()) == {1}
    sound(database, ledger, pool)


def registered(database):
    """(kind, process id) of every row of processes."""
    with connect(database, name="test") as conn:
        return set(conn.execute("SELECT kind, pid FROM queuety.workers").fetchall())


def test_the_row_of_a_killed_keeper_goes_with_its_successor(database, tmp_path):
    with daemon(database, log=tmp_path / "log", env=QUICK) as pool:
        worker = pool.ready(1)[0].pid
        for _ in range(2):
            until(lambda: ("keeper", pool.keeper().pid) in registered(database))
            pool.keeper().kill()
            time.sleep(0.3)
        until(lambda: registered(database) == {("keeper", pool.keeper().pid), ("worker", worker)}, 5)
        assert pool.stop() == 0

    assert registered(database) == set()


def test_processes_of_a_pool_that_is_gone_are_forgotten_by_another_pool(database, tmp_path):
    with daemon(database, "--workers=3", log=tmp_path / "gone", env=QUICK) as gone:
        gone.ready(3)
        until(lambda: len(registered(database)) == 4)
        gone.kill()
    with connect(database, name="test") as conn:
        conn.execute("UPDATE queuety.workers SET seen_at = now() - interval '4 min' WHERE kind = 'worker'")

    with daemon(database, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        until(
            lambda: len(registered(database)) == 3,
            10,
            "its own two, and the keeper that is silent for seconds",
        )
        assert pool.stop() == 0


def test_a_pool_that_others_have_forgotten_registers_again(database, tmp_path):
    """It was cut off from the database for longer than silence is forgiven."""
    app = Queuety(database)
    with daemon(database, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(1)
        until(lambda: len(registered(database)) == 2)
        before = registered(database)
        time.sleep(1.2)  # the keeper has looked which handlers there are
        with connect(database, name="test") as conn:
            conn.execute("DELETE FROM queuety.workers")
            conn.execute("DELETE FROM queuety.sleepers")
            until(lambda: registered(database) == before, 5)
            until(lambda: conn.execute("SELECT count(*) FROM queuety.sleepers").fetchall() == [(1,)], 5)
            [(handlers,)] = conn.execute(
                "SELECT handlers FROM queuety.workers WHERE kind = 'worker'"
            ).fetchall()
        assert app.enqueue("ok").wait(5).state == "completed"
        assert pool.stop() == 0

    assert "ok" in handlers


@pytest.mark.alone
def test_a_worker_that_dies_while_the_keeper_is_away_is_settled_by_the_next_one(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    job = app.enqueue("hang_once", {}, backoff=[0])

    with daemon(database, app=ROUGH, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        until(lambda: starts(ledger))
        pool.keeper().kill()
        pool.workers()[0].kill()
        died = time.monotonic()
        until(lambda: ends(ledger), 5)
        assert pool.stop() == 0

    assert read_ledger(ledger)[-1].at - died < 2
    assert (job.state(), job.job().attempts) == ("completed", 2)
    sound(database, ledger, pool)


def test_jobs_held_by_a_pool_whose_supervisor_and_keeper_die_are_recovered(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    jobs = [app.enqueue("hang_once", {}, backoff=[0]) for _ in range(2)]

    with daemon(database, "--workers=2", app=ROUGH, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        until(lambda: len(starts(ledger)) == 2)
        family = psutil.Process(pool.pid).children()
        pool.keeper().kill()
        pool.process.kill()
        pool.process.wait()
        with daemon(database, "--workers=2", app=ROUGH, ledger=ledger, log=tmp_path / "2", env=QUICK) as new:
            # The orphans hang for ever and nobody renews their leases.
            assert {job.wait(10).attempts for job in jobs} == {2}
            assert new.stop() == 0
        for one in family:
            if one.is_running():
                one.kill()

    assert starts(ledger) == {job.id: 2 for job in jobs}


def test_jobs_held_by_a_pool_whose_supervisor_dies_are_cut_and_given_back_after_the_stop_timeout(
    database, tmp_path
):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    job = app.enqueue("sleep", {"seconds": 60})

    with daemon(database, "--stop-timeout=1", ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        until(lambda: starts(ledger))
        family = psutil.Process(pool.pid).children()
        pool.process.kill()
        pool.process.wait()
        assert remaining(family, 5) == []

    assert (job.state(), job.job().attempts) == ("pending", 0)
    sound(database, None, pool)


# ── crash loops ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("broken", "code"), [("raise", 70), ("exit", 70), ("raise later", 70)])
def test_an_application_that_cannot_be_imported_ends_the_pool_before_anything_is_claimed(
    database, tmp_path, version, env, broken, code
):
    job = Queuety(database).enqueue("version")
    version.write_text(broken)

    with daemon(database, "--workers=2", app=VERSIONS, log=tmp_path / "log", env=env) as pool:
        assert pool.wait(10) == code

    assert (job.state(), job.job().attempts) == ("pending", 0)
    sound(database, None, pool)


def test_workers_that_keep_dying_at_their_start_end_the_pool(database, tmp_path, version, env):
    job = Queuety(database).enqueue("version")
    version.write_text("crash later")

    with daemon(database, "--workers=10", app=VERSIONS, log=tmp_path / "log", env=env) as pool:
        assert pool.wait(20) == 70

    assert "giving up" in pool.log()
    assert pool.log().count("ended at its start") == 10
    assert (job.state(), job.job().attempts) == ("pending", 0)
    sound(database, None, pool)


def test_workers_that_die_at_their_start_are_replaced_with_growing_pauses(database, tmp_path, version, env):
    version.write_text("crash later")

    with daemon(database, app=VERSIONS, log=tmp_path / "log", env=env) as pool:
        until(lambda: pool.log().count("ended at its start") == 4)
        version.write_text("ok")
        assert Queuety(database).enqueue("version").result(10) == "ok"
        assert pool.stop() == 0

    pauses = [float(text) for text in re.findall(r"the next one in ([\d.]+) s", pool.log())]
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.5 < pauses[-1]


def test_deaths_that_jobs_cause_are_no_deaths_at_start(database, tmp_path):
    app = Queuety(database)
    jobs = [app.enqueue("kill_self", {}, max_attempts=1) for _ in range(12)]

    with daemon(database, "--workers=2", log=tmp_path / "log", env=QUICK) as pool:
        assert {job.wait(20).state for job in jobs} == {"buried"}
        assert app.enqueue("ok").wait(5).state == "completed"
        assert pool.stop() == 0


@pytest.mark.parametrize("revision", [None, "0000", "9999"])
def test_a_schema_that_does_not_fit_ends_the_pool_with_4(database, empty, conn, tmp_path, revision):
    if revision:
        conn.execute("UPDATE queuety.schema_version SET version_num = %s", [revision])

    with daemon(database if revision else empty, log=tmp_path / "log") as pool:
        assert pool.wait(10) == 4

    assert "db migrate" in pool.log()
    assert "Traceback" not in pool.log()
