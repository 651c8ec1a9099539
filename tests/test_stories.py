"""One story for each promise that the design makes. Told end to end, with real pools and a real server."""

from __future__ import annotations

import itertools
import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from queuety import Queuety
from queuety.features import schedules
from queuety.model import NewJob, NewSchedule
from queuety.store.connect import Connection
from tests import checks
from tests.daemon import daemon, read_ledger, until
from tests.servers import own_server

APP = "tests.apps.data:app"
ROUGH = "tests.apps.rough:app"
QUICK = {"QUEUETY_STALE_TIMEOUT": "3", "QUEUETY_WORKER_SLEEP": "0.5"}


def starts(ledger: Path) -> list[int]:
    entries = [one for one in read_ledger(ledger) if one.what == "start"]
    return [one.job for one in sorted(entries, key=lambda one: one.at)]


def counted(conn: Connection, text: str) -> int:
    row = conn.execute(text.encode()).fetchone()
    assert row is not None
    return int(row[0])


def test_a_committed_enqueue_is_never_lost_and_an_uncommitted_one_never_was(database, conn, tmp_path):
    """An order and its job are one transaction; whatever dies afterwards, the mail goes out."""
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    conn.execute("CREATE TABLE effects (key text)")
    places: list[int] = []

    with daemon(database, "--workers=2", app=APP, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        with psycopg.connect(database) as shop:
            shop.execute("INSERT INTO effects VALUES ('given up')")
            app.enqueue("await_row", {"key": "given up"}, connection=shop)
            shop.rollback()
            shop.execute("INSERT INTO effects VALUES ('order')")
            order = app.enqueue("await_row", {"key": "order"}, connection=shop)
            time.sleep(0.3)
            early = starts(ledger)
            shop.commit()
        seen = order.result(10)
        ids = list(app.enqueue_many([("sleep", {"seconds": 0.02})] * 60).ids)
        over = time.monotonic() + 20
        killed = False
        while time.monotonic() < over:
            # One snapshot: a job is in one place at every instant.
            rows = conn.execute("SELECT id FROM queuety.all_jobs WHERE id = ANY (%s)", [ids]).fetchall()
            places.append(len(rows) if len({row[0] for row in rows}) == len(rows) else -1)
            if not killed and len(starts(ledger)) > 10:
                killed = True
                pool.workers()[0].kill()
            if counted(conn, "SELECT count(*) FROM queuety.jobs") == 0:
                break
        pool.stop()

    assert early == []
    assert seen is True
    assert killed
    assert set(places) == {60}
    assert counted(conn, "SELECT count(*) FROM queuety.finished_jobs WHERE state = 'completed'") == 61


def test_a_job_is_started_at_most_max_attempts_times_and_never_beside_itself(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    endings = ["fail", "leave", "kill_self", "segfault", "over_in_c", "over_and_swallow_all"]
    jobs = [app.enqueue(handler, {}, max_attempts=2, backoff=[0]) for handler in endings]

    with daemon(database, "--workers=3", app=ROUGH, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        for job in jobs:
            assert (job.wait(30).state, job.job().attempts) == ("buried", 2)
        assert pool.stop() == 0

    assert checks.starts(ledger) == {job.id: 2 for job in jobs}
    for job in jobs:
        first, second = (entry for entry in read_ledger(ledger) if entry.job == job.id)
        assert first.pid == second.pid or not psutil.pid_exists(first.pid)
    checks.sound(database, ledger, pool)


@pytest.mark.alone
def test_a_killed_worker_costs_its_job_milliseconds_and_a_long_job_that_lives_is_never_touched(
    database, tmp_path
):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    long = app.enqueue("hold_then", {"seconds": 5})
    env = {**QUICK, "QUEUETY_STALE_TIMEOUT": "1"}

    with daemon(database, "--workers=2", app=ROUGH, ledger=ledger, log=tmp_path / "log", env=env) as pool:
        until(lambda: checks.starts(ledger)[long.id])
        killed = app.enqueue("hang_once", {}, backoff=[0])
        until(lambda: checks.starts(ledger)[killed.id])
        os.kill(read_ledger(ledger)[-1].pid, signal.SIGKILL)
        at = time.monotonic()
        assert killed.wait(5).attempts == 2
        again = [entry.at for entry in read_ledger(ledger) if entry.job == killed.id][1]
        assert long.wait(10).attempts == 1
        assert pool.stop() == 0

    assert again - at < 1
    checks.sound(database, ledger, pool)


@pytest.mark.alone
def test_stopping_is_clean(database, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    app.enqueue_many([("sleep", {"seconds": 0.5})] * 20)

    for number, whole_group in itertools.product((signal.SIGTERM, signal.SIGINT), (False, True)):
        begun = len(checks.starts(ledger))
        with daemon(database, "--workers=2", ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
            until(lambda: len(checks.starts(ledger)) >= begun + 2)  # noqa: B023
            family = psutil.Process(pool.pid).children()
            (pool.signal_group if whole_group else pool.signal)(number)
            told = time.monotonic()
            assert pool.wait(5) == 0
        assert checks.remaining(family, 0) == []
        assert [e for e in read_ledger(ledger) if e.what == "start" and e.at > told + 0.2] == []

    assert checks.starts(ledger) == checks.ends(ledger)
    assert checks.states(database) == {
        "completed": len(checks.ends(ledger)),
        "pending": 20 - len(checks.ends(ledger)),
    }
    assert set(checks.attempts(database).values()) == {0, 1}
    checks.sound(database, ledger, pool)


def test_order_is_place_in_the_queue_list_then_priority_then_due_time_then_id(database, tmp_path):
    """The back office has piled up work; what a customer waits for overtakes all of it."""
    ledger = tmp_path / "ledger"
    app = Queuety(database)
    now = datetime.now(UTC)
    piled = [app.enqueue("ok", queue="low").id for _ in range(5)]
    late = app.enqueue("ok", at=now - timedelta(hours=1)).id
    later = app.enqueue("ok", at=now - timedelta(minutes=1)).id
    first, second = (app.enqueue("ok", at=now - timedelta(minutes=30)).id for _ in range(2))
    high = app.enqueue("ok", priority="high").id
    customer = app.enqueue("ok", queue="critical", priority="low").id

    env = {"QUEUETY_TEST_LEDGER": str(ledger)}
    with daemon(
        database, "--queue=critical,default,low", app=APP, log=tmp_path / "log", command="flush", env=env
    ) as pool:
        assert pool.wait(30) == 0

    assert starts(ledger) == [customer, high, late, first, second, later, *piled]


def test_postgresql_may_restart_turn_read_only_and_end_every_session(tmp_path):
    """A night of maintenance: nobody looks after the pool, and in the morning all work is done."""
    ledger = tmp_path / "ledger"
    with own_server() as server:
        app = Queuety(server.url)
        with daemon(
            server.url, "--workers=2", app=APP, ledger=ledger, log=tmp_path / "log", env=QUICK
        ) as pool:
            pool.ready(2)
            jobs = [app.enqueue("sleep", {"seconds": 0.2}, backoff=[0.1]) for _ in range(15)]
            until(lambda: starts(ledger))
            with psycopg.connect(server.url, autocommit=True) as conn:
                conn.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name LIKE 'queuety worker%' OR application_name LIKE 'queuety keeper%'"
                )
                conn.execute("ALTER SYSTEM SET default_transaction_read_only = on")
                conn.execute("SELECT pg_reload_conf()")
                time.sleep(0.5)
            server.kill()
            time.sleep(0.5)
            server.start()
            with psycopg.connect(server.url, autocommit=True) as conn:
                conn.execute("SET default_transaction_read_only = off")
                conn.execute("ALTER SYSTEM RESET default_transaction_read_only")
                conn.execute("SELECT pg_reload_conf()")
            since = time.monotonic()
            ended = [job.wait(since + 30 - time.monotonic()) for job in jobs]
            code = pool.stop()

    ran: dict[int, int] = {}
    for job in starts(ledger):
        ran[job] = ran.get(job, 0) + 1
    assert {job.state for job in ended} == {"completed"}
    assert all(ran[job.id] <= job.attempts for job in ended)
    assert code == 0


@pytest.mark.parametrize(
    ("handler", "payload"),
    [
        ("fail", {}),
        ("exit_with", {"code": 0}),
        ("leave", {"code": 0}),
        ("segfault", {}),
        ("kill_self", {"number": 9}),
        ("close_output", {}),
        ("changed_session", {}),
        ("huge_error", {"size": 20_000_000}),
        ("unkept", {"kind": "itself"}),
        ("leave_child", {}),
    ],
)
def test_nothing_that_a_handler_does_harms_another_job(
    wild: Queuety, handler: str, payload: dict[str, Any]
) -> None:
    """One job goes wild; those beside and behind it do not even notice."""
    beside = [wild.enqueue("sleep", {"seconds": 0.05}) for _ in range(3)]
    wilder = wild.enqueue(handler, payload, max_attempts=1)
    behind = [wild.enqueue("say", {"text": "unharmed"}) for _ in range(5)]

    assert wilder.wait(20).attempts == 1
    assert {(job.wait(20).state, job.job().attempts) for job in [*beside, *behind]} == {("completed", 1)}


@pytest.fixture(scope="module")
def wild(shared: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A pool of two that must outlive every handler."""
    folder = tmp_path_factory.mktemp("wild")
    app = Queuety(shared)
    with daemon(
        shared, "--workers=2", app=APP, ledger=folder / "ledger", log=folder / "log", env=QUICK
    ) as pool:
        pool.ready(2)
        yield app
        assert pool.stop() == 0
    app.close()


def test_one_tick_makes_at_most_one_job(database, conn, tmp_path):
    """A report each second, two pools and two schedulers; one of each is killed, and every second has its report."""
    ledger = tmp_path / "ledger"
    schedules.add(conn, NewSchedule("report", NewJob("ok", "{}"), every_s=1.0))

    def ticks() -> list[datetime]:
        rows = conn.execute("SELECT at FROM queuety.schedule_ticks WHERE kind = 'run' ORDER BY at").fetchall()
        return [row[0] for row in rows]

    with (
        daemon(database, app=APP, ledger=ledger, log=tmp_path / "pool", env=QUICK),
        daemon(database, app=APP, ledger=ledger, log=tmp_path / "pool2", env=QUICK) as pool,
        daemon(database, app="", log=tmp_path / "scheduler", command="scheduler"),
        daemon(database, app="", log=tmp_path / "scheduler2", command="scheduler") as scheduler,
    ):
        until(lambda: len(ticks()) >= 3)
        scheduler.kill()
        pool.kill()
        so_far = len(ticks())
        until(lambda: len(ticks()) >= so_far + 4)
        schedules.pause(conn, "report")
        until(lambda: counted(conn, "SELECT count(*) FROM queuety.jobs") == 0)

    found = ticks()
    assert {after - before for before, after in itertools.pairwise(found)} == {timedelta(seconds=1)}
    assert len(set(starts(ledger))) == len(found)
    assert counted(conn, "SELECT count(*) FROM queuety.finished_jobs") == len(found)
