"""The connection that a caller hands in, whatever it is: psycopg's, or a Session or Connection of SQLAlchemy's."""

from __future__ import annotations

import inspect
import re
from contextlib import AbstractContextManager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from queuety.errors import UsageError
from queuety.store.connect import Connection

_PLACEHOLDER = re.compile(r"%\((\w+)\)s")
_CAST = re.compile(r"::(?=[a-z])")


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


def atomically(conn: Any) -> AbstractContextManager[Any]:
    """All or nothing for what is written within, also if the caller goes on and commits."""
    raw = driver(conn)
    if raw is None:
        return conn.begin_nested()  # type: ignore[no-any-return]
    if not raw.autocommit and raw.info.transaction_status == TransactionStatus.IDLE:
        raw.execute("SELECT")  # begins the caller's transaction; ours would be the outermost one, and commit
    return raw.transaction()


def fetch(conn: Any, text: str, values: dict[str, Any]) -> Any:
    """Run a statement of ours on any kind of connection and return its first row or None."""
    return run(conn, text, values).fetchone()


def run(conn: Any, text: str, values: dict[str, Any]) -> Any:
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


def value(conn: Connection, text: str) -> Any:
    row = conn.cursor(row_factory=tuple_row).execute(text).fetchone()
    assert row is not None
    return row[0]
