"""Connections to PostgreSQL, set up so that a silent network is noticed and a pooler is recognised."""

from __future__ import annotations

import math
import re
from typing import Any

import psycopg
from psycopg import conninfo, errors, pq
from psycopg.rows import TupleRow

from queuety.errors import DatabaseUnreachable, RightsMissing, SchemaMismatch, UsageError
from queuety.redaction import redact_text
from queuety.store.bounded import Bounded

Connection = psycopg.Connection[TupleRow]

# What a statement can raise when the database is in trouble, or we are.
Trouble = psycopg.Error
TROUBLE = (psycopg.Error, DatabaseUnreachable)

# Of a message: relation "queuety.jobs" does not exist, permission denied for schema queuety.
_OUR_SCHEMA = re.compile(r'"queuety[."]|\bschema queuety\b')

# A silent peer is given up after about ten seconds, so that rule "back within 30 s" can hold.
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "client_encoding": "utf8",
}


def parameters(url: str, **extra: Any) -> dict[str, Any]:
    """Return libpq parameters for `url` (URL or keyword string) with our defaults under the user's own.

    Raises UsageError if libpq cannot parse it; the text never repeats the string, since it holds a secret.
    """
    try:
        given: dict[str, Any] = dict(conninfo.conninfo_to_dict(url))
    except psycopg.ProgrammingError as error:
        raise _unparsable(url, str(error)) from None
    defaults = dict(_DEFAULTS)
    if "," in str(given.get("host", "")):
        defaults["target_session_attrs"] = "read-write"
    return {**defaults, **extra, **given}


def _unparsable(url: str, reason: str) -> UsageError:
    """Say what is wrong with the URL without repeating it: it holds a secret, and libpq may repeat all of it."""
    scheme, given, _ = url.partition("://")
    if given and re.fullmatch(r"[\w+.-]{1,40}", scheme) and scheme not in ("postgresql", "postgres"):
        return UsageError(
            f"the database URL begins with {scheme}://", "write postgresql://user:password@host/name"
        )
    if reason.startswith("invalid URI query parameter"):
        return UsageError(f"the database URL cannot be parsed: {reason.strip()}", "leave that parameter out")
    return UsageError(
        "the database URL cannot be parsed",
        "it must look like postgresql://user:password@host/name; encode special characters as %XX",
    )


def connect(
    url: str, *, name: str = "queuety", autocommit: bool = True, patience_s: float = math.inf
) -> Bounded:
    """Open a connection, or raise DatabaseUnreachable with one line that says why.

    name: what pg_stat_activity shows as application_name, unless the URL names another.
    patience_s: a statement that is not answered for so long raises psycopg.OperationalError.
    Transactions are READ COMMITTED whatever the role's default: the claim relies on it.
    Behind a transaction pooler no prepared statements are used (see `_greet`).
    """
    wanted = parameters(url, application_name=name[:63])
    try:
        conn = Bounded.connect(autocommit=True, **wanted)
    except psycopg.Error as error:
        raise unreachable(error) from None
    conn.patience_s = patience_s
    conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    conn.prepare_threshold = None if _greet(conn) else 0
    conn.autocommit = autocommit
    return conn


def _greet(conn: Connection) -> bool:
    """Set the session's zone; True if a transaction pooler stands between us and the server.

    A pooler makes up the process id of the start-up packet; the server knows its own.
    """
    try:
        # UTC, so that any time the database can hold can be shown: in another zone the last hours cannot.
        row = conn.execute(
            "SELECT pg_backend_pid(), set_config('TimeZone', 'UTC', false)", prepare=False
        ).fetchone()
    except psycopg.Error as error:
        raise unreachable(error) from None
    return row is None or row[0] != conn.info.backend_pid


def pin(conn: Connection) -> None:
    """Pin the plans of all that this session does, as pin.sql does for one transaction.

    Not behind a pooler, whose sessions belong to everybody; there each statement is planned anew anyway.
    """
    if conn.prepare_threshold is not None:
        conn.execute(
            """
            SELECT
                set_config('enable_seqscan', 'off', false),
                set_config('enable_bitmapscan', 'off', false),
                set_config('enable_nestloop', 'off', false),
                set_config('enable_mergejoin', 'off', false),
                set_config('enable_sort', 'off', false),
                set_config('plan_cache_mode', 'force_generic_plan', false),
                set_config('jit', 'off', false)
            """
        )


def idle(conn: Connection) -> bool:
    """True if no transaction is open."""
    return conn.pgconn.transaction_status == pq.TransactionStatus.IDLE


def unreachable(error: BaseException) -> DatabaseUnreachable:
    """The error that a caller sees when `error` kept us from the database."""
    if isinstance(error, DatabaseUnreachable):  # it has been through here already
        return error
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        return DatabaseUnreachable(
            f"the database cannot be used: {redact_text(error.diag.message_primary)}",
            "look at the server's log",
        )
    reason = " ".join(redact_text(str(error)).split()).removeprefix("connection failed: ")[:500]
    reason = reason or type(error).__name__
    return DatabaseUnreachable(
        f"the database cannot be reached: {reason}",
        "check QUEUETY_DATABASE_URL and that the server is running",
    )


def translate(error: psycopg.Error, *, own: bool = True) -> Exception:
    """The error of our own tree that says what `error` means, or `error` itself where nothing fits.

    own: False if the statement may have been a user's, about tables of his: then only what names our schema counts.
    """
    about_us = own or _OUR_SCHEMA.search(error.diag.message_primary or "") is not None
    if about_us and isinstance(
        error, errors.UndefinedTable | errors.InvalidSchemaName | errors.UndefinedColumn
    ):
        return SchemaMismatch(
            f"the queue's tables do not fit this version: {error.diag.message_primary}",
            "run: queuety db migrate",
        )
    if about_us and isinstance(error, errors.InsufficientPrivilege):
        return RightsMissing(
            f"the database role lacks a right: {error.diag.message_primary}",
            "grant USAGE on schema queuety and its sequences, and SELECT, INSERT, UPDATE, DELETE on its tables",
        )
    if lost(error) and not again(error) and not isinstance(error, errors.QueryCanceled):
        return unreachable(error)
    return error


def lost(error: BaseException) -> bool:
    """True if `error` means that the database is away for now: worth waiting for, on a new connection."""
    return not unstorable(error) and isinstance(
        error,
        DatabaseUnreachable
        | psycopg.OperationalError
        | psycopg.InterfaceError
        | errors.ReadOnlySqlTransaction
        | errors.IdleInTransactionSessionTimeout,
    )


def refused(error: BaseException) -> bool:
    """True if the role may not write this, or nobody may write anything."""
    return isinstance(error, errors.InsufficientPrivilege | errors.ReadOnlySqlTransaction)


def unstorable(error: BaseException) -> bool:
    """True if a value was refused, not the statement: a result or an error text that cannot be stored."""
    return isinstance(error, psycopg.DataError | errors.UntranslatableCharacter | errors.ProgramLimitExceeded)


def again(error: BaseException) -> bool:
    """True if the same transaction may simply be tried again: deadlock or serialization failure."""
    return isinstance(error, errors.DeadlockDetected | errors.SerializationFailure)
