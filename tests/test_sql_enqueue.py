"""queuety.enqueue(jsonb): what other languages may rely on."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from queuety import names
from queuety.errors import UsageError
from queuety.store.connect import Connection, connect


def enqueue(conn: Connection, **job: Any) -> int:
    row = conn.execute("SELECT queuety.enqueue(%s::jsonb)", [json.dumps(job)]).fetchone()
    assert row is not None
    return int(row[0])


def stored(conn: Connection, job_id: int, *columns: str) -> tuple[Any, ...]:
    query = psycopg.sql.SQL("SELECT {} FROM queuety.jobs WHERE id = %s").format(
        psycopg.sql.SQL(", ").join(map(psycopg.sql.Identifier, columns))
    )
    row = conn.execute(query, [job_id]).fetchone()
    assert row is not None
    return row


def test_a_handler_alone_makes_a_job_with_the_defaults(conn: Connection) -> None:
    job = enqueue(conn, handler="add")

    columns = ("queue", "payload", "priority", "max_attempts", "tags", "unique_key", "state", "attempts")
    assert stored(conn, job, *columns) == ("default", {}, 2, 3, None, None, "pending", 0)
    assert conn.execute("SELECT available_at <= now() FROM queuety.jobs").fetchone() == (True,)


def test_every_key_is_stored(conn: Connection) -> None:
    job = enqueue(
        conn,
        handler="mail.send",
        payload={"to": "a@b.example", "rate": "5%", "nested": {"ü": [1, 2.5, None]}},
        queue="mail",
        priority="urgent",
        max_attempts=1000,
        tags=["customer:42", "é"],
        unique_key="order 42 %",
        delay=90.5,
    )

    row = stored(conn, job, "handler", "payload", "queue", "priority", "max_attempts", "tags", "unique_key")
    assert row == (
        "mail.send",
        {"to": "a@b.example", "rate": "5%", "nested": {"ü": [1, 2.5, None]}},
        "mail",
        0,
        1000,
        ["customer:42", "é"],
        "order 42 %",
    )
    available_at, created_at = stored(conn, job, "available_at", "created_at")
    assert abs(available_at - created_at - timedelta(seconds=90.5)) < timedelta(seconds=1)


def test_a_null_means_not_given(conn: Connection) -> None:
    job = enqueue(
        conn, handler="add", queue=None, priority=None, delay=None, at=None, tags=None, unique_key=None
    )

    assert stored(conn, job, "queue", "priority", "tags") == ("default", 2, None)


@pytest.mark.parametrize(
    "text",
    [
        "2030-01-31T08:00:00+09:00",
        "2030-01-30 23:00:00Z",
        "2030-01-30T18:00-05",
        "2030-01-31T04:30:00.000000+0530",
    ],
)
@pytest.mark.parametrize("style", ["ISO, MDY", "SQL, DMY", "German, DMY"])
def test_a_time_with_its_offset_is_that_instant_in_every_session(
    conn: Connection, text: str, style: str
) -> None:
    conn.execute(
        "SELECT set_config('DateStyle', %s, false), set_config('TimeZone', 'Asia/Seoul', false)", [style]
    )

    job = enqueue(conn, handler="add", at=text)

    conn.execute("SET DateStyle = 'ISO, MDY'")
    assert stored(conn, job, "available_at") == (datetime(2030, 1, 30, 23, tzinfo=UTC),)


@pytest.mark.parametrize(
    ("given", "level"), [("urgent", 0), ("high", 1), ("normal", 2), ("low", 3), (0, 0), (3, 3)]
)
def test_a_priority_is_a_name_or_a_number(conn: Connection, given: object, level: int) -> None:
    assert stored(conn, enqueue(conn, handler="add", priority=given), "priority") == (level,)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({}, "handler must be text, not missing"),
        ({"handler": None}, "handler must be text"),
        ({"handler": 7}, "handler must be text, not number"),
        ({"handler": ""}, "1 to 255 characters, not 0"),
        ({"handler": "x" * 256}, "1 to 255 characters, not 256"),
        ({"handler": "add", "queu": "mail"}, 'unknown key "queu"'),
        ({"handler": "add", "queue": "a,b"}, 'queue "a,b" has the character ","'),
        ({"handler": "add", "payload": [1]}, "payload must be a JSON object, not array"),
        ({"handler": "add", "payload": None}, "payload must be a JSON object, not null"),
        ({"handler": "add", "priority": "asap"}, 'priority must be urgent, .*, not "asap"'),
        ({"handler": "add", "priority": 4}, "priority must be a whole number from 0 to 3, not 4"),
        ({"handler": "add", "priority": 1.5}, "priority must be a whole number from 0 to 3, not 1.5"),
        ({"handler": "add", "priority": True}, "priority must be a whole number from 0 to 3, not true"),
        ({"handler": "add", "max_attempts": 0}, "max_attempts must be a whole number from 1 to 1000, not 0"),
        ({"handler": "add", "max_attempts": 1001}, "from 1 to 1000, not 1001"),
        ({"handler": "add", "max_attempts": 10**30}, "from 1 to 1000, not 10"),
        ({"handler": "add", "delay": -1}, "delay must be seconds from 0 to 3155760000, not -1"),
        ({"handler": "add", "delay": "5"}, "delay must be seconds"),
        ({"handler": "add", "delay": 10**300}, "delay must be seconds"),
        ({"handler": "add", "at": 5}, "at must be a date and time with its offset"),
        ({"handler": "add", "at": "2030-01-31T08:00:00"}, "at must be a date and time with its offset"),
        ({"handler": "add", "at": "tomorrow"}, "at must be a date and time with its offset"),
        ({"handler": "add", "at": "infinity"}, "at must be a date and time with its offset"),
        ({"handler": "add", "at": "2030-02-31T08:00:00Z"}, "no date and time that exists"),
        ({"handler": "add", "at": "2030-01-31T08:00:00+99:00"}, "no date and time that exists"),
        ({"handler": "add", "at": "9999-12-31T23:00:00-02"}, "at must be"),
        ({"handler": "add", "at": "0001-01-01T00:00:00+14"}, "at must be"),
        ({"handler": "add", "at": "2030-01-31T08:00:00Z", "delay": 5}, "exclude each other"),
        ({"handler": "add", "tags": "red"}, "tags must be an array of text, not string"),
        ({"handler": "add", "tags": ["red", 5]}, "tag must be text, not number"),
        ({"handler": "add", "tags": ["red", "bl ue"]}, 'tag "bl ue" has the character " "'),
        ({"handler": "add", "unique_key": ""}, "unique_key must have 1 to 255"),
        ({"handler": "add", "unique_key": "a\x1fb"}, "unique_key .* has the character"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_written(
    conn: Connection, job: dict[str, Any], words: str
) -> None:
    with pytest.raises(pg.InvalidParameterValue, match=words):
        enqueue(conn, **job)

    assert conn.execute("SELECT count(*) FROM queuety.jobs").fetchone() == (0,)


@pytest.mark.parametrize("job", ["null", "[]", '"add"', "5"])
def test_a_job_must_be_an_object(conn: Connection, job: str) -> None:
    with pytest.raises(pg.InvalidParameterValue, match="must be a JSON object"):
        conn.execute("SELECT queuety.enqueue(%s::jsonb)", [job])


def test_no_job_at_all_is_refused_too(conn: Connection) -> None:
    with pytest.raises(pg.InvalidParameterValue, match="must be a JSON object"):
        conn.execute("SELECT queuety.enqueue(NULL)")


SIGNS = [chr(code) for code in range(1, 0x100)] + list(
    "\u2003\u200b\u2028\u3000\ufeff\u3164→“한дא中\U0001f600\U0001f680\U0001f1f0\U0001d11e\U000e0041\U00020000\U00010400"
)


@pytest.mark.parametrize("kind", ["queue", "handler", "tag", "unique_key"])
def test_names_are_those_that_python_accepts(conn: Connection, kind: str) -> None:
    differing = []
    for name in [*SIGNS, *(f"a{sign}b" for sign in SIGNS), "-a", ".a", "_a", "e\u0301", " a\n", "a" * 255]:
        try:
            python = names.check_unique_key(name) if kind == "unique_key" else names.check_name(kind, name)
        except UsageError:
            python = None
        try:
            row = conn.execute("SELECT queuety.enqueue_name(%s, to_jsonb(%s::text))", [kind, name]).fetchone()
            database = row and row[0]
        except pg.InvalidParameterValue:
            database = None
        if python != database:
            differing.append((name, python, database))

    assert differing == []


def test_the_second_job_of_a_unique_key_is_the_first(conn: Connection) -> None:
    first = enqueue(conn, handler="add", unique_key="k")

    assert enqueue(conn, handler="add", payload={"other": True}, unique_key="k") == first
    assert conn.execute("SELECT count(*) FROM queuety.jobs").fetchone() == (1,)


def test_many_at_once_with_one_unique_key_make_one_job(database: str, conn: Connection) -> None:
    ids: list[int] = []
    start = threading.Barrier(8)

    def client() -> None:
        with connect(database) as own:
            start.wait(10)
            ids.extend(enqueue(own, handler="add", unique_key=f"k{n}") for n in range(50))

    threads = [threading.Thread(target=client) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len(ids) == 400
    assert sorted(set(ids)) == sorted(row[0] for row in conn.execute("SELECT id FROM queuety.jobs"))
    assert len(set(ids)) == 50


def test_a_key_whose_job_is_being_settled_is_that_jobs_until_the_commit(
    database: str, conn: Connection
) -> None:
    first = enqueue(conn, handler="add", unique_key="k")
    with connect(database, autocommit=False) as other:
        other.execute("DELETE FROM queuety.jobs WHERE id = %s", [first])
        assert enqueue(conn, handler="add", unique_key="k") == first
        other.commit()

    assert enqueue(conn, handler="add", unique_key="k") != first


def test_a_job_lives_and_dies_with_the_callers_transaction(database: str, conn: Connection) -> None:
    with connect(database, autocommit=False) as own:
        enqueue(own, handler="add")
        assert conn.execute("SELECT count(*) FROM queuety.jobs").fetchone() == (0,)
        own.rollback()

    assert conn.execute("SELECT count(*) FROM queuety.jobs").fetchone() == (0,)


def test_only_a_sleeper_of_that_queue_is_woken_and_only_by_a_due_job(conn: Connection) -> None:
    with listening(conn) as heard:
        enqueue(conn, handler="add", queue="mail")
        conn.execute("INSERT INTO queuety.sleepers (pool, queue) VALUES (1, 'mail'), (2, 'mail')")
        enqueue(conn, handler="add")
        enqueue(conn, handler="add", queue="mail", delay=60)
        assert heard() == []

        enqueue(conn, handler="add", queue="mail")

        assert heard() == ["q:mail"]


def test_ids_beyond_32_bits_work(conn: Connection) -> None:
    beyond = 2**31 + 10
    for sequence in conn.execute(
        "SELECT format('queuety.%I', relname) FROM pg_class"
        " WHERE relkind = 'S' AND relnamespace = 'queuety'::regnamespace"
    ).fetchall():
        conn.execute("SELECT setval(%s::regclass, %s)", [sequence[0], beyond])

    job = enqueue(conn, handler="add")
    conn.execute("INSERT INTO queuety.job_events (job_id, type) VALUES (%s, 'progress')", [job])

    assert job == beyond + 1
    assert conn.execute("SELECT id, job_id FROM queuety.job_events").fetchall() == [(beyond + 1, beyond + 1)]
    assert conn.execute("SELECT id FROM queuety.all_jobs").fetchall() == [(job,)]


def test_a_role_with_data_rights_alone_may_enqueue(data_login: str) -> None:
    with connect(data_login) as own:
        assert enqueue(own, handler="add") > 0
        own.execute("INSERT INTO queuety.sleepers (pool, queue) VALUES (1, 'default')")
        assert enqueue(own, handler="add", unique_key="k") == enqueue(own, handler="add", unique_key="k")


def test_a_hostile_search_path_changes_nothing(conn: Connection) -> None:
    conn.execute("CREATE SCHEMA evil")
    conn.execute("CREATE FUNCTION evil.length(text) RETURNS int LANGUAGE sql AS 'SELECT 0'")
    conn.execute("SET search_path = evil, pg_catalog, public")

    assert enqueue(conn, handler="add") > 0


@contextmanager
def listening(conn: Connection) -> Iterator[Callable[[], list[str]]]:
    """Listen on conn itself; the function returns what has been heard since it was last asked."""
    conn.execute("LISTEN queuety")

    def heard() -> list[str]:
        # Our own notifications have arrived when our statement returns.
        return [notice.payload for notice in conn.notifies(timeout=0.05)]

    yield heard
    conn.execute("UNLISTEN queuety")
