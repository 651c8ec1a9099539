"""Partitions are made ahead, and what is older than its retention goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from queuety.errors import UsageError
from queuety.store import retention
from queuety.store.connect import Connection, connect
from queuety.store.retention import Pruned
from queuety.store.statements import statement

DAY_OF = {"finished_jobs": "finished_at", "job_events": "at"}


def finished(conn: Connection, job_id: int, age: str) -> None:
    conn.execute(
        "INSERT INTO queuety.finished_jobs (id, finished_at, available_at, created_at, attempts,"
        " max_attempts, priority, state, queue, handler, payload)"
        " VALUES (%s, now() - %s::interval, now(), now(), 1, 3, 2, 'completed', 'default', 'add', '{}')",
        [job_id, age],
    )


def buried(conn: Connection, ids: list[int], age: str) -> None:
    conn.execute(
        "INSERT INTO queuety.buried_jobs (id, finished_at, available_at, created_at, attempts, max_attempts,"
        " priority, queue, handler, payload)"
        " SELECT id, now() - %s::interval, now(), now(), 3, 3, 2, 'default', 'add', '{}'"
        " FROM unnest(%s::bigint[]) AS id",
        [age, ids],
    )


def event(conn: Connection, job_id: int, age: str) -> None:
    conn.execute(
        "INSERT INTO queuety.job_events (job_id, type, at) VALUES (%s, 'progress', now() - %s::interval)",
        [job_id, age],
    )


def day_partition(conn: Connection, table: str, age: int) -> None:
    """Attach the partition of a day in the past, as if it had been made then."""
    conn.execute(
        "DO $$ DECLARE day date := (now() AT TIME ZONE 'UTC')::date - {age}; BEGIN EXECUTE format("
        "'CREATE TABLE queuety.%I PARTITION OF queuety.%I FOR VALUES FROM (%L) TO (%L)',"
        " '{table}_' || to_char(day::timestamp, 'YYYYMMDD'), '{table}',"
        " day || ' 00:00:00+00', (day + 1) || ' 00:00:00+00'); END $$".replace("{table}", table).replace(
            "{age}", str(age)
        )
    )


def partitions(conn: Connection, table: str) -> list[str]:
    rows = conn.execute(
        "SELECT c.relname FROM pg_inherits JOIN pg_class AS c ON c.oid = inhrelid"
        " WHERE inhparent = %s::regclass ORDER BY 1",
        [f"queuety.{table}"],
    ).fetchall()
    return [str(row[0]).removeprefix(f"{table}_") for row in rows]


def ids(conn: Connection, table: str, column: str = "id") -> list[int]:
    query = psycopg.sql.SQL("SELECT {} FROM queuety.{} ORDER BY 1").format(
        psycopg.sql.Identifier(column), psycopg.sql.Identifier(table)
    )
    return [row[0] for row in conn.execute(query).fetchall()]


def utc_days(conn: Connection, first: int, last: int) -> list[str]:
    rows = conn.execute(
        "SELECT to_char((now() AT TIME ZONE 'UTC')::date + n, 'YYYYMMDD')"
        " FROM generate_series(%s::int, %s::int) AS n",
        [first, last],
    )
    return [row[0] for row in rows.fetchall()]


def wait_until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.001)


@pytest.mark.parametrize("table", list(DAY_OF))
def test_a_migrated_database_has_a_week_of_partitions(conn: Connection, table: str) -> None:
    assert partitions(conn, table) == [*utc_days(conn, 0, 7), "default"]


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago", "America/Sao_Paulo"])
def test_days_are_utc_in_every_session(conn: Connection, zone: str) -> None:
    conn.execute(
        "SELECT set_config('TimeZone', %s, false), set_config('DateStyle', 'SQL, DMY', false)", [zone]
    )

    assert retention.make_ahead(conn, 9) == 4

    assert partitions(conn, "finished_jobs") == [*utc_days(conn, 0, 9), "default"]
    conn.execute("SELECT set_config('TimeZone', 'UTC', false), set_config('DateStyle', 'ISO', false)")
    bounds = conn.execute(
        "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = 'finished_jobs_' || to_char("
        "(now() AT TIME ZONE 'UTC')::date + 9, 'YYYYMMDD')"
    ).fetchone()
    assert bounds
    assert bounds[0].count(" 00:00:00+00") == 2


def test_making_again_makes_nothing(conn: Connection) -> None:
    assert retention.make_ahead(conn) == 0


def test_many_may_make_at_once(database: str, conn: Connection) -> None:
    made: list[int] = []
    start = threading.Barrier(6)

    def host() -> None:
        with connect(database) as own:
            start.wait(10)
            made.append(retention.make_ahead(own, 20))

    threads = [threading.Thread(target=host) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sum(made) == 2 * 13
    assert partitions(conn, "job_events") == [*utc_days(conn, 0, 20), "default"]


def test_the_function_alone_stands_a_crowd_too(database: str, conn: Connection) -> None:
    made: list[int] = []

    def host() -> None:
        with connect(database) as own:
            row = own.execute("SELECT queuety.make_partitions(20)").fetchone()
            made.append(row[0] if row else -1)

    threads = [threading.Thread(target=host) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sum(made) == 2 * 13


def test_rows_that_waited_in_the_default_move_into_their_day(conn: Connection) -> None:
    for job_id, age in ((1, "-8 days"), (2, "-8 days"), (3, "-9 days"), (4, "-20 days"), (5, "3 days")):
        finished(conn, job_id, age)
        event(conn, job_id, age)
    assert ids(conn, "finished_jobs_default") == [1, 2, 3, 4, 5]

    assert retention.make_ahead(conn, 9) == 4

    assert ids(conn, "finished_jobs") == [1, 2, 3, 4, 5]
    assert ids(conn, "finished_jobs_default") == [4, 5]
    assert ids(conn, "job_events_default", "job_id") == [4, 5]
    day = utc_days(conn, 8, 8)[0]
    assert ids(conn, f"finished_jobs_{day}") == [1, 2]


def test_writers_go_on_while_partitions_are_made(database: str, conn: Connection) -> None:
    finished(conn, 1, "-8 days")
    with connect(database, autocommit=False) as writer:
        finished(writer, 2, "0 days")
        event(writer, 2, "0 days")

        assert retention.make_ahead(conn, 8) == 2

        writer.commit()
    assert ids(conn, "finished_jobs") == [1, 2]


def test_no_writer_fails_while_the_missing_day_of_today_is_made(database: str, conn: Connection) -> None:
    today = utc_days(conn, 0, 0)[0]
    over = threading.Event()
    written: list[int] = []
    failures: list[str] = []

    def worker(first: int) -> None:
        with connect(database) as own:
            number = first
            while not over.is_set():
                try:
                    finished(own, number, "0 days")
                    written.append(number)
                except psycopg.Error as error:
                    failures.append(str(error))
                number += 2

    threads = [threading.Thread(target=worker, args=(first,)) for first in (1, 2)]
    for thread in threads:
        thread.start()
    made = 0
    for _ in range(10):
        conn.execute(f"DROP TABLE queuety.finished_jobs_{today}".encode())
        seen = len(written)
        wait_until(lambda seen=seen: len(written) > seen + 20)  # type: ignore[misc]
        made += retention.make_ahead(conn)
    over.set()
    for thread in threads:
        thread.join(30)

    assert failures == []
    assert made == 10


def test_a_reader_in_the_way_puts_it_off(database: str, conn: Connection) -> None:
    with connect(database, autocommit=False) as reader:
        ids(reader, "all_jobs")

        assert retention.make_ahead(conn, 8) == 1  # the events' alone
        assert retention.prune(conn, 1, 1, 1) == Pruned()

    assert retention.make_ahead(conn, 8) == 1


def test_days_older_than_their_retention_are_dropped(conn: Connection) -> None:
    for table in DAY_OF:
        for age in (2, 3, 4):
            day_partition(conn, table, age)

    assert retention.prune(conn, 2, 0, 3) == Pruned(partitions=3)

    assert partitions(conn, "finished_jobs") == [*utc_days(conn, -2, -2), *utc_days(conn, 0, 7), "default"]
    assert partitions(conn, "job_events") == [*utc_days(conn, -3, -2), *utc_days(conn, 0, 7), "default"]


def test_no_row_goes_before_its_time(conn: Connection) -> None:
    day_partition(conn, "finished_jobs", 2)
    finished(conn, 1, "48 hours")

    retention.prune(conn, 2, 2, 2)

    assert ids(conn, "finished_jobs") == [1]


def test_expired_rows_of_the_default_go_and_the_default_stays(conn: Connection) -> None:
    for job_id, age in ((1, "9 days"), (2, "5 days"), (3, "-30 days")):
        finished(conn, job_id, age)
        event(conn, job_id, age)

    retention.prune(conn, 7, 7, 7)

    assert ids(conn, "finished_jobs") == [2, 3]
    assert ids(conn, "job_events", "job_id") == [2, 3]
    assert partitions(conn, "finished_jobs")[-1] == "default"


def test_zero_days_keep_everything(conn: Connection) -> None:
    day_partition(conn, "finished_jobs", 400)
    finished(conn, 1, "400 days")
    finished(conn, 2, "500 days")
    event(conn, 1, "400 days")
    buried(conn, [3], "400 days")

    assert retention.prune(conn, 0, 0, 0) == Pruned()

    assert ids(conn, "all_jobs") == [1, 2, 3]
    assert ids(conn, "job_events", "job_id") == [1]


def test_a_partition_that_somebody_else_attached_stays(conn: Connection) -> None:
    conn.execute(
        "CREATE TABLE queuety.finished_jobs_archive PARTITION OF queuety.finished_jobs"
        " FOR VALUES FROM ('2001-01-01') TO ('2002-01-01')"
    )

    assert retention.prune(conn, 1, 1, 1).partitions == 0


def test_buried_jobs_go_in_batches_oldest_first(conn: Connection) -> None:
    buried(conn, [1, 2], "8 days")
    buried(conn, [3, 4, 5], "9 days")
    buried(conn, [6], "6 days")

    first = retention.prune(conn, 7, 7, 7, limit=3)
    left = ids(conn, "buried_jobs")
    second = retention.prune(conn, 7, 7, 7, limit=3)

    assert (first, left) == (Pruned(buried=3, more=True), [1, 2, 6])
    assert second == Pruned(buried=2)
    assert ids(conn, "buried_jobs") == [6]


def test_pruning_does_not_walk_the_buried_jobs_that_are_kept(conn: Connection) -> None:
    for days in range(7):
        buried(conn, list(range(days * 3000, days * 3000 + 3000)), f"{days} days")
    conn.execute("ANALYZE queuety.buried_jobs")

    rows = conn.execute(
        b"EXPLAIN " + statement("prune_buried").encode(), {"days": 7, "limit": 1000}
    ).fetchall()

    plan = "\n".join(row[0] for row in rows)
    assert "using buried_jobs_finished_at" in plan
    assert "Seq Scan on buried_jobs" not in plan, plan


def test_a_buried_job_in_somebody_elses_hands_is_skipped(database: str, conn: Connection) -> None:
    buried(conn, [1, 2], "8 days")
    with connect(database, autocommit=False) as other:
        other.execute("SELECT id FROM queuety.buried_jobs WHERE id = 1 FOR UPDATE")

        assert retention.prune(conn, 7, 7, 7).buried == 1

    assert ids(conn, "buried_jobs") == [1]


def test_only_one_host_prunes_at_a_time(database: str, conn: Connection) -> None:
    buried(conn, [1, 2], "8 days")
    with connect(database) as other, other.transaction():
        retention.prune(other, 0, 7, 0, limit=1)

        assert retention.prune(conn, 7, 7, 7) == Pruned()
        assert retention.make_ahead(conn, 30) == 0


@pytest.mark.parametrize("days", [-1, 40000])
def test_days_out_of_range_are_refused(conn: Connection, days: int) -> None:
    with pytest.raises(UsageError):
        retention.prune(conn, days, 7, 7)
    with pytest.raises(UsageError):
        retention.make_ahead(conn, days)
    with pytest.raises(pg.InvalidParameterValue):
        conn.execute("SELECT queuety.make_partitions(%s::int)", [days])


def test_a_role_with_data_rights_alone_may_run_the_duties(conn: Connection, data_login: str) -> None:
    day_partition(conn, "finished_jobs", 9)
    buried(conn, [1], "8 days")

    with connect(data_login) as own:
        assert retention.make_ahead(own, 8) == 2
        assert retention.prune(own, 7, 7, 7) == Pruned(partitions=1, buried=1)
        finished(own, 2, "-8 days")
        event(own, 2, "-8 days")
        assert ids(own, "finished_jobs") == [2]
        with pytest.raises(pg.InsufficientPrivilege):
            own.execute("DROP TABLE queuety.finished_jobs_default")


@pytest.mark.parametrize("call", ["queuety.make_partitions(30)", "queuety.drop_partitions(1, 1)"])
def test_a_reader_cannot_borrow_the_owners_rights(
    conn: Connection, login: Callable[..., Any], call: str
) -> None:
    url = login("reader")
    conn.execute("GRANT USAGE ON SCHEMA queuety TO reader")
    conn.execute("GRANT SELECT ON ALL TABLES IN SCHEMA queuety TO reader")

    with connect(url) as own, pytest.raises(pg.InsufficientPrivilege, match=r"needs (INSERT|DELETE) on"):
        own.execute(f"SELECT {call}".encode())
    conn.execute("SET ROLE reader")
    with pytest.raises(pg.InsufficientPrivilege):
        conn.execute(f"SELECT {call}".encode())
