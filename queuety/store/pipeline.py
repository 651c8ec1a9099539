"""Several prepared statements in one message to the server and one answer: what the hot path is made of.

psycopg's own pipeline sends each statement by itself and waits at the ends of a transaction. On a machine that has
to be woken for each answer that is most of a claim's time, so this speaks to libpq directly.
"""

from __future__ import annotations

import math
import re
import select
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

from queuety.store.connect import Connection
from queuety.store.statements import statement

_PLACEHOLDER = re.compile(r"%\((\w+)\)s")
_OURS = {"begin": "BEGIN ISOLATION LEVEL READ COMMITTED", "commit": "COMMIT"}

# Names of the statements that each connection has prepared.
_PREPARED: WeakKeyDictionary[Connection, set[str]] = WeakKeyDictionary()

Values = Mapping[str, str | None]


class Step(NamedTuple):
    """One statement by its file's name, with its parameters as PostgreSQL writes them in text."""

    name: str
    values: Values


class Answer(NamedTuple):
    """What one statement gave. affected: rows."""

    affected: int
    rows: list[tuple[Any, ...]]


def transaction(conn: Connection, steps: Sequence[Step]) -> list[Answer]:
    """Run the steps as one transaction in one round trip; returns the answer of each.

    Raises what psycopg would raise; nothing has been done then, unless the connection was lost at the commit.
    """
    pgconn = conn.pgconn
    if pgconn.status != pq.ConnStatus.OK:
        raise psycopg.OperationalError("the connection is closed")
    if pgconn.transaction_status != pq.TransactionStatus.IDLE:
        raise psycopg.ProgrammingError("the connection is in a transaction already")
    wanted = [Step("begin", {}), *steps, Step("commit", {})]
    pgconn.enter_pipeline_mode()
    try:
        sent = [_send(conn, step) for step in wanted]
        pgconn.pipeline_sync()
        answers, failure = _receive(conn, sent)
    except BaseException:
        pgconn.finish()  # answers are under way that nobody will read
        raise
    pgconn.exit_pipeline_mode()
    if failure is not None:
        if pgconn.transaction_status != pq.TransactionStatus.IDLE:
            pgconn.exec_(b"ROLLBACK")
        known, _PREPARED[conn] = _PREPARED.get(conn, set()), _still_prepared(conn)
        if _were_dropped(failure, known - _PREPARED[conn]):
            return transaction(conn, steps)  # nothing was done; what is missing is prepared this time
        raise failure
    return answers[1:-1]


def alone(conn: Connection, step: Step) -> Answer:
    """Run one step as a transaction of its own: what `conn.execute` does, for a fraction of its time."""
    pgconn = conn.pgconn
    if pgconn.transaction_status != pq.TransactionStatus.IDLE:
        raise psycopg.ProgrammingError("the connection is in a transaction already")
    text, names = _compiled(step.name)
    values = _encoded(step, names)
    try:
        if conn.prepare_threshold is None:
            pgconn.send_query_params(text, values)
        else:
            prepared = _PREPARED.setdefault(conn, set())
            label = b"queuety_" + step.name.encode()
            if step.name not in prepared:
                pgconn.send_prepare(label, text)
                _only(conn)
                prepared.add(step.name)
            pgconn.send_query_prepared(label, values)
        return _answer(conn, _only(conn))
    except psycopg.errors.InvalidSqlStatementName:
        known, _PREPARED[conn] = _PREPARED.get(conn, set()), set()
        if not known:
            raise
        return alone(conn, step)
    except psycopg.Error:
        raise  # the server's word on the statement, or the end of the connection
    except BaseException:
        pgconn.finish()  # an answer is under way that nobody will read
        raise


def _were_dropped(failure: psycopg.Error, gone: set[str]) -> bool:
    """True if statements that we had prepared are not there any more.

    After a transaction that was rolled back psycopg drops all that are prepared, ours too, if it had any of its own.
    """
    return bool(gone) and isinstance(failure, psycopg.errors.InvalidSqlStatementName)


def _only(conn: Connection) -> pq.abc.PGresult:
    """The one result of the statement sent last."""
    result = _next(conn)
    if result is None:
        raise psycopg.OperationalError("the server gave no answer")
    while _next(conn) is not None:
        pass
    if result.status == pq.ExecStatus.FATAL_ERROR:
        raise psycopg.errors.error_from_result(result, encoding=conn.info.encoding)
    return result


def _encoded(step: Step, names: tuple[str, ...]) -> list[bytes | None]:
    return [None if (value := step.values[name]) is None else value.encode() for name in names]


def _send(conn: Connection, step: Step) -> int:
    """Queue a step; returns how many results it will bring."""
    text, names = _compiled(step.name)
    values = _encoded(step, names)
    pgconn = conn.pgconn
    if conn.prepare_threshold is None:  # a pooler stands between
        pgconn.send_query_params(text, values)
        return 1
    prepared = _PREPARED.setdefault(conn, set())
    label = b"queuety_" + step.name.encode()
    results = 1
    if step.name not in prepared:
        pgconn.send_prepare(label, text)
        prepared.add(step.name)
        results = 2
    pgconn.send_query_prepared(label, values)
    return results


def _receive(conn: Connection, sent: list[int]) -> tuple[list[Answer], psycopg.Error | None]:
    """Collect the answers up to the sync, and the first error among them."""
    answers: list[Answer] = []
    failure: psycopg.Error | None = None
    for results in sent:
        answer = Answer(0, [])
        for _ in range(results):
            result = _next(conn)
            if result is None:
                break
            if result.status == pq.ExecStatus.FATAL_ERROR and failure is None:
                failure = psycopg.errors.error_from_result(result, encoding=conn.info.encoding)
            elif failure is None:
                answer = _answer(conn, result)
            _next(conn)  # the end of this statement's results
        answers.append(answer)
    _next(conn)  # the sync itself
    return answers, failure


def _answer(conn: Connection, result: pq.abc.PGresult) -> Answer:
    rows: list[tuple[Any, ...]] = []
    if result.status == pq.ExecStatus.TUPLES_OK and result.ntuples:
        transformer = Transformer(conn)
        transformer.set_pgresult(result)
        rows = transformer.load_rows(0, result.ntuples, tuple)
    return Answer(result.command_tuples or 0, rows)


def _next(conn: Connection) -> pq.abc.PGresult | None:
    """Wait for the next result. Here signal handlers run, which they could not while libpq itself waited."""
    pgconn = conn.pgconn
    until = time.monotonic() + getattr(conn, "patience_s", math.inf)
    while True:
        unsent = pgconn.flush()
        if not pgconn.is_busy():
            return pgconn.get_result()
        poll = select.poll()
        poll.register(pgconn.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
        if not poll.poll(1000) and time.monotonic() > until:
            raise psycopg.OperationalError("no answer: the network or the server is silent")
        pgconn.consume_input()


def _still_prepared(conn: Connection) -> set[str]:
    """After an error nobody knows which statements got prepared: ask."""
    try:
        rows = conn.execute(
            "SELECT name FROM pg_prepared_statements WHERE name LIKE 'queuety\\_%%'", prepare=False
        ).fetchall()
    except psycopg.Error:
        return set()
    return {str(row[0]).removeprefix("queuety_") for row in rows}


@cache
def _compiled(name: str) -> tuple[bytes, tuple[str, ...]]:
    """The statement's text with $1, $2 … and the parameters' names in that order."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    text = _PLACEHOLDER.sub(number, _OURS.get(name) or statement(name))
    return text.encode(), tuple(names)
