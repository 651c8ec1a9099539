"""Lost workers: whatever dies and whenever, its jobs run again, once, and never beside themselves."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import pytest

from queuety import Queuety
from queuety.store.connect import connect
from tests import ROOT
from tests.checks import attempts, ends, sound, starts, states
from tests.daemon import daemon, read_ledger, until
from tests.servers import own_server

ROUGH = "tests.apps.rough:app"
QUICK = {
    "QUEUETY_STALE_TIMEOUT": "3",
    "QUEUETY_WORKER_SLEEP": "0.5",
    "QUEUETY_WORKER_MIN_AGE": "0",
    "QUEUETY_WORKER_MAX_JOBS": "0",
}


def recovering(database):
    """Start `queuety recover` as a process; its output tells what it did."""
    return subprocess.Popen(
        [sys.executable, "-m", "queuety.cli.main", "recover", "--json"],
        env={**os.environ, "QUEUETY_DATABASE_URL": database, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def abandon(conn, count, *, ago="1 day", handler="ok", queue="default", worker="gone#1", attempts=1):
    """Write jobs that a worker of long ago still seems to run."""
    conn.execute(
        """
        INSERT INTO queuety.jobs (handler, queue, state, attempts, worker, lease, claimed_at, lease_until, backoff)
        SELECT %s, %s, 'processing', %s, %s, nextval('queuety.leases'), now() - %s::interval,
               now() - %s::interval, '{"steps": [0]}'
        FROM generate_series(1, %s)
        """,
        [handler, queue, attempts, worker, ago, ago, count],
    )


def no_overlap(ledger):
    """No run of a job had its end noted after the next one had begun. A killed run notes no end."""
    runs: dict[int, dict[tuple[int, int], dict[str, float]]] = {}
    for entry in read_ledger(ledger):
        runs.setdefault(entry.job, {}).setdefault((entry.attempt, entry.pid), {})[entry.what] = entry.at
    for of_job in runs.values():
        in_order = sorted(of_job.values(), key=lambda run: run["start"])
        for one, two in itertools.pairwise(in_order):
            if one.get("end", 0.0) > two["start"]:
                return False
    return True


# ── lost jobs ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.alone
def test_a_killed_worker_costs_its_job_milliseconds(database, tmp_path):
    ledger = tmp_path / "ledger"
    job = Queuety(database).enqueue("hang_once", {}, backoff=[0])

    with daemon(database, "--workers=2", app=ROUGH, ledger=ledger, log=tmp_path / "log") as pool:
        pool.ready(2)
        until(lambda: starts(ledger))
        victim = read_ledger(ledger)[0].pid
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        done = job.wait(5)
        assert pool.stop() == 0

    assert (done.state, done.attempts) == ("completed", 2)
    assert [one.at for one in read_ledger(ledger) if one.what == "start"][1] - killed < 1
    sound(database, ledger, pool)


def test_a_killed_pool_costs_its_jobs_the_stale_timeout(database, tmp_path):
    ledger = tmp_path / "ledger"
    job = Queuety(database).enqueue("hang_once", {}, backoff=[0])

    with daemon(database, app=ROUGH, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        until(lambda: starts(ledger))
        pool.kill()
        killed = time.monotonic()
    with daemon(database, app=ROUGH, ledger=ledger, log=tmp_path / "new", env=QUICK) as pool:
        done = job.wait(8)
        assert pool.stop() == 0

    assert (done.state, done.attempts) == ("completed", 2)
    assert read_ledger(ledger)[-1].at - killed < 3 + 1 + 2
    sound(database, ledger, pool)


def test_a_claim_that_is_committed_after_its_workers_death_is_given_back(database, conn, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    conn.execute(
        """
        CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_sleep(1); RETURN new; END $$
        """
    )
    conn.execute(
        """
        CREATE TRIGGER slow BEFORE UPDATE ON queuety.jobs FOR EACH ROW
        WHEN (old.state = 'pending' AND new.state = 'processing') EXECUTE FUNCTION slow()
        """
    )

    with daemon(database, ledger=ledger, log=tmp_path / "log") as pool:
        job = app.enqueue("ok")
        until(
            lambda: conn.execute(
                "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
            ).fetchall()
        )
        pool.workers()[0].kill()
        done = job.wait(10)  # far less than the stale timeout
        assert pool.stop() == 0

    assert (done.state, done.attempts) == ("completed", 1)
    assert starts(ledger) == {job.id: 1}
    sound(database, ledger, pool)


def ended_sessions(database, tmp_path, *, jobs, seconds):
    """Run jobs while the workers' sessions are ended at random."""
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    app.enqueue_many([("sleep", {"seconds": 0.01})] * jobs)
    over = threading.Event()

    def end_sessions():
        dice = random.Random(1)
        with connect(database, name="test") as conn:
            while not over.wait(0.05):
                found = conn.execute(
                    """
                    SELECT pid FROM pg_stat_activity
                    WHERE datname = current_database() AND application_name LIKE 'queuety worker%'
                    """
                ).fetchall()
                if found:
                    conn.execute("SELECT pg_terminate_backend(%s)", [dice.choice(found)[0]])

    ending = threading.Thread(target=end_sessions)
    with daemon(database, "--workers=4", ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(4)
        ending.start()
        try:
            until(lambda: states(database)["completed"] == jobs, seconds)
        finally:
            over.set()
            ending.join()
        assert pool.stop() == 0

    assert len(starts(ledger)) == jobs
    assert no_overlap(ledger)
    sound(database, ledger, pool)


def test_no_job_is_lost_when_sessions_end_at_random(database, tmp_path):
    ended_sessions(database, tmp_path, jobs=400, seconds=20)


@pytest.mark.soak
def test_no_job_is_lost_when_sessions_end_at_random_for_long(database, tmp_path):
    ended_sessions(database, tmp_path, jobs=6000, seconds=90)


@pytest.mark.soak
def test_no_job_is_lost_when_workers_are_killed_at_random(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    app.enqueue_many([("sleep", {"seconds": 0.005})] * 3000)
    dice = random.Random(1)

    with daemon(database, "--workers=4", ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(4)
        while states(database)["pending"] > 500:
            victims = pool.workers()
            if victims:
                dice.choice(victims).kill()
            time.sleep(0.15)
        until(lambda: sum(states(database)[state] for state in ("completed", "buried")) == 3000, 60)
        assert pool.stop() == 0

    assert states(database)["buried"] < 50
    assert no_overlap(ledger)
    sound(database, ledger, pool)


def test_no_job_is_lost_whoever_of_a_pool_is_killed(database, conn, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    app.enqueue_many([("sleep", {"seconds": 0.01})] * 300)
    dice = random.Random(2)

    with daemon(database, "--workers=3", ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(3)
        for _ in range(10):
            # Supervisors aside: everybody may die at any time, and every job is in one place at every instant.
            dice.choice([*pool.workers(), pool.keeper()]).kill()
            counted = conn.execute("SELECT count(*), count(DISTINCT id) FROM queuety.all_jobs").fetchone()
            assert counted == (300, 300)
            time.sleep(0.1)
        until(lambda: sum(states(database)[state] for state in ("completed", "buried")) == 300, 30)
        assert pool.stop() == 0

    assert len(starts(ledger)) == 300
    sound(database, ledger, pool)


# ── no double run ─────────────────────────────────────────────────────────────────────────────────


def test_a_delayed_job_is_not_recovered_while_it_waits(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    written = time.monotonic()
    job = app.enqueue("ok", {}, delay=4)
    env = {**QUICK, "QUEUETY_STALE_TIMEOUT": "1"}

    with daemon(database, "--workers=3", ledger=ledger, log=tmp_path / "log", env=env) as pool:
        while not starts(ledger):
            assert app.recover().total == 0
            assert time.monotonic() < written + 8
            time.sleep(0.3)
        assert job.wait(5).attempts == 1
        assert pool.stop() == 0

    assert read_ledger(ledger)[0].at - written >= 4
    assert starts(ledger) == {job.id: 1}
    sound(database, ledger, pool)


def test_several_pools_never_run_a_job_twice(database, conn, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    dice = random.Random(1)
    app.enqueue_many([("sleep", {"seconds": dice.random() * 0.005}) for _ in range(2000)])
    conn.execute("UPDATE queuety.jobs SET queue = CASE id % 2 WHEN 0 THEN 'one' ELSE 'two' END")

    with ExitStack() as stack:
        pools = [
            stack.enter_context(
                daemon(
                    database,
                    "--workers=2",
                    f"--queue={queues}",
                    ledger=ledger,
                    log=tmp_path / f"log{n}",
                    env=QUICK,
                )
            )
            for n, queues in enumerate(["one,two", "two,one", "one", "two"])
        ]
        until(lambda: states(database) == {"completed": 2000}, 40)
        assert {pool.stop() for pool in pools} == {0}

    assert set(starts(ledger).values()) == {1}
    assert len(starts(ledger)) == 2000
    assert set(attempts(database).values()) == {1}
    sound(database, ledger, *pools)


# ── stuck in processing ───────────────────────────────────────────────────────────────────────────


def test_a_job_is_recovered_though_nothing_is_known_of_its_worker_any_more(database, conn, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    job = app.enqueue("sleep", {"seconds": 60})
    with daemon(database, ledger=ledger, log=tmp_path / "log", env={"QUEUETY_STALE_TIMEOUT": "1"}) as pool:
        until(lambda: starts(ledger))
        pool.kill()
    conn.execute("DELETE FROM queuety.workers")

    recovered = until(lambda: (found := app.recover()).total and found, 5)

    assert (recovered.total, recovered.retried) == (1, 1)
    assert (job.state(), job.job().attempts) == ("pending", 1)


@pytest.mark.parametrize("by", ["a pool", "the command"])
def test_any_number_of_abandoned_jobs_is_recovered_in_one_go(database, conn, tmp_path, by):
    abandon(conn, 5000, queue="elsewhere")

    if by == "a pool":
        with daemon(database, log=tmp_path / "log", env=QUICK) as pool:
            until(lambda: states(database)["processing"] == 0, 10)
            assert pool.stop() == 0
        assert sum(map(int, re.findall(r"recovered (\d+) jobs", pool.log()))) == 5000
    else:
        said, _ = recovering(database).communicate(timeout=20)
        assert '"retried": 5000' in said

    assert states(database) == {"pending": 5000}


def test_a_pool_with_thousands_to_recover_renews_its_own_leases_meanwhile(database, conn, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    job = app.enqueue("sleep", {"seconds": 5})
    env = {**QUICK, "QUEUETY_STALE_TIMEOUT": "2"}

    with daemon(database, ledger=ledger, log=tmp_path / "log", env=env) as pool:
        until(lambda: starts(ledger))
        abandon(conn, 8000, queue="elsewhere")
        while not ends(ledger):
            assert conn.execute(
                "SELECT count(*) FROM queuety.jobs WHERE id = %s AND lease_until < now()", [job.id]
            ).fetchone() == (0,)
            time.sleep(0.05)
        assert job.wait(10).attempts == 1
        assert pool.stop(40) == 0

    assert starts(ledger) == {job.id: 1}


@pytest.mark.soak
def test_an_end_that_cannot_be_stored_now_is_stored_later(tmp_path):
    """The database is read-only for a while, in the middle of a job and of an idle pool."""
    ledger = tmp_path / "ledger"
    with own_server() as server, connect(server.url, name="test") as conn:
        app = Queuety(server.url)
        job = app.enqueue("sleep", {"seconds": 1})

        with daemon(server.url, "--workers=2", ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
            until(lambda: starts(ledger))
            conn.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            conn.execute("SELECT pg_reload_conf()")
            until(lambda: ends(ledger))
            time.sleep(5)
            during = pool.log().count("\n")
            conn.execute("SET default_transaction_read_only = off")
            conn.execute("ALTER SYSTEM RESET default_transaction_read_only")
            conn.execute("SELECT pg_reload_conf()")
            assert job.wait(15).state == "completed"
            assert app.enqueue("ok").wait(15).state == "completed"
            assert pool.stop() == 0

        assert starts(ledger)[job.id] in (1, 2)
        assert during < 50, "log lines"
        sound(server.url, ledger, pool)


# ── races of recovery ─────────────────────────────────────────────────────────────────────────────


def test_a_finished_job_is_never_recovered_nor_a_living_one(database, conn, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    dice = random.Random(1)
    app.enqueue_many([("sleep", {"seconds": 0.8 + dice.random() * 0.6}) for _ in range(24)])
    over = threading.Event()
    totals: list[int] = []

    def recover_on():
        own = Queuety(database)
        while not over.is_set():
            totals.append(own.recover().total)

    env = {**QUICK, "QUEUETY_STALE_TIMEOUT": "1"}
    threads = [threading.Thread(target=recover_on) for _ in range(3)]
    with daemon(database, "--workers=6", ledger=ledger, log=tmp_path / "log", env=env) as pool:
        pool.ready(6)
        for thread in threads:
            thread.start()
        until(lambda: states(database)["completed"] == 24, 30)
        over.set()
        for thread in threads:
            thread.join()
        assert pool.stop() == 0

    assert sum(totals) == 0
    assert set(starts(ledger).values()) == {1}
    sound(database, ledger, pool)


def test_a_handler_that_holds_the_interpreter_is_alive(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    job = app.enqueue("hold_then", {"seconds": 4})
    env = {**QUICK, "QUEUETY_STALE_TIMEOUT": "1"}

    with daemon(database, app=ROUGH, ledger=ledger, log=tmp_path / "log", env=env) as pool:
        until(lambda: starts(ledger))
        while not ends(ledger):
            assert app.recover().total == 0
            time.sleep(0.1)
        assert pool.stop() == 0

    assert (job.state(), job.job().attempts) == ("completed", 1)
    sound(database, ledger, pool)


def test_a_pool_without_the_handler_recovers_a_job_but_leaves_its_running_to_others(database, conn, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    job = app.enqueue("hang_once", {}, queue="a", backoff=[0])
    with daemon(database, "--queue=a", app=ROUGH, ledger=ledger, log=tmp_path / "a", env=QUICK) as pool:
        until(lambda: starts(ledger))
        pool.kill()

    with daemon(database, "--queue=b", ledger=ledger, log=tmp_path / "b", env=QUICK) as other:
        until(lambda: job.state() == "pending", 8)
        assert job.job().attempts == 1
        with daemon(database, "--queue=a", app=ROUGH, ledger=ledger, log=tmp_path / "c", env=QUICK) as pool:
            assert job.wait(5).attempts == 2
            assert pool.stop() == 0
        assert other.stop() == 0

    assert starts(ledger) == {job.id: 2}
    sound(database, ledger, pool, other)


def test_recoveries_at_once_act_once_per_job(database, conn):
    abandon(conn, 100)

    processes = [recovering(database) for _ in range(8)]
    said = [process.communicate(timeout=60)[0] for process in processes]

    assert sum(json.loads(text)["retried"] for text in said) == 100
    rows = conn.execute(
        "SELECT count(*) FROM queuety.job_events WHERE type = 'recovered' GROUP BY job_id"
    ).fetchall()
    assert rows == [(1,)] * 100
    assert states(database) == {"pending": 100}
    assert set(attempts(database).values()) == {1}


# ── poison ────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_kills_its_worker_is_buried_after_its_last_attempt(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    killer = app.enqueue("kill_self", {}, max_attempts=3, backoff=[0.1])
    others = [app.enqueue("ok") for _ in range(20)]

    with daemon(database, "--workers=2", ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        ended = killer.wait(10)
        assert {job.wait(5).state for job in others} == {"completed"}
        assert pool.stop() == 0

    assert (ended.state, ended.attempts) == ("buried", 3)
    assert "signal 9" in str(ended.error)
    assert starts(ledger)[killer.id] == 3
    assert all(starts(ledger)[job.id] == job.job().attempts == 1 for job in others)
    sound(database, ledger, pool)


def test_a_crash_of_the_interpreter_is_told_by_its_signal(database, tmp_path):
    ledger = tmp_path / "ledger"
    job = Queuety(database).enqueue("segfault", {}, max_attempts=1)

    with daemon(database, app=ROUGH, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        ended = job.wait(10)
        assert pool.stop() == 0

    assert (ended.state, ended.attempts) == ("buried", 1)
    assert "signal 11" in str(ended.error)
    assert starts(ledger) == {job.id: 1}
    sound(database, ledger, pool)


def test_a_killer_waits_for_its_back_off_and_starves_nobody(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    killer = app.enqueue("kill_self", {}, queue="critical", max_attempts=4, backoff=[1])
    others = [app.enqueue("sleep", {"seconds": 0.05}, queue="critical") for _ in range(30)]

    with daemon(database, "--queue=critical", ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        ended = killer.wait(15)
        assert {job.wait(5).state for job in others} == {"completed"}
        assert pool.stop() == 0

    begun = [entry for entry in read_ledger(ledger) if entry.what == "start"]
    kills = [entry.at for entry in begun if entry.job == killer.id]
    assert ended.state == "buried"
    assert len(kills) == 4
    assert all(second - first >= 1 for first, second in itertools.pairwise(kills))
    assert sum(entry.at < kills[1] for entry in begun) > 5, "the others run between its attempts"
    assert set(attempts(database).values()) == {1, 4}
    sound(database, ledger, pool)
