"""The database goes away in every way it can; the pool comes back by itself."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queuety import Queuety
from queuety.store.connect import connect, unreachable
from tests import ROOT
from tests.daemon import Daemon, daemon, read_ledger, until
from tests.servers import Server, network, own_server

APP = "tests.apps.data:app"
QUICK = {"QUEUETY_STALE_TIMEOUT": "3", "QUEUETY_WORKER_SLEEP": "0.5"}
BACK_S = 30.0


@pytest.fixture(scope="module")
def own() -> Any:
    with own_server() as server:
        yield server


@pytest.fixture
def clean(own: Server) -> Any:
    """The server, without jobs; another test may have left some."""
    with connect(own.url) as conn:
        conn.execute("TRUNCATE queuety.jobs, queuety.finished_jobs, queuety.buried_jobs, queuety.workers")
    return own


def starts(ledger: Path, job: Any) -> int:
    return len([one for one in read_ledger(ledger) if one.job == job.id and one.what == "start"])


def back_in_time(app: Queuety, since: float) -> None:
    """The pool takes new jobs, and is woken for them, within the promised time."""
    app.enqueue("ok").wait(since + BACK_S - time.monotonic())


def restart(server: Server, down_s: float) -> None:
    server.kill()
    time.sleep(down_s)
    server.start()


def survivors(pool: Daemon) -> list[int]:
    return sorted(one.pid for one in [*pool.workers(), pool.keeper()])


# ── restarts ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.alone
@pytest.mark.parametrize("down_s", [1.0, pytest.param(20.0, marks=pytest.mark.soak)])
def test_a_pool_survives_an_immediate_restart_of_the_server(clean, tmp_path, down_s):
    ledger = tmp_path / "ledger"
    app = Queuety(clean.url)
    busy = [app.enqueue("sleep", {"seconds": down_s / 2 + 1}, backoff=[0.1]) for _ in range(2)]

    with daemon(clean.url, "--workers=4", app=APP, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(4)
        until(lambda: all(starts(ledger, job) for job in busy))
        before = survivors(pool)
        restart(clean, down_s)
        since = time.monotonic()
        back_in_time(app, since)
        ended = [job.wait(since + BACK_S - time.monotonic()) for job in busy]
        after = survivors(pool)
        wakes_promptly(app)
        code = pool.stop()

    assert [job.state for job in ended] == ["completed"] * 2
    assert all(starts(ledger, job) <= job.job().attempts <= 2 for job in busy)
    assert after == before
    assert code == 0
    assert "Traceback" not in pool.log()
    assert len(pool.log().splitlines()) < 100


def wakes_promptly(app: Queuety) -> None:
    """Jobs start at once, not at the next poll: the keeper listens. The pool of QUICK polls twice a second."""
    time.sleep(0.8)  # let it go to sleep
    waits = []
    for _ in range(3):
        began = time.monotonic()
        app.enqueue("ok").wait(10)
        waits.append(time.monotonic() - began)
        time.sleep(0.4)
    assert sorted(waits)[1] < 0.2, waits


def test_a_pool_can_be_stopped_while_the_database_is_away(clean, tmp_path):
    with daemon(clean.url, "--workers=2", app=APP, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(2)
        clean.kill()
        try:
            until(lambda: "lost the database" in pool.log())
            began = time.monotonic()
            code = pool.stop()
            took = time.monotonic() - began
        finally:
            clean.start()

    assert code == 0
    assert took < 5.0


def test_a_pool_that_starts_before_its_database_waits_for_it(clean, tmp_path):
    """A command that looks first refuses; workers that lose it between the look and their start wait."""
    clean.kill()
    try:
        with daemon(clean.url, app=APP, log=tmp_path / "log", env=QUICK) as pool:
            code = pool.wait(20)
    finally:
        clean.start()

    assert code == 3
    assert len(pool.log().splitlines()) == 1


@pytest.mark.parametrize(
    "command", [["work"], ["work", "--once"], ["flush"], ["recover"], ["status"], ["enqueue", "ok"]]
)
@pytest.mark.parametrize("wrong", ["nobody there", "wrong name"])
def test_without_a_database_a_command_ends_with_one_line_and_a_code(own, command, wrong):
    url = {
        "nobody there": "postgresql://nobody@127.0.0.1:9/nothing",
        "wrong name": own.url.replace("/queuety?", "/nothing?"),
    }[wrong]

    done = subprocess.run(
        [sys.executable, "-m", "queuety.cli.main", "--app", APP, "--database-url", url, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1, done.stderr


# ── read-only ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seconds", [3.0, pytest.param(13.0, marks=pytest.mark.soak)])
def test_a_pool_survives_a_database_that_turns_read_only(clean, tmp_path, seconds):
    ledger = tmp_path / "ledger"
    app = Queuety(clean.url)
    job = app.enqueue("sleep", {"seconds": 1.5}, backoff=[0.1])

    with daemon(clean.url, "--workers=2", app=APP, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        until(lambda: starts(ledger, job))
        set_read_only(clean.url, "on")
        time.sleep(seconds)
        set_read_only(clean.url, "off")
        since = time.monotonic()
        back_in_time(app, since)
        ended = job.wait(since + BACK_S - time.monotonic())
        code = pool.stop()

    assert ended.state == "completed"
    assert starts(ledger, job) <= ended.attempts <= 2
    assert code == 0
    assert "Traceback" not in pool.log()
    assert len(pool.log().splitlines()) < 100


def set_read_only(url: str, value: str) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("SET default_transaction_read_only = off")
        conn.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        conn.execute("SELECT pg_reload_conf()")


# ── sessions that end ─────────────────────────────────────────────────────────────────────────────

_STORM = """
    SELECT pg_terminate_backend(pid)
    FROM pg_stat_activity
    WHERE application_name LIKE 'queuety %%'
        AND application_name NOT LIKE 'queuety caller%%'
        AND datname = current_database()
        AND random() < %s
"""


@pytest.mark.alone
def test_one_ended_session_each_is_one_hiccup(database, tmp_path):
    app = Queuety(database)

    with daemon(database, "--workers=2", app=APP, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(2)
        time.sleep(0.5)
        before = survivors(pool)
        with psycopg.connect(database, autocommit=True) as conn:
            ended = conn.execute(_STORM, [2.0]).rowcount
        jobs = [app.enqueue("echo", {"value": number}) for number in range(20)]
        results = [job.result(10) for job in jobs]
        after = survivors(pool)
        wakes_promptly(app)

    assert ended == 3
    assert results == list(range(20))
    assert after == before
    assert pool.log().count("lost the database") <= 3


@pytest.mark.parametrize(
    ("count", "seconds"), [(1500, 2.0), pytest.param(4000, 30.0, marks=pytest.mark.soak)]
)
def test_no_job_is_lost_or_stuck_in_a_storm_of_ended_sessions(database, tmp_path, count, seconds):
    ledger = tmp_path / "ledger"
    app = Queuety(database)

    with daemon(database, "--workers=4", app=APP, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(4)
        app.enqueue_many([("ok", {})] * count)
        over = time.monotonic() + seconds
        with psycopg.connect(database, autocommit=True) as conn:
            while time.monotonic() < over:
                conn.execute(_STORM, [0.3])
                time.sleep(0.05)
            until(
                lambda: conn.execute("SELECT count(*) FROM queuety.jobs").fetchone() == (0,),
                BACK_S,
                f"an empty queue\n{pool.log()[-3000:]}",
            )
            rows = conn.execute("SELECT id, state::text, attempts FROM queuety.all_jobs").fetchall()
        code = pool.stop()

    noted: dict[int, int] = {}
    for one in read_ledger(ledger):
        noted[one.job] = noted.get(one.job, 0) + (one.what == "start")
    assert len(rows) == count
    assert {state for _, state, _ in rows} == {"completed"}
    assert all(noted[job_id] <= attempts for job_id, _, attempts in rows)
    assert code == 0
    assert "Traceback" not in pool.log()


# ── a silent network ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.soak
def test_a_pool_gives_up_on_a_silent_network_and_comes_back_over_a_new_one(clean, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(clean.url)

    with (
        network(clean.url) as between,
        daemon(between.url, "--workers=2", app=APP, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool,
    ):
        pool.ready(2)
        running = app.enqueue("sleep", {"seconds": 3}, backoff=[0.1])
        until(lambda: starts(ledger, running))
        before = survivors(pool)
        between.fall_silent()
        time.sleep(20)
        between.speak()
        since = time.monotonic()
        back_in_time(app, since)
        ended = running.wait(since + BACK_S - time.monotonic())
        after = survivors(pool)
        wakes_promptly(app)
        code = pool.stop()

    assert ended.state == "completed"
    assert starts(ledger, running) <= ended.attempts <= 2
    assert after == before
    assert code == 0


def test_an_error_that_says_already_what_is_wrong_is_not_wrapped_again():
    once = unreachable(OSError("no route"))

    assert unreachable(once) is once
    assert once.message == "the database cannot be reached: no route"
