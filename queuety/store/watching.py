"""Who watches which jobs, and what there is to read for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from queuety.model import Event, State
from queuety.store import reader
from queuety.store.connect import Connection
from queuety.store.statements import array, statement

LINES, BYTES = 100, 65_536  # of one page


@dataclass(frozen=True, slots=True)
class Standing:
    """How a job stands, as far as its stream tells."""

    state: State
    handler: str
    queue: str
    attempts: int
    started_at: datetime | None
    finished_at: datetime | None
    result: Any
    error: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What one reader finds behind the line that it has.

    life: the line that began the life in which the reader is; 0: the first.
    line: the last one that there is up to where the reader is, but for those that tell of a burial; 0: none.
    lines: of the journal, in order.  more: there may be others behind them; then the job is ahead of them.
    job: None if it is gone.
    """

    life: int
    line: int
    lines: list[Event]
    more: bool
    job: Standing | None


def look(
    conn: Connection, readers: Sequence[tuple[int, int]], *, size: int = LINES, limit: int = BYTES
) -> list[Glimpse]:
    """Read on for readers, pairs of a job and the last line that each has, all of one snapshot.

    size: lines for each at most.  limit: bytes of data for each, exceeded by one line at most.
    """
    values = {
        "ids": array([job_id for job_id, _ in readers]),
        "behind": array([after for _, after in readers]),
        "size": size,
        "bytes": limit,
    }
    with conn.transaction():
        # One snapshot: an end must not be seen without the lines before it.
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY", prepare=False)
        jobs = reader.rows(conn, statement("glimpse"), values)
        lines = reader.rows(conn, statement("readers"), values)
    pages: dict[int, tuple[bool, list[Event]]] = {}
    for place, more, number, kind, at, attempt, data in lines:
        page = pages.setdefault(place, (more, []))
        page[1].append(Event(number, readers[place - 1][0], kind, at, attempt, data))
    found: dict[int, Glimpse] = {}
    for place, life, line, state, *rest in jobs:
        more, page_lines = pages.get(place, (False, []))
        job = None if state is None else Standing(State(state), *rest)
        found[place] = Glimpse(life, line, page_lines, more, job)
    return [found[place] for place in range(1, len(readers) + 1)]


def register(conn: Connection, listener: str, job_ids: Sequence[int], lasting_s: float) -> None:
    """Have `listener` notified of what happens to these jobs for the next `lasting_s` seconds; renews that too."""
    conn.execute(
        """
        INSERT INTO queuety.watched (job_id, listener, until)
        SELECT w.id, %s, statement_timestamp() + make_interval(secs => %s::float8)
        FROM unnest(%s::bigint[]) AS w (id)
        ON CONFLICT (job_id, listener) DO UPDATE SET until = excluded.until
        """,
        [listener, lasting_s, array(sorted(job_ids))],
    )


def deregister(conn: Connection, listener: str, job_ids: Sequence[int] | None = None) -> None:
    """Notify `listener` of these jobs no more; None: of any."""
    conn.execute(
        """
        DELETE FROM queuety.watched AS w
        WHERE w.listener = %s AND (%s::bigint[] IS NULL OR w.job_id = ANY (%s::bigint[]))
        """,
        [listener, *[None if job_ids is None else array(sorted(job_ids))] * 2],
    )


def forget_lapsed(conn: Connection) -> int:
    """Forget what listeners that are gone have watched; returns how many rows."""
    return conn.execute("DELETE FROM queuety.watched AS w WHERE w.until < statement_timestamp()").rowcount


def listen(conn: Connection, listener: str, heard: Callable[[str], None]) -> bool:
    """Listen on the listener's own channel; False behind a transaction pooler, where that cannot work.

    heard: called with a job's id, as text, when there may be something to read.
    """
    if conn.prepare_threshold is None:
        return False
    conn.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(listener)))
    conn.add_notify_handler(lambda notice: heard(notice.payload))
    return True
