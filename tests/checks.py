"""What must hold after any test that ran a pool, whatever it did."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from queuety.store.connect import connect
from tests.daemon import Daemon, read_ledger, until
from tests.daemon import remaining as remaining


def starts(ledger: Path) -> Counter[int]:
    """How often each job was really started, by the handlers' own notes."""
    return Counter(entry.job for entry in read_ledger(ledger) if entry.what == "start")


def ends(ledger: Path) -> Counter[int]:
    return Counter(entry.job for entry in read_ledger(ledger) if entry.what == "end")


def states(database: str) -> Counter[str]:
    """How many jobs there are in each state."""
    with connect(database, name="test") as conn:
        return Counter(dict(conn.execute("SELECT state::text, count(*) FROM queuety.all_jobs GROUP BY 1")))


def attempts(database: str) -> dict[int, int]:
    with connect(database, name="test") as conn:
        return dict(conn.execute("SELECT id, attempts FROM queuety.all_jobs"))


def sessions(database: str) -> list[str]:
    """The names of the sessions that pools have on this database."""
    with connect(database, name="test") as conn:
        rows = conn.execute(
            """
            SELECT application_name FROM pg_stat_activity
            WHERE datname = current_database() AND application_name ~ '^queuety (worker|keeper)'
            """
        ).fetchall()
    return [row[0] for row in rows]


def sound(database: str, ledger: Path | None = None, *pools: Daemon, tracebacks: bool = False) -> None:
    """Check a database that no pool works on any more.

    Nothing is processing, no session and no registration of ours is left, every start was counted and none was
    one too many, and no log has a traceback. tracebacks: the handlers raise, so theirs may be there.
    """
    until(lambda: not sessions(database), 10, "no session is left")
    with connect(database, name="test") as conn:
        assert conn.execute("SELECT id FROM queuety.jobs WHERE state = 'processing'").fetchall() == []
        doubled = conn.execute("SELECT id FROM queuety.all_jobs GROUP BY id HAVING count(*) > 1").fetchall()
        assert doubled == []
        rows = conn.execute("SELECT id, attempts, max_attempts FROM queuety.all_jobs").fetchall()
    if ledger is not None:
        started = starts(ledger)
        wrong = [row for row in rows if not started[row[0]] <= row[1] <= row[2]]
        assert wrong == [], "starts <= attempts <= max_attempts"
    for pool in pools:
        assert tracebacks or "Traceback" not in pool.log(), pool.log()
