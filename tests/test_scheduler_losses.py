# mypy: disable-error-code="index,union-attr,operator"
"""One tick, one job: schedulers and pools are killed, suspended and doubled, and the database goes away."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from queuety.features import schedules
from queuety.model import Missed, NewJob, NewSchedule, Overlap
from queuety.store.connect import Connection, connect
from tests.checks import starts
from tests.daemon import Daemon, daemon, until
from tests.servers import own_server

QUICK = {"QUEUETY_WORKER_SLEEP": "0.3", "QUEUETY_STALE_TIMEOUT": "4"}
SECOND = timedelta(seconds=1)


@contextmanager
def scheduler(url: str, log: Path, **env: str) -> Iterator[Daemon]:
    with daemon(url, app="", log=log, command="scheduler", env=env) as running:
        yield running


def every(conn: Connection, seconds: float = 1.0, key: str = "tick", **given: Any) -> None:
    job = given.pop("job", NewJob("ok", "{}"))
    schedules.add(conn, NewSchedule(key, job, every_s=seconds, **given))


def ran(conn: Connection, key: str = "tick") -> list[datetime]:
    """The ticks that have run, by the journal."""
    rows = conn.execute(
        "SELECT at FROM queuety.schedule_ticks WHERE schedule = %s AND kind = 'run' ORDER BY at", [key]
    )
    return [row[0] for row in rows.fetchall()]


def jobs(conn: Connection) -> set[int]:
    return {row[0] for row in conn.execute("SELECT id FROM queuety.all_jobs").fetchall()}


def one_job_a_tick(conn: Connection, ledger: Path | None = None, key: str = "tick") -> int:
    """Check that each tick since the first has made one job, which was started once; returns how many there are."""
    conn.execute("UPDATE queuety.schedules SET paused_at = now()")
    ticks = ran(conn, key)
    noted = conn.execute("SELECT job_id FROM queuety.schedule_ticks WHERE kind = 'run'").fetchall()
    assert Counter(b - a for a, b in pairwise(ticks)).keys() <= {SECOND}
    assert sorted(row[0] for row in noted) == sorted(jobs(conn))
    assert conn.execute("SELECT FROM queuety.schedule_ticks WHERE kind <> 'run'").fetchall() == []
    if ledger is not None:
        until(lambda: starts(ledger) == dict.fromkeys(jobs(conn), 1), 30, "each job started once")
    return len(ticks)


def errors(*logs: Path) -> list[str]:
    return [
        line
        for log in logs
        for line in log.read_text().splitlines()
        if " ERROR " in line or "Traceback" in line
    ]


# ── kills ─────────────────────────────────────────────────────────────────────────────────────────


def until_near(conn: Connection, dice: random.Random) -> None:
    """Sleep until a moment within 50 ms of the next tick."""
    row = conn.execute(
        "SELECT extract(EPOCH FROM next_at - clock_timestamp())::float8 FROM queuety.schedules"
    ).fetchone()
    assert row is not None
    time.sleep(max(0.0, row[0] % 1.0 + dice.uniform(-0.05, 0.05)))


@pytest.mark.parametrize(
    "kills", [10, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(1500)])]
)
def test_a_scheduler_killed_around_ticks_loses_and_doubles_none(database, conn, tmp_path, kills):
    dice = random.Random(kills)
    ledger, log = tmp_path / "ledger", tmp_path / "log"
    every(conn)
    for _ in range(kills):
        with scheduler(database, log) as running:
            seen = len(ran(conn))
            until(lambda seen=seen: len(ran(conn)) > seen, 20)  # type: ignore[misc]
            until_near(conn, dice)
            os.kill(running.pid, signal.SIGKILL)
            running.wait()
    with scheduler(database, log):
        last = ran(conn)[-1]
        until(lambda: ran(conn)[-1] - last >= 2 * SECOND)
    with daemon(database, ledger=ledger, log=log, env=QUICK) as pool:
        pool.ready()
        assert one_job_a_tick(conn, ledger) >= kills


@pytest.mark.parametrize("seconds", [10, pytest.param(60, marks=pytest.mark.soak)])
def test_many_schedulers_and_pools_make_one_job_a_tick_and_no_fuss(database, conn, tmp_path, seconds):
    ledger = tmp_path / "ledger"
    every(conn)
    logs = [tmp_path / f"log{number}" for number in range(6)]
    with ExitStack() as stack:
        for log in logs[:4]:
            stack.enter_context(scheduler(database, log))
        for log in logs[4:]:
            stack.enter_context(daemon(database, ledger=ledger, log=log, env=QUICK))
        until(lambda: len(ran(conn)) >= seconds, seconds + 60)
        count = one_job_a_tick(conn, ledger)
        span = ran(conn)[-1] - ran(conn)[0]

    assert abs(count - span.total_seconds() - 1) < 1
    assert errors(*logs) == []


def test_pools_fire_while_there_is_no_scheduler(database, conn, tmp_path):
    ledger = tmp_path / "ledger"
    every(conn)
    with ExitStack() as stack:
        for number in range(2):
            stack.enter_context(daemon(database, ledger=ledger, log=tmp_path / f"log{number}", env=QUICK))
        until(lambda: len(ran(conn)) >= 4)

        one_job_a_tick(conn, ledger)


def test_pools_go_on_within_seconds_after_a_scheduler_was_killed(database, conn, tmp_path):
    ledger = tmp_path / "ledger"
    every(conn)
    with daemon(database, ledger=ledger, log=tmp_path / "pool", env=QUICK) as pool:
        pool.ready()
        with scheduler(database, tmp_path / "log") as running:
            until(lambda: "1 schedule" in running.log())
            seen = len(ran(conn))
            until(lambda: len(ran(conn)) > seen)
            os.kill(running.pid, signal.SIGKILL)
            running.wait()
        dead = len(ran(conn))
        until(lambda: len(ran(conn)) > dead + 2, 10)

        one_job_a_tick(conn, ledger)


@pytest.mark.parametrize("seconds", [4, pytest.param(15, marks=pytest.mark.soak)])
def test_a_suspended_scheduler_goes_on_as_one_that_was_restarted(database, conn, tmp_path, seconds):
    every(conn)
    with scheduler(database, tmp_path / "log") as running:
        until(lambda: ran(conn))
        running.signal(signal.SIGSTOP)
        time.sleep(seconds)
        stopped = ran(conn)
        running.signal(signal.SIGCONT)
        until(lambda: len(ran(conn)) > len(stopped) + 2)
    missed = conn.execute("SELECT reason, ticks FROM queuety.schedule_ticks WHERE kind = 'skip'").fetchall()
    ticks = ran(conn)

    # What is missed for less than ten seconds is made up for; of the rest the next tick runs in its place.
    assert len(missed) == (1 if seconds > 10 else 0)
    assert all("missed; the next tick runs in its place" in reason for reason, _ in missed)
    gap = sum(count for _, count in missed)
    assert (ticks[-1] - ticks[0]).total_seconds() == len(ticks) - 1 + gap


def test_a_database_that_restarts_costs_no_tick(tmp_path):
    with own_server() as server, connect(server.url) as conn:
        every(conn)
        with scheduler(server.url, tmp_path / "log") as running:
            until(lambda: ran(conn))
            server.kill()
            time.sleep(2)
            server.start()
            since = time.monotonic()
            with connect(server.url) as again:
                seen = len(ran(again))
                until(lambda: len(ran(again)) > seen + 2, 30)
                took = time.monotonic() - since
                assert one_job_a_tick(again) >= 4
            assert running.stop(2.5) == 0

    assert took < 30
    assert running.log().count("lost the database") == 1
    assert running.log().count("the database is back") == 1


# ── missed, held back, exact ──────────────────────────────────────────────────────────────────────


def test_after_hours_of_downtime_one_tick_is_made_up_for(database, conn, tmp_path):
    schedules.add(conn, NewSchedule("tick", NewJob("ok", "{}"), cron="*/5 * * * *"))
    conn.execute("UPDATE queuety.schedules SET next_at = next_at - interval '6 hours'")
    with scheduler(database, tmp_path / "log"):
        until(lambda: ran(conn))
        time.sleep(1.5)
        found = schedules.find(conn, "tick")

    assert len(jobs(conn)) == 1
    assert found.next_at > found.last_at
    skipped = [tick.ticks for tick in schedules.history(conn, "tick", kind="skip")]
    assert len(skipped) == 1
    assert 70 <= skipped[0] <= 72


def test_a_clock_that_jumped_ahead_and_was_set_back_neither_stops_nor_repeats_a_schedule(
    database, conn, tmp_path
):
    every(conn)
    with scheduler(database, tmp_path / "log"):
        until(lambda: len(ran(conn)) >= 2)
        conn.execute(
            "UPDATE queuety.schedules SET next_at = next_at - interval '3 s'"
        )  # as if the clock had jumped
        seen = len(ran(conn))
        until(lambda: len(ran(conn)) >= seen + 3)

        one_job_a_tick(conn)


OVERLAPS: dict[str, dict[str, Any]] = {
    "skip": {"overlap": Overlap.SKIP},
    "buffer": {"overlap": Overlap.BUFFER},
    "unique": {"job": NewJob("sleep", '{"seconds": 3.5}', unique_key="one", unique_until="start")},
}


@pytest.mark.parametrize(
    "seconds", [8, pytest.param(120, marks=[pytest.mark.soak, pytest.mark.timeout(300)])]
)
@pytest.mark.parametrize("kind", OVERLAPS)
def test_a_schedule_that_is_faster_than_its_job_piles_up_nothing(database, conn, tmp_path, kind, seconds):
    job = NewJob("sleep", '{"seconds": 3.5}')
    every(conn, **{"job": job, **OVERLAPS[kind]})
    most: Counter[str] = Counter()
    until_then = time.monotonic() + seconds
    with (
        scheduler(database, tmp_path / "log") as running,
        daemon(database, "--workers=2", ledger=tmp_path / "ledger", log=tmp_path / "pool", env=QUICK),
    ):
        while time.monotonic() < until_then:
            rows = conn.execute("SELECT state::text, count(*) FROM queuety.jobs GROUP BY 1").fetchall()
            for state, count in rows:
                most[state] = max(most[state], count)
            time.sleep(0.1)
        alive = running.process.poll() is None

    assert alive
    assert most["pending"] <= 1
    assert most["processing"] <= (2 if kind == "unique" else 1)
    assert schedules.history(conn, "tick", kind="skip")


@pytest.mark.parametrize("ticks", [5, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.timeout(300)])])
def test_an_interval_does_not_drift_by_what_its_job_takes(database, conn, tmp_path, ticks):
    every(conn, 2.0, job=NewJob("sleep", '{"seconds": 0.7}'))
    with (
        scheduler(database, tmp_path / "log"),
        daemon(database, ledger=tmp_path / "ledger", log=tmp_path / "pool", env=QUICK),
    ):
        until(lambda: len(ran(conn)) >= ticks, 2 * ticks + 30)
    found = ran(conn)
    anchor = schedules.find(conn, "tick").anchor

    assert [at - anchor for at in found] == [2 * SECOND * n for n in range(1, len(found) + 1)]


def test_many_schedules_fire_in_their_minute(database, conn, tmp_path):
    """200 at one instant, and 100 at instants of their own."""
    with conn.transaction():
        for number in range(300):
            every(conn, 3600.0, key=f"s{number}")
    conn.execute(
        b"""
        UPDATE queuety.schedules AS s
        SET next_at = due.at, anchor = due.at
        FROM (
            SELECT
                o.key,
                date_trunc('second', now()) + (CASE WHEN o.n <= 200 THEN 3 ELSE o.n % 10 END) * interval '1 s' AS at
            FROM (SELECT key, row_number() OVER (ORDER BY key) AS n FROM queuety.schedules) AS o
        ) AS due
        WHERE s.key = due.key
        """
    )
    with scheduler(database, tmp_path / "log"):
        until(lambda: len(jobs(conn)) >= 300, 40)
    late = conn.execute(
        "SELECT max(t.noted_at - t.at), count(DISTINCT t.schedule), count(*) FROM queuety.schedule_ticks AS t"
    ).fetchone()

    assert late[1:] == (300, 300)
    assert late[0] < timedelta(minutes=1)


# ── zones and broken rows ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("zone", ["America/Lima", "Asia/Seoul"])
def test_the_zones_of_process_and_session_do_not_matter(database, conn, tmp_path, zone):
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    conn.execute(f"ALTER DATABASE {name} SET timezone TO 'Pacific/Chatham'".encode())
    every(conn)
    schedules.add(conn, NewSchedule("cron", NewJob("ok", "{}"), cron="* * * * * *"))
    with scheduler(database, tmp_path / "log", TZ=zone) as running:
        until(lambda: len(ran(conn)) >= 3 and len(ran(conn, "cron")) >= 3)
        used = psutil.Process(running.pid).cpu_times()
        rows = conn.execute("SELECT at, noted_at FROM queuety.schedule_ticks").fetchall()

    assert all(timedelta() <= noted - at < 2 * SECOND for at, noted in rows)
    assert all(at.microsecond == 0 for at in ran(conn, "cron"))
    assert used.user + used.system < 10  # it neither loops nor spins


def test_a_broken_row_is_told_once_and_stops_no_other(database, conn, tmp_path):
    for key in ("a", "b", "c"):
        every(conn, key=key)
    for key in ("zone", "cron"):
        schedules.add(conn, NewSchedule(key, NewJob("ok", "{}"), cron="* * * * * *"))
    conn.execute("UPDATE queuety.schedules SET timezone = 'UTC+3' WHERE key = 'zone'")
    conn.execute("UPDATE queuety.schedules SET cron = 'x' WHERE key = 'cron'")
    with scheduler(database, tmp_path / "log") as running:
        until(lambda: all(len(ran(conn, key)) >= 4 for key in "abc"))
        code = running.stop(2.5)

    assert code == 0
    assert {one.key: one.state for one in schedules.listing(conn) if one.broken} == dict.fromkeys(
        ("cron", "zone"), "broken"
    )
    assert [running.log().count(f"schedule {key} fails at") for key in ("zone", "cron")] == [1, 1]


def test_missed_ticks_may_all_be_made_up_for(database, conn, tmp_path):
    every(conn, missed=Missed.ALL, missed_limit=30)
    conn.execute(
        "UPDATE queuety.schedules SET anchor = anchor - interval '40 s', next_at = next_at - interval '40 s'"
    )
    with scheduler(database, tmp_path / "log"):
        until(lambda: len(ran(conn)) >= 38)
    ticks = ran(conn)

    assert len(ticks) == len(jobs(conn))
    assert Counter(b - a for a, b in pairwise(ticks)).keys() == {SECOND}
