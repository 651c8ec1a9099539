"""Requests that are made once however often they are sent: the keys that callers give them, for a while."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from queuety.store.connect import Connection

PRUNED = 20  # lapsed keys that a new one takes along: there are never many more than are in use

# Whoever sends the same key meanwhile waits here for our commit, and then finds what we wrote.
_TAKE = """
    INSERT INTO queuety.http_requests AS r (owner, key, digest)
    VALUES (%(owner)s, %(key)s, %(digest)s)
    ON CONFLICT (owner, key) DO UPDATE
        SET digest = excluded.digest, created_at = statement_timestamp(), job_id = NULL
        WHERE r.created_at <= statement_timestamp() - make_interval(secs => %(window)s::float8)
    RETURNING true
"""
_FIND = (
    "SELECT r.digest, r.job_id FROM queuety.http_requests AS r WHERE r.owner = %(owner)s AND r.key = %(key)s"
)
_KEEP = """
    UPDATE queuety.http_requests AS r SET job_id = %(job)s WHERE r.owner = %(owner)s AND r.key = %(key)s
"""
# Rows that somebody else has locked are left to him: two that prune must not wait for each other.
_PRUNE = """
    DELETE FROM queuety.http_requests AS r
    WHERE (r.owner, r.key) IN (
        SELECT o.owner, o.key
        FROM queuety.http_requests AS o
        WHERE o.created_at <= statement_timestamp() - make_interval(secs => %(window)s::float8)
        ORDER BY o.created_at
        LIMIT %(most)s
        FOR UPDATE SKIP LOCKED
    )
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a key stands for. digest: of the request that was made under it.  new: it was made just now."""

    digest: bytes
    job_id: int
    new: bool


def once(
    conn: Connection, owner: str, key: str, digest: bytes, window_s: float, write: Callable[[], int]
) -> Kept:
    """Write a job under a key, unless the key stands for one already; the key and the job are one transaction.

    owner: whose key it is.  digest: of the request; the caller compares it with the one that is kept.
    window_s: seconds after which a key is forgotten.  write: writes the job with `conn` and returns its id.
    What `write` raises leaves no key behind, so that the same request may be sent again.
    """
    values = {"owner": owner, "key": key, "digest": digest, "window": window_s}
    while True:
        with conn.transaction():
            if conn.execute(_TAKE, values, prepare=False).fetchone() is not None:
                job_id = write()
                conn.execute(_KEEP, {**values, "job": job_id}, prepare=False)
                conn.execute(_PRUNE, {**values, "most": PRUNED}, prepare=False)
                return Kept(digest, job_id, True)
            found = conn.execute(_FIND, values, prepare=False).fetchone()
        if found is not None:  # else it lapsed in between, and is free
            return Kept(bytes(found[0]), found[1], False)
