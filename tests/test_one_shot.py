"""`flush`, `work --once` and the worker in one's own process: they come to an end and say what they did."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from queuety import Context, Permanent, Queuety, Retry, Snooze
from queuety.store.connect import Connection
from tests import ROOT
from tests.daemon import daemon, read_ledger, until

APP = "tests.apps.data:app"


@pytest.fixture
def app(database: str) -> Iterator[Queuety]:
    queue = Queuety(database)
    yield queue
    queue.close()


@pytest.fixture
def run(database: str, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def call(*arguments: str, seconds: float = 30) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "queuety.cli.main", "--app", APP, "--database-url", database, *arguments],
            cwd=ROOT,
            env={**_environment(), "QUEUETY_TEST_LEDGER": str(tmp_path / "ledger")},
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    return call


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("QUEUETY_")}


def states(conn: Connection) -> dict[str, int]:
    found: dict[str, int] = dict(
        conn.execute("SELECT state::text, count(*) FROM queuety.all_jobs GROUP BY 1").fetchall()
    )
    return found


# ── flush ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("workers", ["1", "3"])
def test_flush_runs_all_that_is_due_and_what_follows_from_it(app, conn, run, workers):
    app.enqueue_many([("ok", {})] * 300)
    app.enqueue("follow_up", {"depth": 20})
    app.enqueue("ok", delay=3600)

    done = run("flush", f"--workers={workers}")

    assert done.returncode == 0
    assert "321 jobs: 321 completed" in done.stdout
    assert "1 due later" in done.stdout
    assert states(conn) == {"completed": 321, "pending": 1}


@pytest.mark.alone
def test_flush_of_nothing_or_only_later_jobs_ends_soon(app, run):
    for later in (0, 5):
        app.enqueue_many([("ok", {})] * 0)
        for _ in range(later):
            app.enqueue("ok", delay=3600)
        began = time.monotonic()
        done = run("flush")

        assert time.monotonic() - began < 5  # the interpreter's start included
        assert (done.returncode, "0 jobs" in done.stdout) == (0, True)


def test_flush_leaves_retries_that_are_due_later_and_says_so(app, conn, run):
    app.enqueue("fail", backoff=[60])
    app.enqueue("fail", max_attempts=1)

    done = run("flush", "--json")

    told = json.loads(done.stdout)
    assert (told["retried"], told["buried"], told["later"]) == (1, 1, 1)
    assert states(conn) == {"pending": 1, "buried": 1}


def test_flush_does_not_wait_for_a_locked_job(app, database, conn, run):
    locked, other = app.enqueue("ok"), app.enqueue("ok")

    with conn.transaction():
        conn.execute("SELECT 1 FROM queuety.jobs WHERE id = %s FOR UPDATE", [locked.id])
        done = run("flush", seconds=20)

    assert done.returncode == 0
    assert (locked.state(), other.state()) == ("pending", "completed")


def test_flush_that_leaves_due_jobs_does_not_say_that_nothing_is_due(app, conn, run):
    job = app.enqueue("ok")
    with conn.transaction():
        conn.execute("SELECT FROM queuety.jobs WHERE id = %s FOR UPDATE", [job.id])
        told = json.loads(run("flush", "--json").stdout)

    assert (told["due"], told["reason"]) == (1, "nothing more can be run")


def test_flush_leaves_what_another_pool_runs_to_it(app, database, run, tmp_path):
    with daemon(database, app=APP, ledger=tmp_path / "ledger", log=tmp_path / "log"):
        running = app.enqueue("sleep", {"seconds": 60})  # the pool is killed before
        until(lambda: running.state() == "processing")
        done = run("flush", seconds=20)
        meanwhile = running.state()

    assert (done.returncode, meanwhile) == (0, "processing")


def test_flush_stops_on_a_signal_and_finishes_what_runs(app, database, tmp_path):
    ledger = tmp_path / "ledger"
    jobs = [app.enqueue("sleep", {"seconds": 0.5}) for _ in range(20)]

    with daemon(database, app=APP, ledger=ledger, log=tmp_path / "log", command="flush") as pool:
        until(lambda: read_ledger(ledger))
        code = pool.stop()

    ended = [job.state() for job in jobs]
    assert code == 0
    assert 1 <= ended.count("completed") < 20
    assert ended.count("completed") + ended.count("pending") == 20


# ── once ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("handler", "payload", "first"),
    [
        ("ok", {}, "completed"),
        ("fail", {}, "pending"),
        ("kill_self", {}, "pending"),
        ("leave", {}, "pending"),
    ],
)
def test_once_starts_one_job_however_it_ends_and_leaves_the_others(
    app, run, tmp_path, handler, payload, first
):
    one = app.enqueue(handler, payload, backoff=[0])
    others = [app.enqueue("ok") for _ in range(2)]

    done = run("work", "--once")

    assert done.returncode == 0, done.stderr
    assert len([entry for entry in read_ledger(tmp_path / "ledger") if entry.what == "start"]) == 1
    assert (one.state(), one.job().attempts) == (first, 1)
    assert [(job.state(), job.job().attempts) for job in others] == [("pending", 0)] * 2


def test_once_with_nothing_due_ends_soon(run):
    done = run("work", "--once", seconds=5)

    assert (done.returncode, "0 jobs" in done.stdout) == (0, True)


# ── in one's own process ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def own(app: Queuety) -> Queuety:
    """An application whose handlers run right here."""

    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    @app.job(max_attempts=2, backoff=[0])
    def steer(ctx: Context, how: str) -> str:
        if how == "retry" and ctx.job.attempt == 1:
            raise Retry(after=0)
        if how == "snooze":
            raise Snooze(3600)
        if how == "permanent":
            raise Permanent("never")
        if how == "fail":
            raise ValueError("always")
        if how == "exit":
            sys.exit(3)
        if how == "interrupt":
            raise KeyboardInterrupt
        return how

    @app.job(timeout=0.3)
    def too_long() -> None:
        time.sleep(30)

    @app.job
    async def later(value: int) -> int:
        return value + 1

    @app.job
    def once(ctx: Context) -> str:
        with ctx.transaction() as conn:
            conn.execute("CREATE TABLE effects AS SELECT 1 AS n")
        return "done"

    return app


def test_a_flush_here_runs_all_and_counts_how_they_ended(own):
    jobs = {
        how: own.enqueue("steer", {"how": how})
        for how in ("plain", "retry", "snooze", "permanent", "fail", "exit")
    }
    added, async_ = own.enqueue("add", {"a": 1, "b": 2}), own.enqueue("later", {"value": 1})

    ran = own.worker().flush()

    assert {how: job.state() for how, job in jobs.items()} == {
        "plain": "completed", "retry": "completed", "snooze": "pending", "permanent": "buried", "fail": "buried",
        "exit": "buried",
    }  # fmt: skip
    assert (added.result(0), async_.result(0)) == (3, 2)
    assert (ran.completed, ran.buried, ran.snoozed, ran.retried) == (4, 3, 1, 3)
    assert jobs["snooze"].job().attempts == 0


def test_one_run_here_starts_one_job(own):
    jobs = [own.enqueue("add", {"a": number, "b": 0}) for number in range(3)]

    ran = own.worker().run_once()
    nothing = own.worker("empty").run_once()

    assert (ran.total, nothing.total) == (1, 0)
    assert [job.state() for job in jobs] == ["completed", "pending", "pending"]


@pytest.mark.alone
def test_a_time_limit_holds_here_too(own):
    job = own.enqueue("too_long", max_attempts=1)
    began = time.monotonic()

    own.worker().flush()

    assert time.monotonic() - began < 5
    assert (job.state(), job.job().error["type"]) == ("buried", "TimeLimitExceeded")


def test_the_transaction_of_a_job_works_here_too(own, conn):
    job = own.enqueue("once")

    own.worker().flush()

    assert job.result(0) == "done"
    assert conn.execute("SELECT n FROM effects").fetchall() == [(1,)]


def test_a_flush_here_leaves_the_process_as_it_was(own):
    before = {number: signal.getsignal(number) for number in signal.Signals if number not in (9, 19)}
    output = sys.stdout, sys.stderr, threading.active_count()
    own.enqueue("add", {"a": 1, "b": 2})

    own.worker().flush()

    assert {number: signal.getsignal(number) for number in signal.Signals if number not in (9, 19)} == before
    until(lambda: (sys.stdout, sys.stderr, threading.active_count()) == output, 3)


def test_a_flush_here_gives_an_alarm_of_the_callers_back(own):
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: rung.append(number))
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        own.enqueue("add", {"a": 1, "b": 2})
        own.worker().flush()
        until(lambda: rung, 3, "the caller's alarm")
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, left)

    assert rung == [signal.SIGALRM]


def test_a_flush_in_a_thread_works(own):
    jobs = [own.enqueue("add", {"a": number, "b": 0}) for number in range(50)]
    threads = [threading.Thread(target=own.worker().flush) for _ in range(3)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert [job.result(0) for job in jobs] == list(range(50))
    assert {job.job().attempts for job in jobs} == {1}


def test_queues_here_are_worked_in_the_order_given(own: Queuety) -> None:
    order: list[int] = []

    @own.job
    def note(place: int) -> None:
        order.append(place)

    for queue, place in (("low", 3), ("default", 2), ("critical", 1)):
        own.enqueue("note", {"place": place}, queue=queue)
    own.worker("critical, default ,low").flush()

    assert order == [1, 2, 3]
