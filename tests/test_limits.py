"""Time limits and cancelling: a run that is to end does end, whatever its handler thinks of it."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from queuety import Queuety
from tests.checks import ends, remaining, sound, starts
from tests.daemon import daemon, read_ledger, until

ROUGH = "tests.apps.rough:app"
QUICK = {"QUEUETY_STALE_TIMEOUT": "3", "QUEUETY_WORKER_SLEEP": "0.5", "QUEUETY_RETRY_BACKOFF": "fixed"}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    return tmp_path_factory.mktemp("limits") / "ledger"


@pytest.fixture(scope="module")
def pool(shared, ledger):
    """One pool for all tests that only need some pool."""
    log = ledger.with_name("log")
    with daemon(shared, "--workers=8", app=ROUGH, ledger=ledger, log=log, env=QUICK) as running:
        running.ready(8)
        yield running
        assert running.stop() == 0
        sound(shared, ledger, running)


@pytest.fixture(scope="module")
def app(shared, pool):
    return Queuety(shared)


# ── time limits ───────────────────────────────────────────────────────────────────────────────────

OVER = (
    "over",
    "over_and_swallow",
    "over_and_swallow_all",
    "over_and_deaf",
    "over_in_c",
    "over_and_wrap",
    "over_async",
    "over_async_and_swallow",
    "over_async_blocking",
    "over_in_thread",
)


@pytest.fixture(scope="module")
def over(app):
    """A job of each kind, all written at once so that their second passes once only."""
    return {handler: app.enqueue(handler, {}, max_attempts=1) for handler in OVER}


@pytest.mark.parametrize("handler", OVER)
def test_no_handler_can_escape_its_time_limit(over, ledger, handler):
    job = over[handler]

    ended = job.wait(15)
    began = next(one.at for one in read_ledger(ledger) if one.job == job.id)

    assert (ended.state, ended.attempts) == ("buried", 1)
    assert ended.error is not None
    assert ended.error["type"] == "TimeLimitExceeded"
    assert "time limit of 1 s" in ended.error["message"]
    assert time.monotonic() - began >= 1
    assert (ended.finished_at - ended.started_at).total_seconds() < 4


def test_a_job_that_always_runs_into_its_limit_is_buried_after_its_last_attempt(app, ledger):
    job = app.enqueue("over", {}, max_attempts=3, backoff=[0])

    ended = job.wait(12)

    assert (ended.state, ended.attempts) == ("buried", 3)
    assert "attempt 3 of 3" in ended.error["message"]
    assert starts(ledger)[job.id] == 3


def test_a_coroutine_over_its_limit_may_tidy_up(over, ledger):
    job = over["over_async"]

    job.wait(10)

    assert ends(ledger)[job.id] == 1


def test_whatever_a_run_over_its_limit_had_started_is_dead_when_the_job_is_settled(over, ledger):
    job = over["over_in_thread"]

    job.wait(10)
    child = int(Path(f"{ledger}.child").read_text())
    worker = next(one.pid for one in read_ledger(ledger) if one.job == job.id)

    left = [psutil.Process(pid) for pid in (child, worker) if psutil.pid_exists(pid)]
    assert remaining(left, 0) == []


def test_a_stopped_worker_is_killed_when_its_jobs_time_is_over(app, ledger, pool):
    job = app.enqueue("over", {}, max_attempts=1)
    until(lambda: starts(ledger)[job.id])
    worker = next(one.pid for one in read_ledger(ledger) if one.job == job.id)

    psutil.Process(worker).send_signal(signal.SIGSTOP)
    ended = job.wait(6)

    assert ended.state == "buried"
    assert ended.error["type"] == "TimeLimitExceeded"
    assert remaining([one for one in pool.workers() if one.pid == worker], 0) == []


def test_a_job_without_a_limit_outlives_every_clock(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    job = app.enqueue("unlimited", {"seconds": 5})
    env = {**QUICK, "QUEUETY_STALE_TIMEOUT": "1", "QUEUETY_MAX_EXECUTION_TIME": "1"}

    with daemon(database, app=ROUGH, ledger=ledger, log=tmp_path / "log", env=env) as pool:
        until(lambda: starts(ledger))
        while not ends(ledger):
            assert app.recover().total == 0
            time.sleep(0.2)
        assert pool.stop() == 0

    assert (job.state(), job.job().attempts) == ("completed", 1)
    sound(database, ledger, pool)


# ── cancelling ────────────────────────────────────────────────────────────────────────────────────


CANCELLED = {
    "heed": {},
    "tidy_up": {"seconds": 0.7},
    "wait_async": {},
    "swallow_cancel": {},
    "hold_then": {"seconds": 60},
    "ask_and_ignore": {},
}


@pytest.fixture(scope="module")
def cut(app, ledger, over):
    """A job of each kind, cancelled in its middle: the job at its end, and how long that took."""
    for job in over.values():
        job.wait(15)
    jobs = {handler: app.enqueue(handler, payload) for handler, payload in CANCELLED.items()}
    until(lambda: all(starts(ledger)[job.id] for job in jobs.values()))
    asked = time.monotonic()
    for job in jobs.values():
        app.cancel(job.id)
    ended: dict[str, Any] = {}
    while len(ended) < len(jobs):
        assert time.monotonic() < asked + 15
        for handler, job in jobs.items():
            if handler not in ended and job.state().final:
                ended[handler] = job.job(), time.monotonic() - asked
        time.sleep(0.05)
    return ended


@pytest.mark.parametrize("handler", CANCELLED)
def test_a_running_job_that_is_cancelled_ends_so_whatever_its_handler_thinks_of_it(cut, handler):
    job, _ = cut[handler]

    assert (job.state, job.attempts) == ("cancelled", 1)


@pytest.mark.parametrize("handler", ["heed", "tidy_up", "wait_async"])
def test_a_handler_that_takes_its_cancellation_well_may_tidy_up(cut, ledger, handler):
    job, took = cut[handler]

    assert ends(ledger)[job.id] == 1
    assert took < 3


@pytest.mark.parametrize("handler", ["swallow_cancel", "hold_then"])
def test_a_handler_that_swallows_its_cancellation_is_killed_soon(cut, handler):
    _, took = cut[handler]

    assert took < 6


def test_a_pool_has_all_its_workers_after_runs_were_cut(app, pool):
    jobs = [app.enqueue("ok") for _ in range(20)]

    assert {job.wait(10).state for job in jobs} == {"completed"}
    assert len(pool.ready(8)) == 8
