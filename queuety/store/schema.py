"""Which schema a database has, and whether this version can work with it."""

from __future__ import annotations

from psycopg import errors as pg

from queuety.errors import DatabaseUnreachable, RightsMissing, SchemaMismatch
from queuety.store.connect import Connection, translate

# The newest revision under migrations/versions; what this version's statements are written for.
EXPECTED = "0004"

# What a worker does to each relation. A caller needs less; the statement that fails says so then.
_DATA = "SELECT, INSERT, UPDATE, DELETE"
_NEEDED = {
    "jobs": _DATA,
    "finished_jobs": _DATA,
    "buried_jobs": _DATA,
    "job_events": _DATA,
    "workers": _DATA,
    "queues": _DATA,
    "profiles": _DATA,
    "unique_keys": _DATA,
    "key_holders": "SELECT",
    "meters": _DATA,
    "starts": _DATA,
    "schedules": _DATA,
    "schedule_ticks": _DATA,
    "http_tokens": _DATA,
    "http_requests": _DATA,
    "webhooks": _DATA,
    "sleepers": _DATA,
    "watched": _DATA,
    "audience": "SELECT",
    "all_jobs": "SELECT",
    "leases": "USAGE",
    "event_ids": "USAGE",
}
_SEQUENCES = {"leases", "event_ids"}

_GRANT = "as the owner: GRANT USAGE ON SCHEMA queuety, SELECT, INSERT, UPDATE, DELETE ON ALL TABLES"
_GRANT += " and USAGE ON ALL SEQUENCES IN SCHEMA queuety to the role"


def check_schema(conn: Connection) -> None:
    """Promise that the schema is the one this version was written for.

    Raises SchemaMismatch if it is missing, older or newer, RightsMissing if the role may not look.
    """
    found = current(conn)
    if found is None:
        raise SchemaMismatch(
            f"the database {conn.info.dbname!r} has no Queuety schema", "run `queuety db migrate`"
        )
    if found < EXPECTED:
        raise SchemaMismatch(
            f"the schema is at revision {found}, older than {EXPECTED}, which this version needs",
            "run `queuety db migrate`",
        )
    if found > EXPECTED:
        raise SchemaMismatch(
            f"the schema is at revision {found}, newer than {EXPECTED}, the last that this version knows",
            "update Queuety here; `queuety db migrate` only moves forward",
        )


def check_writable(conn: Connection) -> None:
    """Promise that the database takes writes now. Raises DatabaseUnreachable on a standby or a read-only one."""
    row = conn.execute("SELECT pg_is_in_recovery(), current_setting('transaction_read_only')").fetchone()
    if row is not None and (row[0] or row[1] == "on"):
        raise DatabaseUnreachable(
            f"the database {conn.info.dbname!r} is read-only",
            "point QUEUETY_DATABASE_URL at the primary server",
        )


def check_rights(conn: Connection) -> None:
    """Promise that the role may do all that a worker does.

    Raises RightsMissing naming every right that is not there: a missing one would look like an empty queue.
    """
    with conn.transaction():
        rows = conn.execute(
            """
            SELECT name, array_agg(privilege ORDER BY place)
            FROM unnest(%s::text[], %s::text[], %s::boolean[]) AS needed (name, privileges, sequence),
                 unnest(string_to_array(privileges, ', ')) WITH ORDINALITY AS one (privilege, place)
            WHERE NOT CASE WHEN sequence THEN has_sequence_privilege('queuety.' || name, privilege)
                           ELSE has_table_privilege('queuety.' || name, privilege) END
            GROUP BY name ORDER BY name COLLATE "C"
            """,
            [list(_NEEDED), list(_NEEDED.values()), [name in _SEQUENCES for name in _NEEDED]],
        ).fetchall()
    if rows:
        lacking = "; ".join(f"{', '.join(privileges)} on {name}" for name, privileges in rows)
        raise RightsMissing(f"the role {conn.info.user!r} lacks rights in schema queuety: {lacking}", _GRANT)


def current(conn: Connection) -> str | None:
    """The revision that the database is at; None without a schema.

    Raises RightsMissing if the role may not look.
    """
    try:
        # A savepoint, should the caller be in a transaction: a missing table must not spoil that.
        with conn.transaction():
            row = conn.execute("SELECT version_num FROM queuety.schema_version").fetchone()
    except (pg.UndefinedTable, pg.InvalidSchemaName):
        return None
    except pg.InsufficientPrivilege as error:
        raise translate(error) from None
    return str(row[0]) if row else None
