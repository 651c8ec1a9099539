"""Tokens of the HTTP API: who may do what, by the digest of a secret that is kept nowhere."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from queuety.errors import WrongState
from queuety.names import quoted
from queuety.store import reader
from queuety.store.connect import Connection


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token as it is stored. role: viewer, operator or admin.  digest: SHA-256 of the token."""

    name: str
    role: str
    digest: bytes
    created_at: datetime


def add(conn: Connection, name: str, role: str, digest: bytes) -> None:
    """Keep a token. Raises WrongState if another one has the name: a role is never changed unseen."""
    row = conn.execute(
        """
        INSERT INTO queuety.http_tokens (name, role, digest)
        VALUES (%s, %s, %s)
        ON CONFLICT (name) DO NOTHING
        RETURNING true
        """,
        [name, role, digest],
    ).fetchone()
    if row is None:
        raise WrongState(
            f"there is a token {quoted(name)} already", "remove it first, or choose another name"
        )


def remove(conn: Connection, name: str) -> bool:
    """Forget a token; False if there is none of this name."""
    return bool(conn.execute("DELETE FROM queuety.http_tokens AS t WHERE t.name = %s", [name]).rowcount)


def listing(conn: Connection) -> list[TokenRow]:
    """All tokens by name."""
    rows = reader.rows(
        conn,
        'SELECT t.name, t.role, t.digest, t.created_at FROM queuety.http_tokens AS t ORDER BY t.name COLLATE "C"',
    )
    return [TokenRow(name, role, bytes(digest), at) for name, role, digest, at in rows]
