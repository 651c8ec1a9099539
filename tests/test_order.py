"""When jobs start, and in what order: queues, priorities, due times, pauses, wake-ups, clocks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from queuety import Queuety
from queuety.errors import UsageError
from queuety.handle import JobHandle
from tests import ROOT
from tests.daemon import daemon, read_ledger, until

APP = "tests.apps.data:app"
FAKETIME = next(iter(Path("/usr/lib").glob("**/faketime/libfaketime.so.1")), None)


@pytest.fixture
def app(database: str) -> Iterator[Queuety]:
    queue = Queuety(database)
    yield queue
    queue.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def started(ledger: Path) -> list[int]:
    """Ids of the jobs in the order in which they started."""
    entries = [one for one in read_ledger(ledger) if one.what == "start"]
    return [one.job for one in sorted(entries, key=lambda one: one.at)]


def queuety(url: str, *arguments: str, seconds: float = 30) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "queuety.cli.main", "--app", APP, "--database-url", url, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


# ── order ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("handler", ["ok", "sleep"])
def test_jobs_start_by_queue_then_priority_then_due_time_then_id(app, database, ledger, tmp_path, handler):
    now = datetime.now(UTC)
    payload = {"seconds": 0.01} if handler == "sleep" else {}
    expected: dict[tuple[int, int, int], list[int]] = {}
    for late in (1, 3, 2):
        for level, priority in enumerate(("urgent", "high", "normal", "low")):
            for place, queue in ((2, "low"), (1, "default"), (0, "critical")):
                for _ in range(2):
                    job = app.enqueue(
                        handler, payload, queue=queue, priority=priority, at=now - timedelta(seconds=late)
                    )
                    expected.setdefault((place, level, -late), []).append(job.id)

    env = {"QUEUETY_TEST_LEDGER": str(ledger)}
    with daemon(
        database, "--queue=critical, default ,low", app=APP, log=tmp_path / "log", command="flush", env=env
    ) as pool:
        assert pool.wait(30) == 0

    assert started(ledger) == [job for key in sorted(expected) for job in expected[key]]


def test_a_paused_queue_gives_way_and_comes_first_again_once_resumed(app, database, ledger, tmp_path):
    app.pause("critical")
    jobs = {
        queue: [app.enqueue("sleep", {"seconds": 0.15}, queue=queue) for _ in range(10)]
        for queue in ("low", "default", "critical")
    }

    with daemon(
        database, "--workers=2", "--queue=critical,default,low", app=APP, ledger=ledger, log=tmp_path / "log"
    ) as pool:
        until(lambda: len(started(ledger)) >= 12)
        before = started(ledger)
        app.resume("critical")
        for job in (one for many in jobs.values() for one in many):
            job.wait(20)
        pool.stop()

    critical = {job.id for job in jobs["critical"]}
    after = started(ledger)[len(before) :]
    first = next(place for place, job in enumerate(after) if job in critical)
    assert not critical & set(before)
    assert set(before) >= {job.id for job in jobs["default"]}
    assert first <= 2  # what was being claimed at that moment
    # Each of the two workers may have had one in hand; from then on it is critical and nothing else.
    assert len([job for job in after[first : first + 12] if job in critical]) >= 10
    assert {job.job().attempts for many in jobs.values() for job in many} == {1}


def test_a_name_that_is_let_in_works_on_every_road_and_means_nothing_else(
    app, database, conn, ledger, tmp_path
):
    names = ["작업", "UPPER", "upper", "_", "a.b-c", "a_b", "aXb", "x" * 255]
    jobs = [
        app.enqueue("ok", queue=name, tags=[name], unique_key=f"{name[:9]}%_'*,\U0001f600") for name in names
    ]
    jobs += [
        JobHandle(app, conn.execute("SELECT queuety.enqueue(%s::jsonb)", [text]).fetchone()[0])
        for text in (json.dumps({"handler": "ok", "queue": name}) for name in names)
    ]
    app.pause("a_b")

    done = queuety(database, "flush", "--queue=" + ",".join(names))

    assert done.returncode == 0, done.stderr
    paused = {job.id for job, name in zip(jobs, names * 2, strict=True) if name == "a_b"}
    assert {job.id for job in jobs if job.state() == "pending"} == paused
    assert [len(app.jobs(tag=name)) for name in names] == [1] * len(names)
    assert [len(app.jobs(queue=name)) for name in names] == [2] * len(names)


@pytest.mark.parametrize(
    "name", ["a b", "a,b", "*", "o'hara", "%s", "a%", "", "a\nb", "a\tb", "\U0001f600", "-x", "x" * 256]
)
def test_a_name_that_is_refused_is_refused_on_every_road(app, database, conn, name):
    for call in (
        lambda: app.enqueue("ok", queue=name),
        lambda: app.pause(name),
        lambda: app.resume(name),
        lambda: app.jobs(queue=name),
        lambda: app.worker([name]),
    ):
        with pytest.raises(UsageError, match="queue"):
            call()
    with pytest.raises(psycopg.Error, match="queue"):
        conn.execute("SELECT queuety.enqueue(%s::jsonb)", [json.dumps({"handler": "ok", "queue": name})])

    assert conn.execute("SELECT count(*) FROM queuety.jobs").fetchone() == (0,)


# ── pause ─────────────────────────────────────────────────────────────────────────────────────────


def test_no_road_into_running_leads_through_a_paused_queue(app, database, conn, ledger, tmp_path):
    env = {"QUEUETY_STALE_TIMEOUT": "1", "QUEUETY_WORKER_SLEEP": "0.2"}
    buried = app.enqueue("fail", queue="q", max_attempts=1)
    retried = app.enqueue("fail", queue="q", backoff=[3.0], max_attempts=2)
    with daemon(
        database, "--workers=2", "--queue=q,r", app=APP, ledger=ledger, log=tmp_path / "log", env=env
    ):
        until(lambda: buried.state() == "buried" and retried.job().error)
        assert queuety(database, "pause", "q", "--reason=a migration").returncode == 0
        before = started(ledger)
        due_soon = app.enqueue("ok", queue="q", delay=0.5)
        waiting = app.enqueue("ok", queue="q")
        bulk = app.enqueue_many([("ok", {})])  # another queue: default, which nobody works here
        app.retry(buried.id)
        lost = conn.execute(
            "INSERT INTO queuety.jobs (handler, queue, state, lease, lease_until, worker, attempts) "
            "VALUES ('ok', 'q', 'processing', 1, now() - interval '1 h', 'gone#1', 1) RETURNING id"
        ).fetchone()[0]
        until(lambda: app.find(lost).state == "pending", what="the recovery")
        other = app.enqueue("ok", queue="r").wait(5)
        until(lambda: retried.job().available_at < datetime.now(UTC) - timedelta(seconds=1))
        held = started(ledger)
        since = time.monotonic()
        assert queuety(database, "resume", "q").returncode == 0
        app_waits = [JobHandle(app, one).wait(20) for one in (due_soon.id, waiting.id, lost)]
        took = time.monotonic() - since
        until(lambda: len(started(ledger)) == len(held) + 5)

    assert other.state == "completed"
    assert held == [*before, other.id]
    assert {job.state for job in app_waits[:2]} == {"completed"}
    assert took < 10
    assert retried.job().attempts == 2
    assert bulk[0].state() == "pending"


def test_a_pause_outlives_its_pool_and_one_shot_commands_end_at_once_and_say_so(
    app, database, ledger, tmp_path
):
    app.enqueue_many([("ok", {})] * 3)
    app.pause("default")
    with daemon(database, app=APP, ledger=ledger, log=tmp_path / "log") as pool:
        pool.ready(1)
        pool.kill()

    for command in (["flush"], ["work", "--once"]):
        done = queuety(database, *command, seconds=20)
        assert done.returncode == 0, done.stderr
        assert "queue default is paused: 3 jobs left there" in done.stdout
    with daemon(database, app=APP, ledger=ledger, log=tmp_path / "log") as pool:
        pool.ready(1)
        time.sleep(0.7)

    assert started(ledger) == []
    assert app.worker().flush().total == 0


def test_a_waiting_claim_does_not_take_what_comes_after_the_pause(app, database, ledger, tmp_path):
    with daemon(database, "--workers=4", app=APP, ledger=ledger, log=tmp_path / "log") as pool:
        pool.ready(4)
        for _ in range(5):
            app.pause("default")
            job = app.enqueue("ok")
            time.sleep(0.15)
            assert job.state() == "pending"
            app.resume("default")
            assert job.wait(2).state == "completed"


# ── due times ─────────────────────────────────────────────────────────────────────────────────────


def test_far_due_times_are_stored_exactly_shown_and_never_run(app, database, ledger, tmp_path):
    far = [
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(2100, 1, 1, tzinfo=UTC),
        datetime.now(UTC) + timedelta(days=25),
        datetime.now(UTC) + timedelta(days=50),
    ]
    jobs = [app.enqueue("ok", at=at) for at in far]
    delayed = app.enqueue("ok", delay="50d")
    now = app.enqueue("ok")

    flushed = queuety(database, "flush")
    shown = queuety(database, "jobs", "--json").stdout

    assert [job.job().available_at for job in jobs] == far
    assert now.state() == "completed"
    assert {job.state() for job in [*jobs, delayed]} == {"pending"}
    assert "1 job" in flushed.stdout
    assert "5 due later" in flushed.stdout
    assert "9999-12-31T23:59:59" in shown


@pytest.mark.parametrize(
    "given",
    [
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": 1e12},
        {"delay": "soon"},
        {"delay": True},
        {"delay": [5]},
        {"at": datetime(2030, 1, 1)},
        {"at": "2030-01-01"},
        {"delay": 5, "at": datetime(2030, 1, 1, tzinfo=UTC)},
    ],
    ids=repr,
)
def test_a_due_time_that_cannot_be_meant_is_refused(app, conn, given):
    with pytest.raises(UsageError, match=r"delay|at"):
        app.enqueue("ok", **given)

    assert conn.execute("SELECT count(*) FROM queuety.jobs").fetchone() == (0,)


@pytest.mark.parametrize(
    "given", [{"delay": -5}, {"delay": "5ms"}, {"at": datetime(1, 1, 2, tzinfo=UTC)}], ids=repr
)
def test_a_past_due_time_means_now_and_once(app, given):
    app.job(name="ok")(lambda: None)
    job = app.enqueue("ok", **given)
    time.sleep(0.05)

    ran = app.worker().flush()

    assert (job.state(), ran.total) == ("completed", 1)


# ── wake-ups ──────────────────────────────────────────────────────────────────────────────────────


def test_what_nobody_notifies_is_found_by_polling(app, database, conn, ledger, tmp_path):
    env = {"QUEUETY_WORKER_SLEEP": "0.5"}
    with daemon(database, "--workers=2", app=APP, ledger=ledger, log=tmp_path / "log", env=env) as pool:
        pool.ready(2)
        time.sleep(0.7)  # asleep
        conn.execute("SET session_replication_role = replica")  # no triggers
        plain = conn.execute("INSERT INTO queuety.jobs (handler) VALUES ('ok') RETURNING id").fetchone()[0]
        at_once = JobHandle(app, plain).wait(3)
        delayed = app.enqueue("ok", delay=1.2).wait(6)
        retried = app.enqueue("fail_until", {"attempt": 2}, backoff=[0.7]).wait(6)

    assert {job.state for job in (at_once, delayed, retried)} == {"completed"}
    starts = {one.job: one.at for one in read_ledger(ledger) if one.what == "start"}
    assert plain in starts
    late = (delayed.started_at - delayed.available_at).total_seconds()
    assert 0 <= late < 1.0  # two intervals


def test_a_delayed_job_never_starts_early(app, database, ledger, tmp_path):
    jobs = [app.enqueue("ok", delay=0.2 + 0.05 * number) for number in range(20)]
    with daemon(database, "--workers=2", app=APP, ledger=ledger, log=tmp_path / "log"):
        ended = [job.wait(10) for job in jobs]

    assert all(job.started_at >= job.available_at for job in ended)


# ── clocks ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(FAKETIME is None, reason="faketime is not installed")
@pytest.mark.parametrize("shift", ["+1h", pytest.param("-1h", marks=pytest.mark.soak)])
def test_a_wrong_clock_of_a_host_changes_nothing(app, database, conn, ledger, tmp_path, shift):
    # The library itself, not its wrapper: that would take the signals and leave the pool behind.
    env = {"QUEUETY_STALE_TIMEOUT": "30", "QUEUETY_WORKER_SLEEP": "0.5"}
    env |= {"LD_PRELOAD": str(FAKETIME), "FAKETIME": shift}
    with daemon(database, "--workers=2", app=APP, ledger=ledger, log=tmp_path / "log", env=env) as pool:
        long = app.enqueue("sleep", {"seconds": 3})
        delayed = app.enqueue("ok", delay=2.0)
        retried = app.enqueue("fail_until", {"attempt": 2}, backoff=[1.0])
        ended = [job.wait(15) for job in (long, delayed, retried)]
        pool.stop()
        log = pool.log()

    assert {job.state for job in ended} == {"completed"}
    assert [job.attempts for job in ended] == [1, 1, 2]
    for job in ended:
        assert timedelta(0) <= job.started_at - job.available_at < timedelta(seconds=3)
        assert abs(job.finished_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert "recovered" not in log
    assert_shifted(log, shift)


def assert_shifted(log: str, shift: str) -> None:
    """The pool did live by the wrong clock."""
    told = datetime.strptime(log[:19], "%Y-%m-%d %H:%M:%S")
    away = (told - datetime.now()).total_seconds()
    assert abs(away - {"+1h": 3600, "-1h": -3600}[shift]) < 120
