"""Find and list jobs in any state."""

from __future__ import annotations

from typing import Any

from queuety.errors import JobNotFound, UsageError
from queuety.model import Job, Priority, State
from queuety.names import check_name, check_queue
from queuety.store import reader
from queuety.store.connect import Connection
from queuety.units import LARGEST_WHOLE, shown

MOST = 10_000  # jobs of one page

_COLUMNS = """
    a.id, a.queue, a.handler, a.state::text, a.priority, a.attempts, a.max_attempts, a.payload, a.result, a.error,
    a.tags, a.parked_on, a.unique_key, a.worker, a.available_at, a.created_at, a.started_at, a.finished_at
"""
# The branches of the view all_jobs. Each is limited by itself: over the view, the limit would come after all.
_LIVE = """
    SELECT
        id, queue, handler, state, priority, attempts, max_attempts, payload, NULL::json AS result, error, tags,
        parked_on, unique_key, worker, available_at, created_at, claimed_at AS started_at,
        NULL::timestamptz AS finished_at
    FROM queuety.jobs
"""
_FINISHED = """
    SELECT
        id, queue, handler, state, priority, attempts, max_attempts, payload, result, error, tags,
        NULL::text AS parked_on, unique_key, worker, available_at, created_at, started_at, finished_at
    FROM queuety.finished_jobs
"""
_BURIED = """
    SELECT
        id, queue, handler, 'buried'::queuety.job_state AS state, priority, attempts, max_attempts, payload,
        NULL::json AS result, error, tags, NULL::text AS parked_on, unique_key, worker, available_at, created_at,
        started_at, finished_at
    FROM queuety.buried_jobs
"""
_BRANCHES = {
    State.PENDING: _LIVE,
    State.PROCESSING: _LIVE,
    State.COMPLETED: _FINISHED,
    State.CANCELLED: _FINISHED,
    State.BURIED: _BURIED,
}


def find(conn: Connection, job_id: int) -> Job:
    """The job with this id, in any state. Raises JobNotFound.

    Times beyond what Python's datetime can hold come as the nearest it can; see reader.rows.
    Index: the primary keys.
    """
    check_id(job_id)
    found = reader.rows(
        conn, f"SELECT {_COLUMNS} FROM queuety.all_jobs AS a WHERE a.id = %(id)s", {"id": job_id}
    )
    if not found:
        raise not_found(job_id)
    return _job(found[0])


def jobs(
    conn: Connection,
    *,
    state: State | str | None = None,
    queue: str | None = None,
    handler: str | None = None,
    tag: str | None = None,
    limit: int = 100,
    after: int | None = None,
) -> list[Job]:
    """Jobs that fit all that is given, newest first.

    limit: 1 to MOST.  after: the last id of the page before; the next page begins below it.
    Walks the primary keys downwards until the page is full: a filter that hardly any job fits reads them all.
    """
    text, values = query(state=state, queue=queue, handler=handler, tag=tag, limit=limit, after=after)
    return [_job(row) for row in reader.rows(conn, text, values)]


def query(
    *,
    state: State | str | None = None,
    queue: str | None = None,
    handler: str | None = None,
    tag: str | None = None,
    limit: int = 100,
    after: int | None = None,
) -> tuple[str, dict[str, Any]]:
    """The statement of `jobs` and its values. Raises UsageError for what cannot be meant."""
    if type(limit) is not int or not 1 <= limit <= MOST:
        raise UsageError(f"limit={shown(limit)} is out of range", f"give a whole number from 1 to {MOST}")
    where: list[str] = []
    values: dict[str, Any] = {"limit": limit}
    tables = [_LIVE, _FINISHED, _BURIED]
    if state is not None:
        wanted = check_state(state)
        tables = [_BRANCHES[wanted]]
        if wanted is not State.BURIED:
            where.append("state = %(state)s::queuety.job_state")
            values["state"] = str(wanted)
            if wanted is State.PROCESSING:
                where.append("lease_until IS NOT NULL")  # says the same, and has an index
    if queue is not None:
        where.append("queue = %(queue)s")
        values["queue"] = check_queue(queue)
    if handler is not None:
        where.append("handler = %(handler)s")
        values["handler"] = check_name("handler", handler)
    if tag is not None:
        where.append("%(tag)s = ANY (tags)")
        values["tag"] = check_name("tag", tag)
    if after is not None:
        where.append("id < %(after)s")
        values["after"] = check_id(after, "after")
    filters = f"WHERE {' AND '.join(where)}" if where else ""
    pages = "\nUNION ALL\n".join(f"({table} {filters} ORDER BY id DESC LIMIT %(limit)s)" for table in tables)
    return f"SELECT {_COLUMNS} FROM ({pages}) AS a ORDER BY a.id DESC LIMIT %(limit)s", values


def check_id(job_id: object, what: str = "id") -> int:
    """Return a job's id, or raise UsageError if it is no 64-bit integer."""
    if type(job_id) is not int or not -LARGEST_WHOLE - 1 <= job_id <= LARGEST_WHOLE:
        raise UsageError(
            f"{what}={shown(job_id)} is no job's id", f"give a whole number up to {LARGEST_WHOLE}"
        )
    return job_id


def check_state(state: object) -> State:
    """Return a state given by name, or raise UsageError."""
    try:
        return State(state)  # type: ignore[arg-type]
    except ValueError:
        raise UsageError(f"there is no state {shown(state)}", f"give one of {', '.join(State)}") from None


def not_found(job_id: int) -> JobNotFound:
    return JobNotFound(f"there is no job {job_id}", "it never was, it was deleted, or its retention is over")


def _job(row: tuple[Any, ...]) -> Job:
    job_id, queue, handler, state, priority, attempts, most, payload, result, error, tags, *rest = row
    return Job(
        job_id, queue, handler, State(state), Priority(priority), attempts, most, payload, result, error,
        tuple(tags or ()), *rest,
    )  # fmt: skip
