"""What the runs of handlers have taken, by minute: written by workers now and then, read before a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from queuety.store.connect import Connection
from queuety.store.statements import array, statement, texts


class Taken(NamedTuple):
    """What a handler's runs have taken together.

    seconds: of all runs.  durations: runs by class of duration.  peak: bytes that a run has taken at most.
    passing: bytes that one has taken and given back.  None: unknown.
    """

    handler: str
    runs: int
    seconds: float
    durations: Sequence[int]
    peak: int | None = None
    passing: int | None = None


def add(conn: Connection, taken: Iterable[Taken]) -> None:
    """Add runs to the current minute. Rows are locked in one order, so that no two workers wait for each other."""
    rows = list(taken)
    if not rows:
        return
    _run(
        conn,
        "add_profiles",
        handlers=texts([row.handler for row in rows]),
        runs=array([row.runs for row in rows]),
        seconds=array([row.seconds for row in rows]),
        durations=texts([array(row.durations) for row in rows]),
        peaks=texts([None if row.peak is None else str(row.peak) for row in rows]),
        passing=texts([None if row.passing is None else str(row.passing) for row in rows]),
    )


def read(conn: Connection, handlers: Sequence[str], window_s: float) -> list[Taken]:
    """What these handlers' runs of the last `window_s` seconds have taken; a handler without any is left out."""
    rows = _run(conn, "profiles", handlers=texts(list(handlers)), window=window_s).fetchall()
    return [Taken._make(row) for row in rows]


def prune(conn: Connection, window_s: float) -> int:
    """Forget what is older than twice the window; returns how many minutes."""
    return int(
        conn.execute(
            """
            DELETE FROM queuety.profiles AS p
            WHERE p.minute < statement_timestamp() - make_interval(secs => 2 * %s::float8)
            """,
            [window_s],
        ).rowcount
    )


def _run(conn: Connection, name: str, **values: Any) -> Any:
    return conn.execute(statement(name), values, prepare=conn.prepare_threshold is not None)
