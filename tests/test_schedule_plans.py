"""What schedules cost does not depend on how many there are, nor on how long their journal is.

Keepers and schedulers pin the plans of their sessions; the planner knows the truth, an old truth, or nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from queuety.store.connect import Connection, connect, pin
from tests.test_plans import (
    FRESH,
    NONE,
    STALE,
    blocks,
    explained,
    header,
    nodes,
    set_statistics,
    used_indexes,
)

SCHEDULES, TICKS = 20_000, 60_000
DUE, BUFFERED, OPEN = 100, 20, 500

KEYS = [f"due {n}" for n in range(1, 51)]
MOVED = json.dumps([{"key": key, "next_at": "2030-01-01T00:00:00Z"} for key in KEYS])
RUNS = [
    {"schedule": key, "at": "2030-01-01T00:00:00Z", "ticks": 1, "kind": "run", "job_id": 1} for key in KEYS
]
SKIPS = [{**one, "kind": "skip", "at": "2030-01-02T00:00:00Z"} for one in RUNS]
ONE: dict[str, Any] = {
    "key": "due 1", "handler": "ok", "payload": "{}", "job": "{}", "cron": None, "every_s": 60.0, "timezone": "UTC",
    "starts_at": None, "ends_at": None, "jitter_s": 0.0, "overlap": "allow", "missed": "once", "missed_limit": 100,
    "declared_by": None, "anchor": datetime(2030, 1, 1, tzinfo=UTC), "next_at": datetime(2030, 1, 1, tzinfo=UTC),
}  # fmt: skip

# Statement → what it is asked with, and how many pages it may touch: each row found costs a few.
ASKED: dict[str, tuple[dict[str, Any], int]] = {
    "next_due": ({"seen": 15.0}, 40 + 5 * BUFFERED),
    "due_schedules": ({"limit": 100, "behind": 0.0}, 100 + 12 * (DUE + BUFFERED)),
    "move_schedules": ({"schedules": MOVED}, 100 + 25 * len(KEYS)),
    "note_ticks": ({"ticks": json.dumps(RUNS + SKIPS)}, 100 + 15 * 2 * len(KEYS)),
    "follow_ticks": ({"after": 0, "limit": 200}, 400 + 60 * 200),
    "prune_ticks": ({"days": 30, "limit": 100}, 200 + 20 * 100),
    "insert_schedule": (ONE, 80),  # the first insert looks up what the checks of the table call
    "update_schedule": (ONE, 60),
}
LARGE = ("schedules", "schedule_ticks", "jobs", "finished_jobs", "buried_jobs")


def fill(conn: Connection) -> None:
    for table in ("schedules", "schedule_ticks", "jobs", "buried_jobs"):
        conn.execute(f"ALTER TABLE queuety.{table} SET (autovacuum_enabled = off)".encode())
    conn.execute("SELECT queuety.make_partitions(2)")
    conn.execute("ANALYZE")  # of what is empty: the sessions that were there first have plans of it
    kinds = {
        "later": (
            SCHEDULES,
            "now() + interval '1 hour' + n * interval '1 s'",
            "NULL::timestamptz",
            "NULL",
            "NULL",
        ),
        "due": (DUE, "now() - n * interval '1 ms'", "NULL", "NULL", "NULL"),
        "paused": (SCHEDULES // 10, "now() - n * interval '1 h'", "now()", "NULL", "NULL"),
        "broken": (SCHEDULES // 10, "now() - n * interval '1 h'", "NULL", "'it is'", "NULL"),
        "buffered": (BUFFERED, "now() + interval '1 day'", "NULL", "NULL", "now()"),
    }
    for kind, (count, next_at, paused, broken, buffered) in kinds.items():
        conn.execute(
            f"""
            INSERT INTO queuety.schedules (key, handler, every_s, next_at, paused_at, broken, buffered_at, last_job)
            SELECT '{kind} ' || n, 'ok', 60, {next_at}, {paused}, {broken}, {buffered}, 900000000 + n
            FROM generate_series(1, {count}) AS n
            """.encode()
        )
    conn.execute(
        """
        INSERT INTO queuety.schedule_ticks (schedule, at, kind, job_id, ended, noted_at)
        SELECT 'later ' || n %% 1000, now() - n * interval '1 min', 'run', n, 'done', now() - n * interval '1 min'
        FROM generate_series(1, %s) AS n
        """,
        [TICKS],
    )
    conn.execute(
        """
        INSERT INTO queuety.schedule_ticks (schedule, at, kind, job_id)
        SELECT 'due ' || n %% 100, now() + n * interval '1 s', 'run', 10000000 + n FROM generate_series(1, %s) AS n
        """,
        [OPEN],
    )
    conn.execute(
        """
        INSERT INTO queuety.finished_jobs (id, finished_at, available_at, created_at, attempts, max_attempts, priority,
            state, queue, handler, payload)
        SELECT 10000000 + n, now(), now(), now(), 1, 3, 2, 'completed', 'default', 'ok', '{}'
        FROM generate_series(1, %s) AS n
        """,
        [TICKS],
    )
    conn.execute("INSERT INTO queuety.jobs (handler) SELECT 'ok' FROM generate_series(1, %s)", [TICKS])


@pytest.fixture(scope="module", params=[FRESH, STALE, NONE])
def knowing(request: pytest.FixtureRequest, server: str, template: str) -> Iterator[str]:
    from tests.conftest import _database

    with _database(server, template) as url:
        with connect(url) as conn:
            fill(conn)
            set_statistics(conn, request.param)
        yield url


@pytest.mark.parametrize("name", ASKED)
def test_a_statement_about_schedules_finds_its_rows_by_its_indexes(knowing, name):
    given, most = ASKED[name]
    with connect(knowing) as conn, conn.transaction(force_rollback=True):
        pin(conn)
        plan = explained(conn, name, generic=True, run=True, **given)
        used = used_indexes(conn, plan["Plan"])
        read = {node["Relation Name"] for node in nodes(plan["Plan"]) if node["Node Type"] == "Seq Scan"}

    promised = re.findall(r"\b\w+_(?:due|buffered|pkey|open|noted)\b", header(name).partition("Indexes:")[2])
    assert not [one for one in read if one.startswith(LARGE)]
    assert set(promised) <= used
    assert blocks(plan) < most
