"""Large numbers, large bulks, few rights, few connections, and everybody at work on the same rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from queuety import Queuety
from queuety.errors import PayloadError, QueuetyError
from queuety.store.connect import Connection, connect
from tests import ROOT
from tests.daemon import daemon, read_ledger, until
from tests.servers import own_server

APP = "tests.apps.data:app"
QUICK = {"QUEUETY_STALE_TIMEOUT": "2", "QUEUETY_WORKER_SLEEP": "0.3"}


@pytest.fixture
def app(database: str) -> Iterator[Queuety]:
    queue = Queuety(database)
    yield queue
    queue.close()


def queuety(url: str, *arguments: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "queuety.cli.main", "--app", APP, "--database-url", url, *arguments],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("QUEUETY_")},
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def count(conn: Connection, table: str = "jobs") -> int:
    row = conn.execute(sql.SQL("SELECT count(*) FROM queuety.{}").format(sql.Identifier(table))).fetchone()
    assert row is not None
    return int(row[0])


# ── large numbers ─────────────────────────────────────────────────────────────────────────────────


def test_everything_works_with_ids_beyond_32_bits(app, database, conn, tmp_path):
    ledger = tmp_path / "ledger"
    sequences = [
        row[0]
        for row in conn.execute(
            "SELECT c.relname FROM pg_class AS c WHERE c.relnamespace = 'queuety'::regnamespace AND c.relkind = 'S'"
        )
    ]
    for name in sequences:
        conn.execute(
            sql.SQL("ALTER SEQUENCE queuety.{} RESTART WITH 2147483658").format(sql.Identifier(name))
        )

    with daemon(database, "--workers=2", app=APP, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        done = app.enqueue("echo", {"value": 1}).wait(10)
        failed = app.enqueue("fail", max_attempts=2, backoff=[0.1]).wait(10)
        app.retry(failed.id)
        killed = app.enqueue("kill_self", max_attempts=1).wait(10)
        running = app.enqueue("sleep", {"seconds": 60})
        until(lambda: running.state() == "processing")
        running.cancel()
        cancelled = running.wait(10)
        told = app.enqueue("partials", {"count": 3})
        told.wait(10)
        bulk = app.enqueue_many([("ok", {})] * 100)
        until(lambda: count(conn) == 0)
        lost = conn.execute(
            "INSERT INTO queuety.jobs (handler, state, lease, lease_until, worker, attempts) "
            "VALUES ('ok', 'processing', 2147483700, now() - interval '1 h', 'gone#2147483999', 1) RETURNING id"
        ).fetchone()[0]
        until(lambda: app.find(lost).state == "completed")
        busy = app.enqueue("sleep", {"seconds": 1})
        until(lambda: busy.state() == "processing")
        shown = json.loads(queuety(database, "workers", "--json").stdout)
        code = pool.stop()

    assert len(sequences) >= 3
    assert done.id > 2**31
    assert (done.state, failed.state, killed.state, cancelled.state) == (
        "completed", "buried", "buried", "cancelled",
    )  # fmt: skip
    assert len([event for event in told.events() if event.type == "partial"]) == 2  # the first and the last
    assert min(bulk.ids) > 2**31
    assert busy.state() == "completed"
    assert {worker["id"] > 2**31 for worker in shown} == {True}
    assert code == 0
    assert "Traceback" not in pool.log()


# ── large bulks ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [0, 1, 6000, 100_000])
def test_a_bulk_of_any_size_is_written_in_order(app, conn, size):
    jobs = app.enqueue_many(("echo", {"value": number}) for number in range(size))

    rows = conn.execute("SELECT id, payload ->> 'value' FROM queuety.jobs ORDER BY id").fetchall()

    assert [row[0] for row in rows] == list(jobs.ids)
    assert [row[1] for row in rows] == [str(number) for number in range(size)]


def test_a_bulk_with_one_bad_job_near_its_end_writes_none(app, conn):
    def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
        for number in range(100_000):
            yield "echo", {"value": float("nan") if number == 99_999 else number}

    with pytest.raises(PayloadError, match="item 99999"):
        app.enqueue_many(jobs())

    assert count(conn) == 0
    assert app.enqueue("ok").state() == "pending"  # the connection is still good


# ── few rights ────────────────────────────────────────────────────────────────────────────────────


def test_a_role_with_data_rights_alone_does_all_normal_work(data_login, conn, tmp_path):
    ledger = tmp_path / "ledger"
    app = Queuety(data_login)
    conn.execute("CREATE TABLE ddl (tag text)")
    conn.execute(
        "CREATE FUNCTION note_ddl() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER AS "
        "$$ BEGIN INSERT INTO public.ddl VALUES (tg_tag || ' by ' || session_user); END $$"
    )
    conn.execute("CREATE EVENT TRIGGER note_ddl ON ddl_command_end EXECUTE FUNCTION note_ddl()")

    with daemon(data_login, "--workers=2", app=APP, ledger=ledger, log=tmp_path / "log", env=QUICK) as pool:
        pool.ready(2)
        value = app.enqueue("echo", {"value": "한글"}).result(10)
        buried = app.enqueue("fail", max_attempts=2, backoff=[0.1]).wait(10)
        app.retry(buried.id)
        app.pause("other")
        app.resume("other")
        app.enqueue_many([("partials", {"count": 2})] * 20)
        until(lambda: count(conn) == 0)
        lost = conn.execute(
            "INSERT INTO queuety.jobs (handler, state, lease, lease_until, worker, attempts) "
            "VALUES ('ok', 'processing', 1, now() - interval '1 h', 'gone#1', 1) RETURNING id"
        ).fetchone()[0]
        until(lambda: app.find(lost).state == "completed")
        ok = [queuety(data_login, *words).returncode for words in COMMANDS]
        code = pool.stop()
    app.close()
    tags = conn.execute("SELECT tag FROM ddl").fetchall()
    conn.execute("DROP EVENT TRIGGER note_ddl")

    assert value == "한글"
    assert code == 0
    assert ok == [0] * len(COMMANDS)
    assert "permission denied" not in pool.log()
    assert "Traceback" not in pool.log()
    assert tags == []


COMMANDS = [
    ["status"], ["jobs"], ["workers"], ["queues"], ["recover"], ["enqueue", "ok"], ["flush"],
    ["work", "--once"], ["retry", "--buried", "--yes"], ["purge", "--yes"],
]  # fmt: skip


# ── few connections ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.soak
def test_with_too_few_connections_those_that_got_one_do_the_work(tmp_path):
    ledger = tmp_path / "ledger"
    with own_server(max_connections="6", superuser_reserved_connections="0") as server:
        app = Queuety(server.url)
        app.enqueue_many([("sleep", {"seconds": 0.01})] * 100)
        app.close()
        with daemon(server.url, "--workers=8", app=APP, ledger=ledger, log=tmp_path / "log") as pool:
            until(lambda: len([one for one in read_ledger(ledger) if one.what == "end"]) == 100, 60)
            forks = {one.pid for one in pool.workers()}
            time.sleep(2.0)
            later = {one.pid for one in pool.workers()}
            code = pool.stop()
        log = pool.log()

    assert "need 9 connections" in log
    assert len(forks) == 8
    assert later == forks
    assert code == 0
    assert len(log.splitlines()) < 400


# ── everybody at once ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("seconds", "workers"), [(3, 2), pytest.param(120, 8, marks=[pytest.mark.soak, pytest.mark.timeout(400)])]
)
def test_all_that_locks_the_same_rows_gets_along(tmp_path, seconds, workers):
    with own_server(log_min_messages="warning") as server:
        get_along(server.url, tmp_path, seconds, workers)
        log = server.log()

    assert "deadlock detected" not in log


def get_along(url: str, tmp_path: Path, seconds: float, workers: int) -> None:
    app = Queuety(url)
    over = time.monotonic() + seconds
    failures: list[str] = []
    calls: list[Callable[[], Any]] = [
        app.recover,
        lambda: app.purge(older_than=0.2),
        app.retry_buried,
        lambda: app.enqueue_many(
            [("ok", {}), ("fail_until", {"attempt": 2}), ("permanent", {}), ("say", {"times": 2})] * 10
        ),
        lambda: [_try(app.delete, job.id) for job in app.jobs(limit=20)],
        lambda: [_try(app.cancel, job.id) for job in app.jobs(state="pending", limit=20)],
        lambda: _lose_some(url),
    ]

    def loop(call: Callable[[], Any]) -> None:
        while time.monotonic() < over:
            try:
                call()
            except Exception as error:  # noqa: BLE001
                failures.append(f"{type(error).__name__}: {error}")
            time.sleep(0.01)

    threads = [threading.Thread(target=loop, args=(call,)) for call in (*calls, *calls[:3])]
    with daemon(url, f"--workers={workers}", app=APP, log=tmp_path / "log", env=QUICK) as pool:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with connect(url) as conn:
            until(lambda: hurry(conn) and count(conn) == 0, 60, "an empty queue")
            twice = conn.execute("SELECT id FROM queuety.all_jobs GROUP BY id HAVING count(*) > 1").fetchall()
        code = pool.stop()

    assert failures == []
    assert twice == []
    assert code == 0
    assert "deadlock" not in pool.log()
    assert "lost the database" not in pool.log()


def hurry(conn: Connection) -> bool:
    """Let no retry wait; locks nothing that somebody else holds."""
    conn.execute(
        "UPDATE queuety.jobs SET available_at = now() WHERE id = ANY (ARRAY("
        "SELECT id FROM queuety.jobs WHERE state = 'pending' AND available_at > now() FOR UPDATE SKIP LOCKED))"
    )
    return True


def _try(verb: Callable[[int], Any], job_id: int) -> bool:
    try:
        verb(job_id)
    except QueuetyError as error:
        if error.exit_code not in (5, 6):  # gone, or in another state by now
            raise
        return False
    return True


def _lose_some(url: str) -> None:
    """Let leases run out under living workers, as a host that was asleep finds them."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(
            "UPDATE queuety.jobs SET lease_until = now() - interval '1 s' WHERE id = ANY (ARRAY("
            "SELECT id FROM queuety.jobs WHERE state = 'processing' ORDER BY id LIMIT 3 FOR UPDATE SKIP LOCKED))"
        )
    time.sleep(0.2)
