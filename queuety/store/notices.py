"""NOTIFY as a hint: listen, and take in what has been heard. Polling alone is correct."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from queuety.store.connect import Connection


def listen(conn: Connection, heard: Callable[[str], None]) -> bool:
    """Listen on the queue's channel; False behind a transaction pooler, where that cannot work.

    heard: called with the payload of what arrives while other statements run.
    """
    if conn.prepare_threshold is None:
        return False
    conn.execute("LISTEN queuety")
    conn.add_notify_handler(lambda notice: heard(notice.payload))
    return True


def take_in(conn: Connection, heard: Callable[[str], None]) -> None:
    """Take in what has arrived since, without waiting. Raises psycopg.OperationalError if the server has gone."""
    conn.pgconn.consume_input()
    while (notice := conn.pgconn.notifies()) is not None:
        heard(notice.extra.decode("utf-8", "replace"))


def wake(conn: Connection, queues: Sequence[str]) -> None:
    """Wake the pools that sleep on one of these queues."""
    conn.execute(
        """
        SELECT pg_notify('queuety', 'q:' || s.queue)
        FROM (SELECT DISTINCT t.queue FROM queuety.sleepers AS t WHERE t.queue = ANY (%s::text[])) AS s
        """,
        [list(queues)],
    )


def tell_key(conn: Connection, key: str) -> None:
    """Tell all pools that a limited key has become another: they look at once whether it has room."""
    conn.execute("SELECT pg_notify('queuety', 'k:' || left(%s, 1000))", [key])
