"""`queuety metrics` and `app.metrics()`: figures by handler from the database."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from queuety import Queuety, UsageError
from queuety.store import metrics
from queuety.store.connect import Connection, connect
from queuety.store.metrics import HandlerMetrics
from queuety.store.statements import statement
from tests.test_cli import queuety


def finished(
    conn: Connection, handler: str, *, took_s: float = 1, ago: str = "1 minute", **more: object
) -> None:
    conn.execute(
        """
        INSERT INTO queuety.finished_jobs (id, finished_at, available_at, created_at, started_at, attempts,
            max_attempts, priority, state, queue, handler, payload)
        SELECT nextval('queuety.leases'), ended, ended, ended, ended - %s * interval '1 s', %s, 3, 2, %s,
            'default', %s, '{}'
        FROM (SELECT now() - %s::interval AS ended) AS at
        """,
        [took_s, more.get("attempts", 1), more.get("state", "completed"), handler, ago],
    )


def buried(conn: Connection, handler: str, *, attempts: int = 3, ago: str = "1 minute") -> None:
    conn.execute(
        "INSERT INTO queuety.buried_jobs (id, finished_at, available_at, created_at, attempts, max_attempts, priority,"
        " queue, handler, payload) VALUES (nextval('queuety.leases'), now() - %s::interval, now(), now(), %s, 3, 2,"
        " 'default', %s, '{}')",
        [ago, attempts, handler],
    )


def pending(conn: Connection, handler: str, due_ago: str, **more: object) -> None:
    conn.execute(
        "INSERT INTO queuety.jobs (handler, queue, priority, available_at, parked_on)"
        " VALUES (%s, %s, %s, now() - %s::interval, %s)",
        [handler, more.get("queue", "default"), more.get("priority", 2), due_ago, more.get("parked_on")],
    )


def of(conn: Connection, handler: str, window_s: float = 3600, longer_s: float = 300) -> HandlerMetrics:
    [found] = [one for one in metrics.metrics(conn, window_s, longer_s).handlers if one.handler == handler]
    return found


def test_ends_are_counted_by_handler(conn: Connection):
    for _ in range(3):
        finished(conn, "a")
    finished(conn, "a", state="cancelled")
    finished(conn, "b")
    buried(conn, "a")

    found = of(conn, "a")

    assert (found.completed, found.cancelled, found.buried) == (3, 1, 1)
    assert of(conn, "b").completed == 1


def test_failed_counts_attempts_whatever_became_of_the_job(conn: Connection):
    finished(conn, "a", attempts=3)  # two failed
    buried(conn, "a", attempts=3)

    found = of(conn, "a")

    assert found.failed == 5
    assert found.error_rate == pytest.approx(5 / 6)


def test_a_handler_without_an_ended_attempt_has_no_error_rate(conn: Connection):
    finished(conn, "a", state="cancelled")

    assert of(conn, "a").error_rate is None


def test_mean_and_p95_are_of_completed_runs(conn: Connection):
    for number in range(1, 101):
        finished(conn, "a", took_s=number)
    finished(conn, "a", took_s=10_000, state="cancelled")

    found = of(conn, "a")

    assert found.mean_s == pytest.approx(50.5)
    assert found.p95_s == pytest.approx(95.05)


def test_what_ended_before_the_window_is_not_counted(conn: Connection):
    finished(conn, "a", ago="2 hours")
    buried(conn, "a", ago="2 hours")
    finished(conn, "a")

    assert (of(conn, "a").completed, of(conn, "a").buried) == (1, 0)
    assert of(conn, "a", window_s=3 * 3600).completed == 2


def test_jobs_that_were_due_for_long_are_counted_in_every_lane(conn: Connection):
    for priority in range(4):
        pending(conn, "a", "10 minutes", priority=priority, queue=f"q{priority}")
    pending(conn, "a", "1 minute")
    pending(conn, "a", "-1 hour")
    pending(conn, "a", "1 day", parked_on="group:x")
    pending(conn, "b", "1 hour")

    found = of(conn, "a")

    assert (found.pending, found.parked) == (5, 1)
    assert found.oldest_s == pytest.approx(86_400, rel=0.01)
    assert of(conn, "b").pending == 1


def test_an_empty_database_has_no_figures(conn: Connection):
    assert metrics.metrics(conn, 3600, 300).handlers == ()


def test_it_says_when_it_has_not_read_all(conn: Connection, monkeypatch: pytest.MonkeyPatch):
    for _ in range(5):
        finished(conn, "a")
    monkeypatch.setattr(metrics, "MOST_READ", 3)

    found = metrics.metrics(conn, 3600, 300)

    assert found.capped
    assert found.handlers[0].completed == 3


def test_the_application_takes_durations(database: str, conn: Connection):
    finished(conn, "a", ago="90 minutes")

    app = Queuety(database)

    assert app.metrics(window=timedelta(hours=2)).handlers[0].completed == 1
    assert app.metrics().handlers == ()
    with pytest.raises(UsageError, match="window"):
        app.metrics(window=0)


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_command_shows_a_table(database: str, conn: Connection):
    finished(conn, "a", took_s=0.25)
    buried(conn, "a", attempts=1)
    pending(conn, "a", "10 minutes")

    said = queuety("metrics", url=database)

    assert said.returncode == 0
    header, row = said.stdout.splitlines()[0], said.stdout.splitlines()[-1]
    assert "error rate" in header
    for value in ("50.0 %", "250.0 ms", "10 min"):
        assert value in row


def test_the_command_writes_json(database: str, conn: Connection):
    finished(conn, "a")

    said = queuety("metrics", "--window=24h", "--pending-longer-than=10m", "--json", url=database)

    found = json.loads(said.stdout)
    assert (found["window_s"], found["pending_longer_than_s"], found["capped"]) == (86_400, 600, False)
    assert found["handlers"][0]["handler"] == "a"
    assert found["handlers"][0]["error_rate"] == 0


def test_what_is_worst_is_shown_first(database: str, conn: Connection):
    finished(conn, "a")
    buried(conn, "z")

    found = json.loads(queuety("metrics", "--limit=1", "--json", url=database).stdout)

    assert [one["handler"] for one in found["handlers"]] == ["z"]


@pytest.mark.parametrize("option", ["--window=0", "--window=soon", "--pending-longer-than=-1"])
def test_bad_durations_are_refused(database: str, option: str):
    assert queuety("metrics", option, url=database).returncode == 2


# ── what it reads ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def large(database: str) -> Connection:
    """Two days of many jobs, of which few ended within the last hour; many jobs that are due later."""
    conn = connect(database)
    conn.execute("SELECT queuety.make_partitions(2)")
    conn.execute(
        """
        INSERT INTO queuety.finished_jobs (id, finished_at, available_at, created_at, started_at, attempts,
            max_attempts, priority, state, queue, handler, payload)
        SELECT n, at, at, at, at, 1, 3, 2, 'completed', 'default', 'h' || n %% 10, '{}'
        FROM (
            SELECT n, now() - (100000 - n) * interval '1.5 s' AS at FROM generate_series(1, 100000) AS n
        ) AS job
        """.replace("%%", "%")
    )
    conn.execute(
        "INSERT INTO queuety.jobs (handler, available_at) SELECT 'h', now() + n * interval '1 s'"
        " FROM generate_series(1, 50000) AS n"
    )
    for [part] in conn.execute(
        "SELECT c.oid::regclass::text FROM pg_class AS c JOIN pg_index AS i ON i.indexrelid = c.oid"
        " JOIN pg_am AS a ON a.oid = c.relam WHERE a.amname = 'brin' AND c.relkind = 'i'"
    ).fetchall():
        conn.execute("SELECT brin_summarize_new_values(%s::regclass)", [part])
    return conn


@pytest.mark.parametrize("analyzed", [True, False])
def test_a_window_is_read_without_the_rest_of_its_day(large: Connection, analyzed: bool):
    if analyzed:
        large.execute("ANALYZE")

    read = blocks(large, "ended_by_handler", window=3600, size=metrics.MOST_READ)

    [whole] = large.execute(
        "SELECT sum(pg_relation_size(c.oid)) / 8192 FROM pg_class AS c"
        " WHERE c.relname ~ '^finished_jobs_' AND c.relkind = 'r'"
    ).fetchall()
    assert read < whole[0] / 8


def test_what_has_waited_for_long_is_found_without_what_is_due_later(large: Connection):
    large.execute("INSERT INTO queuety.jobs (handler, available_at) VALUES ('h', now() - interval '1 hour')")
    large.execute("ANALYZE")

    assert blocks(large, "long_pending", longer=300, size=metrics.MOST_PENDING) < 60


def blocks(conn: Connection, name: str, **values: float) -> int:
    """Pages that a statement of `metrics` touches."""
    with conn.transaction():
        conn.execute("SELECT set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)")
        row = conn.execute(
            b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statement(name).encode(), values
        ).fetchone()
    assert row
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_the_command_is_in_the_documentation():
    from tests import ROOT

    assert "queuety metrics" in Path(ROOT, "docs", "metrics.md").read_text()
