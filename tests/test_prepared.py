"""Prepared statements of ours on connections that psycopg uses, too."""

from __future__ import annotations

from contextlib import suppress

import psycopg
import pytest

from queuety import Queuety
from queuety.store.connect import Connection
from queuety.store.pipeline import Step, alone, transaction

JOB = {"handler": "h", "payload": "{}", "queue": "default", "priority": "2", "max_attempts": "3"}


def undone(conn: Connection) -> None:
    """A transaction with a statement that psycopg prepares, rolled back: it then drops all that are prepared."""
    conn.execute("SELECT 1", prepare=True)
    with suppress(ZeroDivisionError), conn.transaction():
        raise ZeroDivisionError


def test_an_enqueue_after_a_transaction_that_was_undone_writes_its_job(database: str):
    app = Queuety(database)
    app.enqueue("plain", {})
    app.enqueue("tagged", {}, tags=["red"])  # psycopg prepares this one
    with app._borrow() as conn:
        undone(conn)

    assert app.enqueue("plain", {}).id
    app.close()


@pytest.mark.parametrize("pipelined", [False, True])
def test_statements_that_were_dropped_are_prepared_again(conn: Connection, pipelined: bool):
    def run() -> None:
        transaction(conn, [Step("insert_plain", JOB)]) if pipelined else alone(
            conn, Step("insert_plain", JOB)
        )

    run()
    undone(conn)
    run()

    assert conn.execute("SELECT count(*) FROM queuety.jobs").fetchone() == (2,)


@pytest.mark.parametrize("pipelined", [False, True])
def test_another_failure_is_told_and_tried_once(conn: Connection, pipelined: bool):
    bad = Step("insert_plain", {**JOB, "priority": "9"})
    alone(conn, Step("insert_plain", JOB))

    with pytest.raises(psycopg.errors.CheckViolation):
        transaction(conn, [bad]) if pipelined else alone(conn, bad)

    assert conn.execute("SELECT count(*) FROM queuety.jobs").fetchone() == (1,)
