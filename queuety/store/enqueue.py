"""Write jobs: one, many, and through a connection of the caller's."""

from __future__ import annotations

import itertools
import json
from array import array as numbers
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from queuety.model import Limits, NewJob
from queuety.store import connect, notices
from queuety.store.bounded import Bounded
from queuety.store.caller import atomically, driver, fetch, run, value
from queuety.store.connect import Connection
from queuety.store.pipeline import Step, alone
from queuety.store.statements import statement

CHUNK = 10_000  # jobs per COPY; memory stays bounded whatever the caller streams
MOST_READY = 10  # jobs of a bulk call that are left claimable for one limited key
SMALL_CHUNK = 500  # jobs per JSON text, which must stay below a gigabyte

_COLUMNS = "id, handler, payload, queue, priority, max_attempts"
_MORE_COLUMNS = "available_at, tags, backoff, limits, parked_on, parked_at"
IDS = "SELECT nextval(pg_get_serial_sequence('queuety.jobs', 'id')) FROM generate_series(1, %(count)s)"


def one(conn: Any, job: NewJob, payload: str | None = None) -> int | None:
    """Write a job and return its id, within whatever transaction `conn` is in.

    conn: psycopg connection, or SQLAlchemy Session or Connection.  payload: instead of the job's own.
    For a unique job see unique.one.
    """
    if job.keyed:
        from queuety.store import unique

        return unique.one(conn, job, job.payload if payload is None else payload)
    values: dict[str, Any] = {
        "handler": job.handler,
        "payload": job.payload if payload is None else payload,
        "queue": job.queue,
        "priority": str(int(job.priority)),
        "max_attempts": str(job.max_attempts),
    }
    if job.plain:
        if isinstance(conn, Bounded) and conn.autocommit and connect.idle(conn):  # ours: no need to be polite
            return int(alone(conn, Step("insert_plain", values)).rows[0][0])
        return int(fetch(conn, statement("insert_plain"), _numbered(values))[0])
    values = _numbered(values) | {
        "delay": job.delay_s,
        "due": job.at,
        "tags": list(job.tags) or None,
        "backoff": job.backoff,
        "limits": job.limits,
    }
    return int(fetch(conn, statement("insert"), values)[0])


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
    crowd = Crowd()
    with atomically(conn):
        now = value(raw, "SELECT statement_timestamp()")
        stream = iter(jobs)
        while chunk := list(itertools.islice(stream, CHUNK)):
            if any(job.keyed for job, _ in chunk):
                ids.extend(_unique(conn, itertools.chain(chunk, stream), len(ids)))
                break
            ids.extend(_copy(raw, chunk, now, crowd))
            queues.update({job.queue for job, _ in chunk})
        if queues:
            notices.wake(raw, list(queues))
    return ids


def _many_by_json(conn: Any, jobs: Iterable[tuple[NewJob, str]]) -> numbers[int]:
    """The same through a driver that has no COPY, or must be awaited for it."""
    ids = numbers("q")
    stream = iter(jobs)
    crowd = Crowd()
    with atomically(conn):  # a bad job must take the others with it, also if the caller goes on and commits
        while chunk := list(itertools.islice(stream, SMALL_CHUNK)):
            if any(job.keyed for job, _ in chunk):
                ids.extend(_unique(conn, itertools.chain(chunk, stream), len(ids)))
                break
            new = new_ids(conn, len(chunk))
            rows = [
                as_json(job_id, job, payload, crowd.parked_on(job))
                for job_id, (job, payload) in zip(new, chunk, strict=True)
            ]
            insert_many(conn, rows)
            ids.extend(new)
    return ids


def _unique(conn: Any, jobs: Iterable[tuple[NewJob, str]], before: int) -> numbers[int]:
    from queuety.store import unique

    return unique.many(conn, jobs, before)


def insert_many(conn: Any, jobs: list[dict[str, Any]]) -> None:
    """Write jobs with the ids that they have."""
    run(conn, statement("insert_many"), {"jobs": json.dumps(jobs, ensure_ascii=False)})


class Crowd:
    """Tells which jobs of a bulk call are parked at once, having no room before those in front of them have gone.

    It decides nothing: what is parked needlessly is unparked soon, what is not is stopped at its claim.
    """

    def __init__(self) -> None:
        self._met: dict[str, int] = {}
        self._limits: dict[str, Limits] = {}

    def parked_on(self, job: NewJob) -> str | None:
        if job.limits is None or job.delay_s or job.at:
            return None
        limits = self._limits.get(job.limits)
        if limits is None:
            limits = self._limits[job.limits] = Limits.from_json(job.limits)
        for key, room in (
            (f"group:{limits.group}", limits.concurrency),
            (f"rate:{limits.rate_key}", limits.rate_count),
        ):
            if room is None:
                continue
            met = self._met.get(key, 0)
            if met >= min(room, MOST_READY):
                return key
            self._met[key] = met + 1
        return None


def new_ids(conn: Any, count: int) -> list[int]:
    return [row[0] for row in run(conn, IDS, {"count": count}).fetchall()]


def as_json(job_id: int, job: NewJob, payload: str, parked_on: str | None = None) -> dict[str, Any]:
    """A job for insert_many.sql and replace.sql. parked_on: the key that it is parked on at once."""
    return {
        "id": job_id,
        "handler": job.handler,
        "payload": payload,
        "queue": job.queue,
        "priority": int(job.priority),
        "max_attempts": job.max_attempts,
        "delay": job.delay_s,
        "due": job.at.isoformat() if job.at else None,
        "tags": list(job.tags) or None,
        "backoff": job.backoff,
        "limits": job.limits,
        "parked_on": parked_on,
    }


def _copy(conn: Connection, jobs: list[tuple[NewJob, str]], now: datetime, crowd: Crowd) -> list[int]:
    ids = new_ids(conn, len(jobs))
    plain = all(job.plain for job, _ in jobs)
    columns = _COLUMNS if plain else f"{_COLUMNS}, {_MORE_COLUMNS}"
    rows = _plain_lines(ids, jobs) if plain else _lines(ids, jobs, now, crowd)
    with conn.cursor().copy(f"COPY queuety.jobs ({columns}) FROM STDIN") as copy:
        copy.write("".join(rows))
    return ids


def _plain_lines(ids: list[int], jobs: list[tuple[NewJob, str]]) -> Iterator[str]:
    template: NewJob | None = None
    before = after = ""
    for job_id, (job, payload) in zip(ids, jobs, strict=True):
        if job is not template:
            template = job
            before = f"\t{job.handler}\t"
            after = f"\t{job.queue}\t{job.priority:d}\t{job.max_attempts}\n"
        yield f"{job_id}{before}{_escaped(payload)}{after}"


def _lines(ids: list[int], jobs: list[tuple[NewJob, str]], now: datetime, crowd: Crowd) -> Iterator[str]:
    for line, (job, _) in zip(_plain_lines(ids, jobs), jobs, strict=True):
        at = job.at or now + timedelta(seconds=job.delay_s or 0.0)
        tags = "{" + ",".join(f'"{tag}"' for tag in job.tags) + "}" if job.tags else "\\N"
        backoff = _escaped(job.backoff) if job.backoff else "\\N"
        limits = _escaped(job.limits) if job.limits else "\\N"
        key = crowd.parked_on(job)
        parked = f"{key}\t{now.isoformat()}" if key else "\\N\t\\N"
        yield f"{line[:-1]}\t{at.isoformat()}\t{tags}\t{backoff}\t{limits}\t{parked}\n"


def _escaped(text: str) -> str:
    """JSON text for COPY: it has no raw tabs or line ends, only backslashes."""
    return text.replace("\\", "\\\\") if "\\" in text else text
