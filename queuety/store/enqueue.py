"""Write jobs: one, many, and through a connection of the caller's."""

from __future__ import annotations

import inspect
import itertools
import json
import re
from array import array as numbers
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from queuety.errors import DuplicateJob, UsageError
from queuety.model import NewJob
from queuety.store.bounded import Bounded
from queuety.store.connect import Connection
from queuety.store.pipeline import Step, alone
from queuety.store.statements import statement

CHUNK = 10_000  # jobs per COPY; memory stays bounded whatever the caller streams
SMALL_CHUNK = 500  # jobs per JSON text, which must stay below a gigabyte

_COLUMNS = "id, handler, payload, queue, priority, max_attempts"
_MORE_COLUMNS = "available_at, tags, backoff"
_PLACEHOLDER = re.compile(r"%\((\w+)\)s")
_CAST = re.compile(r"::(?=[a-z])")
_TAKEN = "SELECT j.id FROM queuety.jobs AS j WHERE j.unique_key = %(unique_key)s"


def one(conn: Any, job: NewJob, payload: str | None = None) -> int:
    """Write a job and return its id, within whatever transaction `conn` is in.

    conn: psycopg connection, or SQLAlchemy Session or Connection.  payload: instead of the job's own.
    If job.unique_key is taken by a job that has not ended, its id is returned, or DuplicateJob raised, as
    job.on_duplicate says.
    """
    values: dict[str, Any] = {
        "handler": job.handler,
        "payload": job.payload if payload is None else payload,
        "queue": job.queue,
        "priority": str(int(job.priority)),
        "max_attempts": str(job.max_attempts),
    }
    if job.plain and job.unique_key is None:
        if isinstance(conn, Bounded) and conn.autocommit:  # one of our own: no need to be polite to a user's
            return int(alone(conn, Step("insert_plain", values)).rows[0][0])
        return int(_fetch(conn, statement("insert_plain"), _numbered(values))[0])
    values = _numbered(values) | {
        "delay": job.delay_s,
        "due": job.at,
        "tags": list(job.tags) or None,
        "unique_key": job.unique_key,
        "backoff": job.backoff,
    }
    for _ in range(20):
        row = _fetch(conn, statement("insert"), values)
        if row is not None:
            return int(row[0])
        taken = _fetch(conn, _TAKEN, {"unique_key": job.unique_key})
        if taken is None:
            continue  # it has ended in between: ours may be written now
        if job.on_duplicate == "error":
            raise DuplicateJob(
                f"job {taken[0]} has the unique key {job.unique_key!r} and has not ended",
                'wait for it, or use on_duplicate="return"',
                existing=int(taken[0]),
            )
        return int(taken[0])
    raise DuplicateJob(f"the unique key {job.unique_key!r} is taken and freed all the time", existing=0)


def _numbered(values: dict[str, Any]) -> dict[str, Any]:
    return values | {name: int(values[name]) for name in ("priority", "max_attempts")}


def many(conn: Any, jobs: Iterable[tuple[NewJob, str]]) -> numbers[int]:
    """Write jobs with COPY and return their ids in order; all or nothing.

    jobs: pairs of what the job is like and its payload; one template serves any number of payloads.
    conn: as for `one`; a psycopg connection in autocommit mode gets a transaction of its own.
    """
    raw = driver(conn)
    if raw is None:
        return _many_by_json(conn, jobs)
    ids = numbers("q")
    queues: set[str] = set()
    with raw.transaction():
        now = _one(raw, "SELECT statement_timestamp()")
        stream = iter(jobs)
        while chunk := list(itertools.islice(stream, CHUNK)):
            ids.extend(_copy(raw, chunk, now))
            queues.update({job.queue for job, _ in chunk})
        if queues:
            raw.execute(
                """
                SELECT pg_notify('queuety', 'q:' || s.queue)
                FROM (
                    SELECT DISTINCT t.queue FROM queuety.sleepers AS t WHERE t.queue = ANY (%s::text[])
                ) AS s
                """,
                [list(queues)],
            )
    return ids


def _many_by_json(conn: Any, jobs: Iterable[tuple[NewJob, str]]) -> numbers[int]:
    """The same through a driver that has no COPY, or must be awaited for it."""
    ids = numbers("q")
    stream = iter(jobs)
    with (
        conn.begin_nested()
    ):  # a bad job must take the others with it, also if the caller goes on and commits
        while chunk := list(itertools.islice(stream, SMALL_CHUNK)):
            _refuse_unique_keys(chunk)
            rows = _run(conn, statement("insert_many"), {"jobs": _as_json(chunk)}).fetchall()
            ids.extend(sorted(row[0] for row in rows))
    return ids


def _as_json(jobs: list[tuple[NewJob, str]]) -> str:
    return json.dumps(
        [
            {
                "place": place,
                "handler": job.handler,
                "payload": payload,
                "queue": job.queue,
                "priority": int(job.priority),
                "max_attempts": job.max_attempts,
                "delay": job.delay_s,
                "due": job.at.isoformat() if job.at else None,
                "tags": list(job.tags) or None,
                "backoff": job.backoff,
            }
            for place, (job, payload) in enumerate(jobs)
        ],
        ensure_ascii=False,
    )


def driver(conn: Any) -> Connection | None:
    """The psycopg connection under `conn`; None if another driver, or an asynchronous one, is under it.

    Raises UsageError for what has to be awaited.
    """
    if isinstance(conn, psycopg.Connection):
        return conn
    if inspect.iscoroutinefunction(getattr(conn, "execute", None)):
        raise UsageError(
            f"connection: {type(conn).__name__} has to be awaited, which enqueue does not",
            "use await session.run_sync(lambda sync: handler.using(connection=sync).enqueue(…))",
        )
    if callable(getattr(conn, "connection", None)):  # a Session
        conn = conn.connection()
    below = getattr(getattr(conn, "connection", None), "driver_connection", None)
    return below if isinstance(below, psycopg.Connection) else None


def _copy(conn: Connection, jobs: list[tuple[NewJob, str]], now: datetime) -> list[int]:
    _refuse_unique_keys(jobs)
    ids = [
        row[0]
        for row in conn.cursor(row_factory=tuple_row).execute(
            "SELECT nextval(pg_get_serial_sequence('queuety.jobs', 'id')) FROM generate_series(1, %s)",
            [len(jobs)],
        )
    ]
    plain = all(job.plain for job, _ in jobs)
    columns = _COLUMNS if plain else f"{_COLUMNS}, {_MORE_COLUMNS}"
    rows = _plain_lines(ids, jobs) if plain else _lines(ids, jobs, now)
    with conn.cursor().copy(f"COPY queuety.jobs ({columns}) FROM STDIN") as copy:
        copy.write("".join(rows))
    return ids


def _refuse_unique_keys(jobs: list[tuple[NewJob, str]]) -> None:
    if any(job.unique_key is not None for job, _ in jobs):
        raise UsageError("a bulk enqueue takes no unique_key", "enqueue such jobs one by one")


def _plain_lines(ids: list[int], jobs: list[tuple[NewJob, str]]) -> Iterator[str]:
    template: NewJob | None = None
    before = after = ""
    for job_id, (job, payload) in zip(ids, jobs, strict=True):
        if job is not template:
            template = job
            before = f"\t{job.handler}\t"
            after = f"\t{job.queue}\t{job.priority:d}\t{job.max_attempts}\n"
        yield f"{job_id}{before}{_escaped(payload)}{after}"


def _lines(ids: list[int], jobs: list[tuple[NewJob, str]], now: datetime) -> Iterator[str]:
    for line, (job, _) in zip(_plain_lines(ids, jobs), jobs, strict=True):
        at = job.at or now + timedelta(seconds=job.delay_s or 0.0)
        tags = "{" + ",".join(f'"{tag}"' for tag in job.tags) + "}" if job.tags else "\\N"
        backoff = _escaped(job.backoff) if job.backoff else "\\N"
        yield f"{line[:-1]}\t{at.isoformat()}\t{tags}\t{backoff}\n"


def _escaped(text: str) -> str:
    """JSON text for COPY: it has no raw tabs or line ends, only backslashes."""
    return text.replace("\\", "\\\\") if "\\" in text else text


def _fetch(conn: Any, text: str, values: dict[str, Any]) -> Any:
    """Run a statement of ours on any kind of connection and return its first row or None."""
    return _run(conn, text, values).fetchone()


def _run(conn: Any, text: str, values: dict[str, Any]) -> Any:
    raw = driver(conn)
    if raw is not None:
        own = raw is conn and raw.autocommit and raw.prepare_threshold is not None
        cursor = raw.cursor(row_factory=tuple_row)  # the caller's connection may make other rows
        return cursor.execute(text, values, prepare=True if own else None)
    from sqlalchemy import DateTime, bindparam
    from sqlalchemy import text as clause

    wanted = dict.fromkeys(_PLACEHOLDER.findall(text))
    # SQLAlchemy takes :name, and a colon that is no placeholder only behind a backslash.
    ours = clause(_PLACEHOLDER.sub(r":\1", _CAST.sub(r"\:\:", text)))
    if "due" in wanted:
        ours = ours.bindparams(bindparam("due", type_=DateTime(timezone=True)))
    return conn.execute(ours, {name: values[name] for name in wanted})


def _one(conn: Connection, text: str) -> Any:
    row = conn.cursor(row_factory=tuple_row).execute(text).fetchone()
    assert row is not None
    return row[0]
