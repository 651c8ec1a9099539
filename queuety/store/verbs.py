"""What a person does to jobs: cancel, retry, bury, delete, purge. Nothing here touches a run that goes on."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from queuety.errors import UsageError, WrongState
from queuety.model import ErrorInfo, State
from queuety.names import check_name, check_queue, quoted
from queuety.store.connect import Connection
from queuety.store.search import check_id, check_state, not_found
from queuety.store.statements import statement
from queuety.store.transactions import repeated
from queuety.texts import MAX_MESSAGE, clean
from queuety.units import LARGEST_WHOLE, seconds, shown

BATCH = 1000  # rows locked by one transaction
PATIENCE_S = 5.0  # how long a verb follows a job that changes its state all the time

_FIRST = -LARGEST_WHOLE - 1
# One statement, one snapshot: a job on its way from one table to another is seen once.
_STATE = """
    SELECT j.state::text, j.cancel_requested, j.unique_key FROM queuety.jobs AS j WHERE j.id = %(id)s::bigint
    UNION ALL
    SELECT f.state::text, false, f.unique_key FROM queuety.finished_jobs AS f WHERE f.id = %(id)s::bigint
    UNION ALL
    SELECT 'buried', false, b.unique_key FROM queuety.buried_jobs AS b WHERE b.id = %(id)s::bigint
"""
_TAKEN = "SELECT h.job_id FROM queuety.key_holders AS h WHERE h.key = %(key)s AND h.held"
_LOCK_KEY = "SELECT FROM queuety.unique_keys AS u WHERE u.key = %(key)s AND u.job_id = %(id)s FOR UPDATE"
_FREE_KEY = "DELETE FROM queuety.unique_keys AS u WHERE u.key = %(key)s AND u.job_id = %(id)s"
_BURIED = """
    SELECT count(*)
    FROM queuety.buried_jobs AS b
    WHERE (%(handler)s::text IS NULL OR b.handler = %(handler)s::text)
        AND (%(queue)s::text IS NULL OR b.queue = %(queue)s::text)
"""
_BEFORE = "SELECT extract(EPOCH FROM statement_timestamp() - make_interval(secs => %(age)s::float8))::float8"
_OLD = """
    SELECT
        (
            SELECT count(*)
            FROM queuety.finished_jobs AS f
            WHERE f.finished_at <= to_timestamp(%(before)s::float8)
                AND f.state = 'completed'
                AND coalesce(%(state)s::text = 'completed', true)
                AND (%(queue)s::text IS NULL OR f.queue = %(queue)s::text)
        ),
        (
            SELECT count(*)
            FROM queuety.finished_jobs AS f
            WHERE f.finished_at <= to_timestamp(%(before)s::float8)
                AND f.state = 'cancelled'
                AND coalesce(%(state)s::text = 'cancelled', true)
                AND (%(queue)s::text IS NULL OR f.queue = %(queue)s::text)
        ),
        (
            SELECT count(*)
            FROM queuety.buried_jobs AS b
            WHERE b.finished_at <= to_timestamp(%(before)s::float8)
                AND coalesce(%(state)s::text = 'buried', true)
                AND (%(queue)s::text IS NULL OR b.queue = %(queue)s::text)
        )
"""


@dataclass(slots=True)
class Purged:
    """How many jobs of each end a purge deleted, or would have."""

    completed: int = 0
    cancelled: int = 0
    buried: int = 0

    @property
    def total(self) -> int:
        return self.completed + self.cancelled + self.buried


def cancel(conn: Connection, job_id: int) -> State:
    """Cancel a job that waits, at once; ask for one that runs to be cancelled.

    Returns the state after the call: CANCELLED, or PROCESSING while the run is being ended. A run that returns
    before it hears of it is completed. Raises JobNotFound, WrongState if it is completed or buried.
    """
    for state, asked, _ in _followed(conn, job_id):
        if state is State.CANCELLED or (state is State.PROCESSING and asked):
            return state
        if state is State.PENDING and _one(conn, "cancel_pending", id=job_id):
            return State.CANCELLED
        if state is State.PROCESSING and _one(conn, "ask_cancel", id=job_id):
            return State.PROCESSING
        if state in (State.COMPLETED, State.BURIED):
            raise WrongState(f"job {job_id} is {state}", "only a pending or running job can be cancelled")
    raise _busy(job_id)


def retry(conn: Connection, job_id: int) -> None:
    """Send a buried or cancelled job back to pending, due now.

    It keeps its id, payload and journal, and gets a fresh budget of max_attempts and no lease.
    Raises JobNotFound, WrongState if it has not ended, is completed, or its unique key is held by another job.
    """
    for state, _, key in _followed(conn, job_id):
        if state is State.BURIED:
            row = _one(conn, "requeue_buried", first=job_id, last=job_id, handler=None, queue=None, size=1)
        elif state is State.CANCELLED:
            row = _one(conn, "requeue_cancelled", id=job_id)
        elif state is State.PENDING:
            raise WrongState(f"job {job_id} is pending already", "it runs when it is due")
        else:
            why = "it has not ended" if state is State.PROCESSING else "enqueue the same again instead"
            raise WrongState(
                f"job {job_id} is {state}: {why}", "only a buried or cancelled job can be retried"
            )
        found, sent, *_ = row or (0, 0)
        if sent:
            return
        if found:  # held back by its unique key
            _refuse_taken(conn, job_id, key)
    raise _busy(job_id)


def retry_buried(
    conn: Connection,
    *,
    handler: str | None = None,
    queue: str | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Send buried jobs back to pending as `retry` does, oldest ids first; return how many.

    limit: at most so many (None: all).  dry_run: only count them.  progress: told the number so far.
    In transactions of up to BATCH jobs; each job is looked at once, so one that is buried again meanwhile is left.
    Jobs that somebody else has locked, and jobs whose unique key another one holds, stay buried.
    """
    values = {
        "handler": None if handler is None else check_name("handler", handler),
        "queue": None if queue is None else check_queue(queue),
    }
    if limit is not None and (type(limit) is not int or limit < 1):
        raise UsageError(f"limit={shown(limit)} is out of range", "give a whole number from 1")
    if dry_run:
        count = int(_scalar(conn, _BURIED, values))
        return count if limit is None else min(count, limit)
    done, first = 0, _FIRST
    while limit is None or done < limit:
        size = BATCH if limit is None else min(BATCH, limit - done)
        row = _steered(conn, "requeue_buried", first=first, last=LARGEST_WHOLE, size=size, **values)
        done += row[1]
        if progress and row[1]:
            progress(done)
        if row[0] < size or row[2] == LARGEST_WHOLE:
            break
        first = row[2] + 1
    return done


def bury(conn: Connection, job_id: int, reason: str) -> None:
    """Bury a job that waits. reason: kept as its error, cleaned and cut. Raises JobNotFound, WrongState."""
    if not isinstance(reason, str):
        raise UsageError(f"the reason is a text, not {type(reason).__name__}", "give a str")
    error = json.dumps(ErrorInfo("Buried", clean(reason, MAX_MESSAGE)).as_json(), ensure_ascii=False)
    for state, *_ in _followed(conn, job_id):
        if state is State.PROCESSING:
            raise WrongState(f"job {job_id} is running", "cancel it, or let it end")
        if state is not State.PENDING:
            raise WrongState(f"job {job_id} is {state}", "only a pending job can be buried")
        if _one(conn, "bury_pending", id=job_id, error=error):
            return
    raise _busy(job_id)


def delete(conn: Connection, job_id: int) -> None:
    """Delete a job that does not run, with its journal and the unique key that it holds, also for a window.

    Raises JobNotFound, WrongState if it runs.
    """
    for state, _, key in _followed(conn, job_id):
        if state is State.PROCESSING:
            raise WrongState(f"job {job_id} is running", "cancel it first")
        if repeated(conn, partial(_deleted, conn, job_id, key)):
            return
    raise _busy(job_id)


def _deleted(conn: Connection, job_id: int, key: str | None) -> bool:
    values = {"id": job_id, "key": key}
    if key is not None:
        # Before the job, as whoever replaces it does: two locks in two orders would be a deadlock.
        conn.execute(_LOCK_KEY, values, prepare=False)
    if conn.execute(statement("delete"), values, prepare=False).fetchone() is None:
        return False
    if key is not None:
        conn.execute(_FREE_KEY, values, prepare=False)
    return True


def purge(
    conn: Connection,
    *,
    older_than_s: float = 0.0,
    state: State | str | None = None,
    queue: str | None = None,
    dry_run: bool = False,
    batch: int = BATCH,
    progress: Callable[[int], None] | None = None,
) -> Purged:
    """Delete jobs that had ended when it began, more than older_than_s seconds ago, with their journals.

    state, queue: only those.  dry_run: only count them.  progress: told the number so far after each batch.
    In transactions of up to `batch` jobs; locked rows are skipped. Waiting and running jobs are never touched.
    """
    age = seconds(older_than_s, what="older_than")
    wanted = None if state is None else check_state(state)
    if wanted is not None and not wanted.final:
        raise UsageError(f"a {wanted} job has not ended: it is not purged", "cancel or delete it")
    if type(batch) is not int or not 1 <= batch <= 100_000:
        raise UsageError(f"batch={shown(batch)} is out of range", "give a whole number from 1 to 100000")
    values = {
        "before": _scalar(conn, _BEFORE, {"age": age}),  # fixed: jobs that end meanwhile are not chased
        "queue": None if queue is None else check_queue(queue),
    }
    if dry_run:
        row = conn.execute(_OLD, {**values, "state": wanted and str(wanted)}, prepare=False).fetchone()
        return Purged(*row) if row else Purged()
    done = Purged()
    if wanted is not State.BURIED:
        state_name = wanted and str(wanted)
        for completed, cancelled in _batches(conn, "purge_finished", batch, **values, state=state_name):
            done.completed += completed
            done.cancelled += cancelled
            if progress:
                progress(done.total)
    if wanted in (None, State.BURIED):
        for (buried,) in _batches(conn, "purge_buried", batch, **values):
            done.buried += buried
            if progress:
                progress(done.total)
    return done


def _batches(conn: Connection, name: str, size: int, **values: Any) -> Iterator[list[int]]:
    """Run a purge statement from id to id until it comes back short; yields its counts."""
    first = _FIRST
    while True:
        *counts, last = _steered(conn, name, first=first, size=size, **values)
        if last is not None:
            yield counts
        if sum(counts) < size or last == LARGEST_WHOLE:
            return
        first = last + 1


def _followed(conn: Connection, job_id: int) -> Iterator[tuple[State, bool, str | None]]:
    """Yield the job's state, whether a cancel was asked for, and its unique key; again and again for a while.

    The caller acts on what it sees. If the job was quicker, nothing has been done, and it looks again.
    Raises JobNotFound.
    """
    check_id(job_id)
    until = time.monotonic() + PATIENCE_S
    pause = 0.0
    while time.monotonic() < until:
        time.sleep(pause)
        row = conn.execute(_STATE, {"id": job_id}, prepare=False).fetchone()
        if row is None:
            raise not_found(job_id)
        yield State(row[0]), row[1], row[2]
        pause = random.uniform(0.5, 1.0) * min(pause * 2 + 0.002, 0.1)


def _refuse_taken(conn: Connection, job_id: int, key: str | None) -> None:
    taken = conn.execute(_TAKEN, {"key": key}, prepare=False).fetchone()
    if taken is not None:
        raise WrongState(
            f"job {job_id} cannot be retried: job {taken[0]} has the unique key {quoted(key or '')}",
            f"wait for job {taken[0]}, or cancel or delete it",
        )


def _one(conn: Connection, name: str, **values: Any) -> tuple[Any, ...] | None:
    return repeated(conn, lambda: conn.execute(statement(name), values, prepare=False).fetchone())


def _steered(conn: Connection, name: str, **values: Any) -> tuple[Any, ...]:
    def work() -> tuple[Any, ...]:
        conn.execute(statement("steer"), prepare=False)
        row = conn.execute(statement(name), values, prepare=False).fetchone()
        assert row is not None
        return row

    return repeated(conn, work)


def _scalar(conn: Connection, text: Any, values: dict[str, Any]) -> Any:
    row = conn.execute(text, values, prepare=False).fetchone()
    assert row is not None
    return row[0]


def _busy(job_id: int) -> WrongState:
    return WrongState(
        f"job {job_id} was held or changed by others for {PATIENCE_S:g} s", "look at it, then try again"
    )
