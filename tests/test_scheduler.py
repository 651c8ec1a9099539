# mypy: disable-error-code="index,union-attr"
"""`queuety scheduler` as a process, the schedules that pools and schedulers write at their start, and callbacks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTTIN, SIGTTOU, SIGUSR1
from threading import Event
from typing import Any

import psutil
import pytest

from queuety import Queuety, ScheduleEvent, UsageError, embedded
from queuety.features import schedules
from queuety.listeners import Listeners
from queuety.model import NewJob, NewSchedule, Overlap, Tick
from queuety.process import callbacks, declared
from queuety.process.callbacks import Callbacks
from queuety.store.connect import Connection
from tests import ROOT
from tests.daemon import Daemon, daemon, until
from tests.servers import network
from tests.shops import Shop

QUICK = {"QUEUETY_WORKER_SLEEP": "0.3", "QUEUETY_STALE_TIMEOUT": "4"}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop")


@contextmanager
def scheduler(
    url: str, log: Path, *arguments: str, shop: Shop | None = None, env: dict[str, str] | None = None
) -> Iterator[Daemon]:
    """`queuety scheduler`, with the application of `shop` or with none."""
    more = {**(shop.env if shop else {}), **(env or {})}
    app = shop.target if shop else ""
    with daemon(url, *arguments, app=app, log=log, command="scheduler", env=more) as running:
        yield running


def ready(running: Daemon) -> None:
    until(
        lambda: "schedules" in running.log() or "1 schedule" in running.log(),
        what=f"a start\n{running.log()}",
    )


def every_second(conn: Connection, key: str = "tick", handler: str = "tick", **given: Any) -> None:
    payload = given.pop("payload", "{}")
    schedules.add(conn, NewSchedule(key, NewJob(handler, payload), every_s=1.0, **given))


def count(conn: Connection) -> int:
    return int(conn.execute("SELECT count(*) FROM queuety.all_jobs").fetchone()[0])


def states(conn: Connection) -> dict[str, str]:
    return {one.key: one.state for one in schedules.listing(conn)}


# ── the process ───────────────────────────────────────────────────────────────────────────────────


def test_a_scheduler_fires_what_is_in_the_table_without_an_application(database, conn, tmp_path):
    every_second(conn)

    with scheduler(database, tmp_path / "log") as running:
        until(lambda: count(conn) >= 2)
        shown = conn.execute("SELECT kind, pid FROM queuety.workers").fetchall()
        code = running.stop(2.5)

    assert shown == [("scheduler", running.pid)]
    assert code == 0
    assert conn.execute("SELECT FROM queuety.workers").fetchall() == []
    assert "1 schedule, the next tick at 20" in running.log()
    assert [word for word in ("WARNING", "ERROR") if word in running.log()] == []


def test_it_is_one_process(database, conn, tmp_path):
    with scheduler(database, tmp_path / "log") as running:
        ready(running)

        assert psutil.Process(running.pid).children() == []


def test_a_schedule_that_is_made_while_it_runs_is_fired_at_once(database, conn, tmp_path):
    with scheduler(database, tmp_path / "log") as running:
        ready(running)
        every_second(conn)

        until(lambda: count(conn) >= 1, 5)


@pytest.mark.parametrize("number", [SIGTERM, SIGINT, SIGQUIT])
def test_a_signal_ends_it_within_two_seconds_also_when_the_database_is_silent(
    database, conn, tmp_path, number
):
    every_second(conn)
    with network(database) as net, scheduler(net.url, tmp_path / "log") as running:
        until(lambda: count(conn) >= 1)
        net.fall_silent()
        time.sleep(1.5)  # it waits for an answer by now
        running.signal(number)

        assert running.wait(2.5) == 0


def test_a_second_interrupt_ends_it_at_once(database, conn, tmp_path):
    every_second(conn)
    with network(database) as net, scheduler(net.url, tmp_path / "log") as running:
        until(lambda: count(conn) >= 1)
        net.fall_silent()
        time.sleep(1.5)
        running.signal(SIGINT)
        until(lambda: "stopping" in running.log())
        running.signal(SIGINT)

        assert running.wait(2.5) == 130


@pytest.mark.parametrize("number", [SIGHUP, SIGTTIN, SIGTTOU, SIGUSR1])
def test_signals_that_are_meant_for_pools_harm_no_scheduler(database, conn, tmp_path, number):
    every_second(conn)
    with scheduler(database, tmp_path / "log") as running:
        until(lambda: count(conn) >= 1)
        running.signal(number)
        so_far = count(conn)

        until(lambda: count(conn) >= so_far + 2)
        assert running.stop(2.5) == 0


def test_it_ends_after_its_time(database, tmp_path):
    with scheduler(database, tmp_path / "log", "--max-time=1s") as running:
        assert running.wait(10) == 0


def test_it_ends_though_the_application_has_left_a_thread_running(database, shop, tmp_path):
    shop.write("import threading\nthreading.Thread(target=time.sleep, args=(600,)).start()\n")
    with scheduler(database, tmp_path / "log", shop=shop) as running:
        ready(running)

        assert running.stop(2.5) == 0


def run(url: str, *arguments: str, shop: Shop | None = None, **env: str) -> tuple[int, str]:
    environment = {
        **os.environ,
        "QUEUETY_DATABASE_URL": url,
        "PYTHONPATH": str(ROOT),
        **(shop.env if shop else {}),
        **env,
    }
    done = subprocess.run(
        [sys.executable, "-m", "queuety.cli.main", "scheduler", "--max-time=1s", *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.returncode, done.stderr


def test_a_database_that_is_away_at_the_start_is_told():
    code, said = run("postgresql://nobody@127.0.0.1:1/nothing")

    assert code == 3
    assert "cannot be reached" in said


def test_a_database_without_the_schema_is_told(empty):
    code, said = run(empty)

    assert code == 4
    assert "db migrate" in said


def test_an_application_that_cannot_be_imported_is_told(database, shop):
    shop.write("raise RuntimeError('broken')")

    code, said = run(database, QUEUETY_APP=shop.target, shop=shop)

    assert code == 70
    assert "broken" in said


@pytest.mark.parametrize("zone", ["Europe/Budapesst", "asia/seoul", "KST", ""])
@pytest.mark.parametrize("with_application", [True, False])
def test_a_default_zone_that_is_none_is_refused(database, shop, zone, with_application):
    shop.write()
    app = {"QUEUETY_APP": shop.target} if with_application else {}

    code, said = run(database, shop=shop, QUEUETY_TIMEZONE=zone, **app)

    assert code == 2
    assert zone in said


def test_cron_schedules_without_a_zone_are_told_once(database, shop):
    shop.write('app.schedule("tick", cron="@hourly")')

    code, said = run(database, shop=shop, QUEUETY_APP=shop.target)

    assert code == 0
    assert said.count("is read in UTC") == 1


def test_without_a_database_of_its_own_it_holds_the_embedded_one_until_its_end():
    folder = Path(
        tempfile.mkdtemp(prefix="queuety-scheduler-")
    )  # not pytest's: the server may run as another user
    try:
        code, said = run("", DATABASE_URL="", QUEUETY_DATA_DIR=str(folder))
        running = embedded.status(folder).running
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    assert code == 0, said
    assert "0 schedules" in said
    assert not running


# ── what is declared ──────────────────────────────────────────────────────────────────────────────

TWO = 'app.schedule("tick", every="1h", name="a")\napp.schedule("tick", every="2h", name="b")\n'
OTHER = 'app.schedule("tick", every="1h", name="a", priority=1)\napp.schedule("tick", every="3h", name="c")\n'


def test_a_pool_writes_what_its_application_declares_once(database, conn, shop, tmp_path):
    shop.write(TWO)
    with daemon(database, "--workers=3", app=shop.target, log=tmp_path / "log", env=shop.env) as pool:
        pool.ready(3)

        assert states(conn) == {"a": "active", "b": "active"}
        assert pool.log().count("schedules of shop:app added: a, b") == 1


def test_a_recycled_worker_writes_nothing(database, conn, shop, tmp_path):
    shop.write(TWO)
    env = {**shop.env, "QUEUETY_WORKER_MIN_AGE": "0"}
    with daemon(
        database, "--workers=2", "--max-jobs=1", app=shop.target, log=tmp_path / "log", env=env
    ) as pool:
        first = {one.pid for one in pool.ready(2)}
        schedules.remove(conn, "a")  # as a pool with other code would
        app = Queuety(database)
        for _ in range(6):
            app.enqueue("tick").wait(20)
        until(lambda: len(first & {one.pid for one in pool.able()}) < 2)
        pool.ready(2)

        assert states(conn) == {"b": "active"}


def test_new_code_after_a_hang_up_is_written(database, conn, shop, tmp_path):
    shop.write(TWO)
    with daemon(database, app=shop.target, log=tmp_path / "log", env=shop.env) as pool:
        first = pool.ready()[0]
        shop.write(OTHER)
        pool.signal(SIGHUP)
        until(lambda: pool.able() and first.pid not in {one.pid for one in pool.able()})
        found = states(conn)
        said = pool.log()

    assert found == {"a": "active", "b": "retired", "c": "active"}
    assert [f"schedules of shop:app {text}" in said for text in ("added: c", "changed: a", "retired: b")] == [
        True
    ] * 3


def test_a_version_whose_schedules_are_refused_does_not_take_over(database, conn, shop, tmp_path):
    shop.write(TWO)
    with daemon(database, app=shop.target, log=tmp_path / "log", env=shop.env) as pool:
        first = pool.ready()[0]
        shop.write('app.schedule("tock", every="1h")')
        pool.signal(SIGHUP)
        until(lambda: "the old ones go on" in pool.log())

        assert "no handler 'tock'" in pool.log()
        assert first.is_running()
        assert states(conn) == {"a": "active", "b": "active"}


def test_a_worker_that_cannot_write_its_schedules_ends_the_pool_with_their_reason(
    database, conn, shop, tmp_path
):
    shop.write(
        "import sys\n"
        "looks = HERE / 'looks'\n"
        "with looks.open('a') as file:\n    file.write('.')\n"
        "if looks.stat().st_size > 1:\n    app.schedule('tock', every='1h')\n"
    )
    with daemon(database, app=shop.target, log=tmp_path / "log", env=shop.env) as pool:
        assert pool.wait() == 2

    assert "a worker cannot start: schedule 'tock': the application has no handler 'tock'" in pool.log()


def test_declarations_that_are_gone_are_retired_at_the_next_start(database, conn, shop, tmp_path):
    shop.write(TWO)
    run(database, QUEUETY_APP=shop.target, shop=shop)
    shop.write()
    with daemon(database, app=shop.target, log=tmp_path / "log", env=shop.env) as pool:
        pool.ready()

    assert states(conn) == {"a": "retired", "b": "retired"}


def test_a_scheduler_writes_what_its_application_declares(database, conn, shop):
    shop.write(TWO)

    code, said = run(database, QUEUETY_APP=shop.target, shop=shop)

    assert code == 0
    assert states(conn) == {"a": "active", "b": "active"}
    assert "schedules of shop:app added: a, b" in said


def test_a_flush_writes_no_schedules(database, conn, shop, tmp_path):
    shop.write(TWO)
    with daemon(database, app=shop.target, log=tmp_path / "log", env=shop.env, command="flush") as pool:
        assert pool.wait() == 0

    assert states(conn) == {}


def test_what_another_application_declared_is_told_when_it_is_taken(database, conn, shop):
    schedules.add(conn, NewSchedule("a", NewJob("tick", "{}"), every_s=60.0), declared_by="mill:app")
    shop.write(TWO)

    _, said = run(database, QUEUETY_APP=shop.target, shop=shop)

    assert "schedules that another application declared are shop:app's now: a" in said


def test_the_digest_is_of_what_is_declared_and_not_of_its_order():
    a, b = (NewSchedule(key, NewJob("tick", "{}"), every_s=60.0) for key in "ab")

    assert declared.digest([a, b]) == declared.digest([b, a])
    assert len({declared.digest(one) for one in ([], [a], [b], [a, b])}) == 4


@pytest.mark.parametrize(
    "other",
    [
        {"job": NewJob("tick", '{"seconds": 1}')},
        {"job": NewJob("tock", "{}")},
        {"job": NewJob("tick", "{}", priority=1)},
        {"every_s": 61.0},
        {"every_s": None, "cron": "* * * * *"},
        {"timezone": "Asia/Seoul"},
        {"starts_at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"ends_at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"jitter_s": 1.0},
        {"overlap": Overlap.SKIP},
        {"missed_limit": 7},
    ],
)
def test_any_change_of_a_declaration_changes_the_digest(other):
    plain = {"job": NewJob("tick", "{}"), "every_s": 60.0}

    changed = NewSchedule("a", **{**plain, **other})

    assert declared.digest([changed]) != declared.digest([NewSchedule("a", **plain)])  # type: ignore[arg-type]


# ── callbacks ─────────────────────────────────────────────────────────────────────────────────────


def test_callbacks_are_told_what_becomes_of_ticks(database, conn, shop, tmp_path):
    shop.write(
        'app.schedule("tick", every="1s")\napp.schedule("fail", every="1s")\n'
        'app.schedule("tick", every="1s", name="long", payload={"seconds": 30}, overlap="skip")\n'
        "app.on_schedule(told)\n"
    )
    env = {**shop.env, **QUICK}
    with (
        scheduler(database, tmp_path / "log", shop=shop),
        daemon(database, "--workers=3", app=shop.target, log=tmp_path / "pool", env=env),
    ):
        until(lambda: {"run", "skip", "done", "fail"} <= {one["kind"] for one in shop.events()}, 30)
    events = shop.events()

    skip = next(one for one in events if one["kind"] == "skip")
    failed = next(one for one in events if one["kind"] == "fail")
    assert skip["schedule"] == "long"
    assert "has not ended" in skip["reason"]
    assert (failed["phase"], failed["error"], failed["reason"]) == (
        "run",
        "ValueError",
        "as it must (attempt 1 of 1)",
    )
    assert {one["schedule"] for one in events if one["kind"] == "done"} == {"tick"}
    ran = [(one["schedule"], one["at"]) for one in events if one["kind"] == "run"]
    assert len(ran) == len(set(ran))


def test_each_end_is_told_once_though_pools_look_too(database, conn, shop, tmp_path):
    shop.write('app.schedule("tick", every="1s")\napp.on_schedule("done")(told)\n')
    env = {**shop.env, **QUICK}
    with (
        scheduler(database, tmp_path / "log", shop=shop) as running,
        daemon(database, app=shop.target, log=tmp_path / "pool", env=env),
    ):
        until(lambda: len(shop.events()) >= 12, 30)
        running.stop()
    told = [one["job"] for one in shop.events()]

    noted = conn.execute(
        "SELECT job_id FROM queuety.schedule_ticks WHERE ended = 'done' ORDER BY job_id"
    ).fetchall()
    assert sorted(told) == [row[0] for row in noted]


def test_a_callback_that_raises_or_hangs_stops_no_tick(database, conn, shop, tmp_path):
    shop.write(
        'app.schedule("tick", every="1s")\n'
        '@app.on_schedule("run")\ndef raises(event):\n    raise SystemExit(3)\n'
        '@app.on_schedule("run")\ndef hangs(event):\n    told(event)\n    time.sleep(600)\n'
    )
    with scheduler(database, tmp_path / "log", shop=shop) as running:
        until(lambda: shop.events())
        until(lambda: count(conn) >= 4)

        assert running.stop(2.5) == 0
        assert "a callback of the event 'run' of schedule tick failed" in running.log()


def event(kind: str = "run") -> Tick:
    return Tick("tidy", datetime(2030, 1, 1, tzinfo=UTC), kind, job_id=7)


def listeners(*callbacks: Any) -> Listeners:
    found = Listeners()
    for one in callbacks:
        found.add(("run",), one)
    return found


def minded(own: Callbacks, condition: Callable[[], bool]) -> None:
    """Wait for a condition as the clock does, with a look at the calls now and then."""

    def look() -> bool:
        own.mind()
        return condition()

    until(look, 5)


def test_a_call_that_hangs_is_left_behind_and_the_next_ones_are_made():
    stuck = Event()
    told: list[ScheduleEvent] = []

    def hangs(_: ScheduleEvent) -> None:
        stuck.wait(60)

    own = Callbacks(listeners(hangs, told.append), longest_s=0.05)
    own.tell(event())

    minded(own, lambda: bool(told))
    stuck.set()
    assert [one.kind for one in told] == ["run"]


def test_calls_that_hang_are_bounded(monkeypatch):
    monkeypatch.setattr(callbacks, "MOST_HUNG", 2)
    monkeypatch.setattr(callbacks, "MOST_WAITING", 5)
    stuck = Event()
    begun: list[ScheduleEvent] = []

    def hangs(one: ScheduleEvent) -> None:
        begun.append(one)
        stuck.wait(60)

    own = Callbacks(listeners(hangs), longest_s=0.02)
    for _ in range(50):
        own.tell(event())
        own.mind()
        time.sleep(0.01)
    hung = len(begun)
    stuck.set()
    minded(own, lambda: len(begun) > hung)

    assert hung == 2


def test_an_async_callback_is_run_to_its_end():
    told: list[str] = []

    async def later(one: ScheduleEvent) -> None:
        told.append(one.kind)

    own = Callbacks(listeners(later))
    own.tell(event())
    own.close(5)

    assert told == ["run"]


def test_ends_of_deleted_jobs_are_not_told():
    gone = Tick("tidy", datetime(2030, 1, 1, tzinfo=UTC), "run", job_id=7, ended="gone")

    assert callbacks.event_of(gone) is None


@pytest.mark.parametrize(
    ("reason", "phase", "text"),
    [("schedule: no zone", "schedule", "no zone"), ("enqueue: no room: none", "enqueue", "no room: none")],
)
def test_a_tick_that_fails_says_in_which_phase(reason, phase, text):
    failed = callbacks.event_of(Tick("tidy", datetime(2030, 1, 1, tzinfo=UTC), "fail", reason))

    assert (failed.phase, failed.reason) == (phase, text)


def test_callbacks_are_registered_for_some_events_or_for_all():
    app = Queuety("postgresql://nowhere")

    @app.on_schedule("done", "fail")
    def ends(event: ScheduleEvent) -> None: ...

    @app.on_schedule
    def everything(event: ScheduleEvent) -> None: ...

    @app.on_schedule()
    def all_of_it(event: ScheduleEvent) -> None: ...

    found = {
        kind: [one.__name__ for one in app.listeners.of(kind)] for kind in ("run", "skip", "done", "fail")
    }
    both = ["everything", "all_of_it"]
    assert found == {"run": both, "skip": both, "done": ["ends", *both], "fail": ["ends", *both]}


@pytest.mark.parametrize(
    ("kinds", "hint"),
    [(("fial",), "did you mean 'fail'?"), (("run", "x"), "there are run, skip, done, fail")],
)
def test_an_unknown_event_is_refused(kinds, hint):
    with pytest.raises(UsageError) as error:
        Queuety("postgresql://nowhere").on_schedule(*kinds)

    assert repr(kinds[-1]) in error.value.message
    assert error.value.hint == hint


def test_what_cannot_be_called_is_refused():
    with pytest.raises(UsageError, match="7 is not callable"):
        Queuety("postgresql://nowhere").on_schedule(7)  # type: ignore[call-overload]
