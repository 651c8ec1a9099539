"""How many connections the server has to spare."""

from __future__ import annotations

from queuety.store.connect import Connection

_SPARE = """
    SELECT
        least(
            current_setting('max_connections')::int
                - CASE
                    WHEN r.rolsuper THEN 0
                    ELSE current_setting('superuser_reserved_connections')::int
                        + coalesce(nullif(current_setting('reserved_connections', true), ''), '0')::int
                END
                - count(a.pid),
            CASE WHEN r.rolconnlimit >= 0 THEN r.rolconnlimit - count(a.pid) FILTER (WHERE a.usesysid = r.oid) END,
            CASE WHEN d.datconnlimit >= 0 THEN d.datconnlimit - count(a.pid) FILTER (WHERE a.datid = d.oid) END
        ) + 1
    FROM pg_roles AS r
    CROSS JOIN pg_database AS d
    CROSS JOIN pg_stat_activity AS a
    WHERE r.rolname = current_user
        AND d.datname = current_database()
        AND a.backend_type = 'client backend'
    GROUP BY r.rolsuper, r.rolconnlimit, d.datconnlimit
"""


def spare(conn: Connection) -> int | None:
    """Connections that this role may open, this one given back: by the limits of server, database and role.

    None behind a pooler: its limits cannot be seen.
    """
    if conn.prepare_threshold is None:
        return None
    row = conn.execute(_SPARE).fetchone()
    return max(0, int(row[0])) if row else None
