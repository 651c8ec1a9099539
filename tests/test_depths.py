"""How deep queues are: counted right, and bounded."""

from __future__ import annotations

from queuety.store import depths
from queuety.store.connect import Connection


def test_jobs_are_counted_by_what_they_wait_for(conn: Connection):
    conn.execute(
        """
        INSERT INTO queuety.jobs (queue, handler, priority, available_at, parked_on)
        VALUES
            ('a', 'h', 0, now() - interval '1 minute', NULL),
            ('a', 'h', 3, now() - interval '1 hour', NULL),
            ('a', 'h', 2, now() + interval '1 hour', NULL),
            ('a', 'h', 2, now() - interval '1 day', 'group:x'),
            ('b', 'h', 2, now() - interval '1 day', NULL)
        """
    )
    conn.execute(
        "INSERT INTO queuety.buried_jobs (id, queue, handler, priority, attempts, max_attempts, payload,"
        " available_at, created_at, finished_at) VALUES (1, 'a', 'h', 2, 1, 1, '{}', now(), now(), now())"
    )

    found, overdue = depths.look(conn, ["a", "c"])

    a = found["a"]
    assert [a.due, a.later, a.parked, a.buried] == [2, 1, 1, 1]
    assert 3600 <= a.oldest < 3700
    assert found["c"] == depths.Depth(0, 0, 0, 0, 0.0)
    assert set(found) == {"a", "c"}
    assert overdue == 0


def test_counting_ends_at_the_bound(conn: Connection):
    conn.execute(
        "INSERT INTO queuety.jobs (queue, handler) SELECT 'a', 'h' FROM generate_series(1, %s)",
        [depths.MOST + 5],
    )

    found, _ = depths.look(conn, ["a"])

    assert found["a"].due == depths.MOST


def test_a_schedule_whose_tick_nobody_runs_is_overdue(conn: Connection):
    for key, late in (("late", "1 hour"), ("soon", "-1 hour")):
        conn.execute(
            "INSERT INTO queuety.schedules (key, handler, cron, next_at)"
            " VALUES (%s, 'h', '@daily', now() - %s::interval)",
            [key, late],
        )

    assert depths.look(conn, ["a"])[1] == 1
