"""Find and list: any job in any state, page by page, quick on large tables."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from queuety.errors import UsageError
from queuety.model import Again, Priority, State
from queuety.store import events, reader, search, verbs
from queuety.store.connect import Connection, connect
from queuety.store.statements import statement
from tests.test_verbs import FAULT, buried, cancelled, claim, completed, parked, pending, running, settle


def ids(conn: Connection, **given: Any) -> list[int]:
    return [job.id for job in search.jobs(conn, **given)]


def test_a_job_is_found_in_every_state(conn):
    made = {
        pending(conn, queue="later"): State.PENDING,
        parked(conn): State.PENDING,
        running(conn, queue="slow").id: State.PROCESSING,
        completed(conn): State.COMPLETED,
        buried(conn): State.BURIED,
        cancelled(conn): State.CANCELLED,
    }

    assert {job_id: search.find(conn, job_id).state for job_id in made} == made
    assert {job.id: job.state for job in search.jobs(conn)} == made


def test_a_job_is_shown_with_all_that_it_has(conn):
    job = running(conn, payload='{"a": [1, "é", -0.0]}', tags=("red", "blue"), unique_key="k", priority=0)

    found = search.find(conn, job.id)

    assert found.payload == {"a": [1, "é", -0.0]}
    assert (found.tags, found.unique_key, found.priority) == (("red", "blue"), "k", Priority.URGENT)
    assert (found.worker, found.attempts, found.finished_at) == ("w#1", 1, None)
    assert found.started_at is not None
    assert found.created_at.tzinfo is UTC
    assert search.find(conn, parked(conn)).parked_on == "handler:add"


def test_jobs_come_newest_first_and_every_page_begins_where_the_last_one_ended(conn):
    made = [make(conn) for make in (completed, buried, cancelled, pending) for _ in range(3)]
    first = ids(conn, limit=5)
    second = ids(conn, limit=5, after=first[-1])
    third = ids(conn, limit=5, after=second[-1])

    assert [len(page) for page in (first, second, third)] == [5, 5, 2]
    assert [*first, *second, *third] == made[::-1]
    assert ids(conn, after=third[-1]) == []


def test_a_job_that_moves_between_two_pages_is_shown_once(conn):
    made = [pending(conn) for _ in range(4)]
    first = ids(conn, limit=2)
    verbs.cancel(conn, made[0])
    verbs.cancel(conn, made[3])

    assert first + ids(conn, limit=2, after=first[-1]) == made[::-1]


def test_filters_are_taken_together(conn):
    wanted = completed(conn, queue="mail", handler="send", tags=("red", "blue"))
    completed(conn, queue="mail", handler="send", tags=("blue",))
    completed(conn, queue="mail", handler="add", tags=("red",))
    completed(conn, queue="default", handler="send", tags=("red",))
    buried(conn, queue="mail", handler="send", tags=("red",))

    assert ids(conn, state="completed", queue="mail", handler="send", tag="red") == [wanted]


@pytest.mark.parametrize("state", list(State))
def test_a_state_may_be_asked_for(conn, state):
    made = {
        State.PROCESSING: running(conn).id,
        State.COMPLETED: completed(conn),
        State.BURIED: buried(conn),
        State.CANCELLED: cancelled(conn),
        State.PENDING: pending(conn),
    }

    assert ids(conn, state=state) == ids(conn, state=str(state)) == [made[state]]


@pytest.mark.parametrize("name", ["%", "a%", "*", "?", "a\\", ""])
@pytest.mark.parametrize("kind", ["queue", "handler", "tag"])
def test_a_wildcard_is_refused(conn, kind, name):
    pending(conn)

    with pytest.raises(UsageError):
        search.jobs(conn, **{kind: name})


@pytest.mark.parametrize("kind", ["queue", "handler"])
def test_an_underscore_stands_for_itself(conn, kind):
    pending(conn, **{kind: "a"})
    wanted = pending(conn, **{kind: "_"})

    assert ids(conn, **{kind: "_"}) == [wanted]


@pytest.mark.parametrize(
    "wrong",
    [{"limit": limit} for limit in (0, -1, 10_001, 1.5, True, "5", None)]
    + [{"after": after} for after in (2**63, "5", 1.5, True)]
    + [{"state": state} for state in ("done", "", "PENDING", 1)],
)
def test_what_cannot_be_meant_is_refused(conn, wrong):
    with pytest.raises(UsageError):
        search.jobs(conn, **wrong)


def test_the_largest_page_and_the_largest_id_are_within_range(conn):
    made = pending(conn)

    assert ids(conn, limit=10_000, after=2**63 - 1) == [made]


def test_any_time_that_the_database_can_hold_is_shown(conn):
    job_id = cancelled(conn)
    for text, shown in (
        ("infinity", reader.LATEST),
        ("-infinity", reader.EARLIEST),
        ("294276-12-31 00:00:00+00", reader.LATEST),
        ("4713-01-01 00:00:00+00 BC", reader.EARLIEST),
        ("9999-12-31 23:59:59.999999+00", datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        ("0001-01-01 00:00:00+00", datetime(1, 1, 1, tzinfo=UTC)),
    ):
        conn.execute("UPDATE queuety.finished_jobs SET available_at = %s::timestamptz", [text])

        assert search.find(conn, job_id).available_at == shown
        assert search.jobs(conn)[0].available_at == shown


def test_times_are_shown_the_same_in_every_session(database, conn):
    job_id = pending(conn, at=datetime(2100, 2, 28, 23, 59, 59, 123456, tzinfo=UTC))
    expected = search.find(conn, job_id)
    with connect(database) as other:
        other.execute("SET datestyle = 'SQL, DMY'")
        other.execute("SET timezone = 'Asia/Seoul'")

        found = search.find(other, job_id)

    assert found == expected
    assert found.available_at.isoformat() == "2100-02-28T23:59:59.123456+00:00"


def test_json_that_python_cannot_read_is_shown_as_such(conn):
    number = "1" * 5000
    conn.execute(
        "INSERT INTO queuety.jobs (handler, payload) VALUES ('add', %s::json)",
        [json.dumps({"a": 0})[:-2] + number + "}"],
    )

    [job] = search.jobs(conn)

    assert job.payload["unreadable"].startswith('{"a": 111')
    assert len(job.payload["unreadable"]) == reader.LONGEST_TEXT


# ── history ───────────────────────────────────────────────────────────────────────────────────────────────────


def told(conn: Connection, job_id: int) -> list[str]:
    return [event.type for event in events.history(conn, job_id)]


def test_the_history_of_a_job_is_its_journal_and_what_its_row_tells(conn):
    job = running(conn)
    events.write(conn, job.id, job.lease, "progress", '{"step": 1}')
    settle(conn, job, Again(0.0, True, FAULT, "retried"))
    [job] = claim(conn)
    settle(conn, job, Again(0.0, True, FAULT, "retried"))
    verbs.cancel(conn, job.id)

    lines = events.history(conn, job.id)

    assert [line.type for line in lines] == [
        "enqueued",
        "progress",
        "retried",
        "retried",
        "cancelled",
    ]
    assert [line.id > 0 for line in lines] == [False, True, True, True, False]
    assert lines[3].attempt == 2


def test_a_history_has_one_end(conn):
    assert told(conn, completed(conn))[-1:] == ["completed"]
    assert told(conn, cancelled(conn)) == ["enqueued", "cancelled"]
    job_id = buried(conn)
    assert told(conn, job_id) == ["enqueued", "started", "buried"]
    verbs.retry(conn, job_id)
    assert told(conn, job_id) == ["enqueued", "buried", "requeued"]


def test_an_end_whose_journal_is_gone_is_told_by_the_row(conn):
    job_id = buried(conn)
    conn.execute("DELETE FROM queuety.job_events")

    last = events.history(conn, job_id)[-1]

    assert (last.type, last.id, last.data) == ("buried", 0, {"error": FAULT.as_json()})


# ── plans ─────────────────────────────────────────────────────────────────────────────────────────────────────

_LARGE = """
INSERT INTO queuety.finished_jobs (
    id, finished_at, available_at, created_at, attempts, max_attempts, priority, state, queue, handler, payload
)
SELECT
    n, now() + make_interval(days => n % 4), now(), now(), 1, 3, 2,
    (ARRAY['completed', 'cancelled']::queuety.job_state[])[1 + (n % 50 = 0)::int], 'q' || n % 5, 'h' || n % 7, '{}'
FROM generate_series(1, 120000) AS n;
INSERT INTO queuety.buried_jobs (
    id, finished_at, available_at, created_at, attempts, max_attempts, priority, queue, handler, payload
)
SELECT n, now(), now(), now(), 3, 3, 2, 'q' || n % 5, 'h' || n % 7, '{}'
FROM generate_series(120001, 150000) AS n;
INSERT INTO queuety.jobs (id, queue, handler)
SELECT n, 'q' || n % 5, 'h' || n % 7
FROM generate_series(150001, 200000) AS n;
"""


def large(conn: Connection, analyzed: bool) -> None:
    conn.execute(_LARGE, prepare=False)
    if analyzed:
        for table in ("jobs", "finished_jobs", "buried_jobs"):
            conn.execute(f"ANALYZE queuety.{table}")


def scans(conn: Connection, text: str, values: dict[str, Any]) -> set[str]:
    """Kinds of the nodes that read tables with rows in them."""
    row = conn.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + text, values, prepare=False).fetchone()
    assert row is not None
    found: set[str] = set()

    def walk(node: dict[str, Any]) -> None:
        if "Scan" in node["Node Type"] and node["Actual Rows"] + node.get("Rows Removed by Filter", 0) > 0:
            found.add(node["Node Type"])
        for child in node.get("Plans", []):
            walk(child)

    walk(row[0][0]["Plan"])
    return found - {"Subquery Scan"}


@pytest.mark.alone
@pytest.mark.parametrize("analyzed", [False, True])
def test_a_page_of_a_large_table_is_read_from_an_index(conn, analyzed):
    large(conn, analyzed)
    filters: list[dict[str, Any]] = [{}, {"after": 130_000}, {"after": 60_000}]
    filters += [  # how rare they are is known only from statistics
        {"queue": "q3"},
        {"state": "completed", "queue": "q1", "handler": "h2", "after": 60_000},
        {"state": "pending", "handler": "h2"},
        {"state": "processing"},
        {"state": "buried", "queue": "q1"},
    ] * analyzed

    for given in filters:
        text, values = search.query(**given)
        assert scans(conn, text, values) <= {"Index Scan", "Index Only Scan"}, given
        began = time.monotonic()
        found = search.jobs(conn, **given)
        assert time.monotonic() - began < 0.5, given
        assert len(found) == (0 if given.get("state") == "processing" else 100)

    assert search.find(conn, 100_000).id == 100_000


@pytest.mark.parametrize("analyzed", [False, True])
def test_a_batch_of_a_bulk_verb_is_read_from_an_index(conn, analyzed):
    large(conn, analyzed)
    filters = {"handler": "h2", "queue": "q1", "state": "completed", "before": time.time()}

    for name in ("requeue_buried", "purge_finished", "purge_buried"):
        with conn.transaction(force_rollback=True):
            conn.execute(statement("steer"))
            values = {**filters, "first": 1, "last": 2**63 - 1, "size": 100}
            found = scans(conn, statement(name), values)
        assert found & {"Index Scan", "Index Only Scan"}, name
        assert "Seq Scan" not in found, name


@pytest.mark.parametrize(
    "name", ["cancel_pending", "ask_cancel", "bury_pending", "delete", "requeue_cancelled"]
)
def test_a_verb_on_one_job_reads_no_large_table(conn, name):
    large(conn, analyzed=True)

    for job_id in (50, 130_000, 160_000):
        with conn.transaction(force_rollback=True):
            assert "Seq Scan" not in scans(conn, statement(name), {"id": job_id, "error": "{}"})
