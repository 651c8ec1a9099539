"""Write unique jobs: one, or many at once. The database function take_keys says who holds a key."""

from __future__ import annotations

import itertools
import json
import tempfile
from array import array as numbers
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.pq import TransactionStatus

from queuety.errors import DuplicateJob, RightsMissing
from queuety.model import NewJob
from queuety.names import quoted
from queuety.store import connect
from queuety.store.caller import atomically, driver, fetch, run
from queuety.store.enqueue import SMALL_CHUNK, Crowd, as_json, insert_many, new_ids
from queuety.store.statements import statement
from queuety.store.transactions import TRIES, pause
from queuety.unique import key_of

T = TypeVar("T")

CHUNK = 2000  # keys taken by one statement
SPOOLED = 32 << 20  # bytes of payloads in memory; what is more goes to a file
ROUNDS = (
    3  # a job that is to be replaced may start in the meantime; then it has given up its key, or is running
)

_REPLACING = "as the owner: GRANT UPDATE ON queuety.jobs, SELECT, UPDATE ON queuety.unique_keys"
_REPLACING += ' and INSERT ON queuety.job_events to the role, or use on_duplicate="return"'

_TAKE = """
    SELECT t.key, t.holder
    FROM queuety.take_keys(
        %(keys)s::text[], %(ids)s::bigint[], %(untils)s::text[], %(windows)s::float8[], %(locking)s::boolean
    ) AS t
"""


def one(conn: Any, job: NewJob, payload: str) -> int | None:
    """Write a unique job, unless another holds its key; return the id of the one that holds it then.

    If another holds it, job.on_duplicate decides: "return" its id, "skip" (None), "error" (DuplicateJob), or
    "replace" what it is to do, under its old id, if it is pending (DuplicateJob if not).
    Whoever has written a job with the key and not committed is waited for.
    """
    key = key_of(job, payload)
    assert key is not None
    values = {
        "handler": job.handler,
        "payload": payload,
        "queue": job.queue,
        "priority": int(job.priority),
        "max_attempts": job.max_attempts,
        "delay": job.delay_s,
        "due": job.at,
        "tags": list(job.tags) or None,
        "backoff": job.backoff,
        "limits": job.limits,
        "unique_key": key,
        "unique_until": job.until,
        "unique_for": job.unique_for_s,
        "locking": job.on_duplicate == "replace",
    }
    if job.on_duplicate == "replace":
        return _again(conn, lambda: _written_or_replaced(conn, job, key, payload, values))
    holder, fresh = _again(conn, lambda: fetch(conn, statement("insert_unique"), values))[:2]
    if fresh or job.on_duplicate == "return":
        return int(holder)
    if job.on_duplicate == "skip":
        return None
    raise _taken(key, holder)


def _written_or_replaced(conn: Any, job: NewJob, key: str, payload: str, values: dict[str, Any]) -> int:
    holder = 0
    with atomically(conn):  # the key stays locked between the two statements
        for _ in range(ROUNDS):
            holder, fresh = fetch(conn, statement("insert_unique"), values)[:2]
            if fresh or _replace(conn, [_row(holder, job, key, payload)]):
                return int(holder)
    raise _running(key, holder)


def _again(conn: Any, work: Callable[[], T]) -> T:
    """Run `work`, and again after a deadlock or serialization failure, unless a transaction of the caller's is open."""
    raw = driver(conn)
    alone = raw is not None and raw.autocommit and raw.info.transaction_status == TransactionStatus.IDLE
    for attempt in range(1, TRIES):
        try:
            return work()
        except psycopg.OperationalError as error:
            if not alone or not connect.again(error):
                raise
        pause(attempt)
    return work()


def many(conn: Any, jobs: Iterable[tuple[NewJob, str]], before: int = 0) -> numbers[int]:
    """Write jobs of which some are unique, all or nothing, in a transaction that is open; return their ids in order.

    before: jobs of the same call that are written already; only for messages.
    A job that is left out (on_duplicate "skip") has no id among them; one whose key is held by another, in the
    table or before it in the batch, has the id of that one.
    All keys are taken before anything is written, in their order, so that two such calls never deadlock. Against
    others that take several keys one by one it is tried again.
    """
    with _Spool(jobs, before) as spool:
        for attempt in itertools.count(1):
            try:
                with atomically(conn):
                    return _write(conn, spool)
            except pg.DeadlockDetected:
                if attempt == TRIES:
                    raise
                pause(attempt)
    raise AssertionError("unreachable")


class _Spool:
    """The jobs of one call: their keys in memory, their payloads in a file if they are many."""

    def __init__(self, jobs: Iterable[tuple[NewJob, str]], before: int) -> None:
        self.before = before
        self.keys: list[str | None] = []
        self._templates: list[NewJob] = []
        self._template = numbers("l")  # of each place
        self._starts = numbers("q")
        self._file = tempfile.SpooledTemporaryFile(SPOOLED)  # noqa: SIM115 - closed by __exit__
        try:
            for job, payload in jobs:
                self._add(job, payload)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> _Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self.keys)

    def _add(self, job: NewJob, payload: str) -> None:
        if not self._templates or self._templates[-1] is not job:
            self._templates.append(job)
        self._template.append(len(self._templates) - 1)
        self._starts.append(self._file.tell())
        self._file.write(payload.encode())
        self.keys.append(key_of(job, payload))

    def job(self, place: int) -> NewJob:
        return self._templates[self._template[place]]

    def payload(self, place: int) -> str:
        start = self._starts[place]
        end = self._starts[place + 1] if place + 1 < len(self) else None
        self._file.seek(start)
        return self._file.read(-1 if end is None else end - start).decode()

    def groups(self) -> Iterator[tuple[str, list[int]]]:
        """Each key in its order with the places that have it."""
        places = sorted((place for place, key in enumerate(self.keys) if key is not None), key=self._key)
        for key, group in itertools.groupby(places, self._key):
            yield key, list(group)

    def _key(self, place: int) -> str:
        return self.keys[place] or ""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What becomes of each place. ids: of the job that it stands for, 0: left out.  source: the place whose content
    is written under the id of this one, -1: nothing is."""

    own: numbers[int]
    ids: numbers[int]
    source: numbers[int]


def _write(conn: Any, spool: _Spool) -> numbers[int]:
    own = numbers("q")
    while len(own) < len(spool):
        own.extend(new_ids(conn, min(10_000, len(spool) - len(own))))
    plan = _Plan(own, own[:], numbers("q", range(len(spool))))
    locking = any(job.on_duplicate == "replace" for job in spool._templates)
    groups = spool.groups()
    while chunk := list(itertools.islice(groups, CHUNK)):
        _settle(conn, spool, plan, chunk, locking)
    rows: list[dict[str, Any]] = []
    crowd = Crowd()
    for place, source in enumerate(plan.source):
        if source >= 0:
            job = spool.job(source)
            row = _row(own[place], job, spool.keys[source], spool.payload(source))
            rows.append(row | {"parked_on": crowd.parked_on(job)})
        if rows and (len(rows) == SMALL_CHUNK or place == len(spool) - 1):
            insert_many(conn, rows)
            rows.clear()
    return numbers("q", (job_id for job_id in plan.ids if job_id))


def _settle(
    conn: Any, spool: _Spool, plan: _Plan, groups: list[tuple[str, list[int]]], locking: bool
) -> None:
    """Take the keys of these groups, decide what becomes of each place, and replace what is to be replaced."""
    for _ in range(ROUNDS):
        holders = _take(conn, spool, plan, groups, locking)
        replacing: dict[int, int] = {}
        for key, places in groups:
            content = _decide(spool, plan, key, places, holders[key])
            if content >= 0:
                replacing[holders[key]] = content
        if not replacing:
            return
        rows = [
            _row(job_id, spool.job(place), None, spool.payload(place)) for job_id, place in replacing.items()
        ]
        done = _replace(conn, rows)
        groups = [(key, places) for key, places in groups if holders[key] in replacing.keys() - done]
        if not groups:
            return
    key, _ = groups[0]
    raise _running(key, holders[key])


def _decide(spool: _Spool, plan: _Plan, key: str, places: list[int], holder: int) -> int:
    """Say what becomes of the places of one key; return the place that is to replace a job of before, or -1."""
    first = places[0]
    fresh = holder == plan.own[first]
    content = first if fresh else -1
    for place in places[fresh:]:
        job = spool.job(place)
        if job.on_duplicate == "error":
            raise _twice(key, spool.before + first, spool.before + place) if fresh else _taken(key, holder)
        plan.ids[place] = 0 if job.on_duplicate == "skip" else holder
        plan.source[place] = -1
        if job.on_duplicate == "replace":
            content = place
    if fresh:
        plan.ids[first], plan.source[first] = holder, content
        return -1
    return content


def _take(
    conn: Any, spool: _Spool, plan: _Plan, groups: list[tuple[str, list[int]]], locking: bool
) -> dict[str, int]:
    firsts = [places[0] for _, places in groups]
    jobs = [spool.job(place) for place in firsts]
    values = {
        "keys": [key for key, _ in groups],
        "ids": [plan.own[place] for place in firsts],
        "untils": [job.until for job in jobs],
        "windows": [job.unique_for_s for job in jobs],
        "locking": locking,
    }
    return {row[0]: row[1] for row in run(conn, _TAKE, values).fetchall()}


def _replace(conn: Any, rows: list[dict[str, Any]]) -> set[int]:
    """Give pending jobs, whose keys are locked, another content; return the ids of those that were pending.

    Raises RightsMissing: a role that only enqueues may do all the rest.
    """
    try:
        done = run(conn, statement("replace"), {"jobs": json.dumps(rows, ensure_ascii=False)}).fetchall()
    except Exception as error:
        below = getattr(error, "orig", error)  # SQLAlchemy's errors have the driver's
        if getattr(below, "sqlstate", getattr(below, "pgcode", None)) != pg.InsufficientPrivilege.sqlstate:
            raise
        reason = str(below).splitlines()[0]
        raise RightsMissing(
            f'the database role lacks a right that on_duplicate="replace" needs: {reason}', _REPLACING
        ) from error
    return {row[0] for row in done}


def _row(job_id: int, job: NewJob, key: str | None, payload: str) -> dict[str, Any]:
    row = as_json(job_id, job, payload)
    if job.keyed:
        row |= {"unique_key": key, "unique_until": job.until, "unique_for": job.unique_for_s}
    return row


def _taken(key: str, holder: int) -> DuplicateJob:
    return DuplicateJob(
        f"job {holder} has the unique key {quoted(key)}",
        'wait for it, or use on_duplicate="return"',
        existing=holder,
    )


def _twice(key: str, first: int, place: int) -> DuplicateJob:
    return DuplicateJob(
        f"items {first} and {place} of a bulk enqueue have the same unique key {quoted(key)}",
        'leave one out, or use on_duplicate="return" or "skip"',
        existing=0,
    )


def _running(key: str, holder: int) -> DuplicateJob:
    return DuplicateJob(
        f"job {holder} has the unique key {quoted(key)} and is not pending any more: it cannot be replaced",
        "wait for its end, or for that of its window",
        existing=holder,
    )
