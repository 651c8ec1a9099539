"""Webhooks: who is told of the ends of jobs. Their secrets are read by whoever delivers, and by nobody else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from queuety.errors import WebhookExists, WebhookNotFound
from queuety.model import Webhook
from queuety.names import check_name, quoted
from queuety.store import reader
from queuety.store.connect import Connection

HANDLER = "queuety.webhook"  # of the deliveries; as in queuety.announce, in the migrations

_COLUMNS = """
    w.name, w.url, w.events, w.handlers, w.queues, w.tags, w.deliver_on, w.concurrency, w.max_attempts,
    ARRAY(SELECT json_object_keys(w.headers) ORDER BY 1), w.allow_private,
    CASE WHEN w.old_secret_until > statement_timestamp() THEN w.old_secret_until END,
    w.paused_at, w.pause_reason, w.created_at
"""


@dataclass(frozen=True, slots=True)
class Receiver:
    """What a delivery needs.

    secrets: that sign, the current one first.  paused: why, None: it is not.  backoff: JSON, as its deliveries have it.
    """

    url: str
    allow_private: bool
    paused: str | None
    secrets: tuple[str, ...] = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    backoff: object


def add(conn: Connection, webhook: Webhook, backoff: str, headers: dict[str, str], secret: str) -> Webhook:
    """Keep a webhook. Raises WebhookExists.

    backoff: JSON, as jobs have it.
    """
    found = conn.execute(
        """
        INSERT INTO queuety.webhooks (
            name, url, events, handlers, queues, tags, deliver_on, concurrency, max_attempts, backoff, headers,
            allow_private, secret
        )
        VALUES (
            %s, %s, %s::text[], %s::text[], %s::text[], %s::text[], %s, %s::int, %s::int, %s::json, %s::json, %s, %s
        )
        ON CONFLICT (name) DO NOTHING
        """,
        [
            webhook.name, webhook.url, list(webhook.events), list(webhook.handlers), list(webhook.queues),
            list(webhook.tags), webhook.deliver_on, webhook.concurrency, webhook.max_attempts, backoff,
            json.dumps(headers), webhook.allow_private, secret,
        ],
    )  # fmt: skip
    if not found.rowcount:
        raise WebhookExists(
            f"there is a webhook {quoted(webhook.name)} already", "remove it first, or choose another name"
        )
    return find(conn, webhook.name)


def find(conn: Connection, name: str) -> Webhook:
    """The webhook with this name. Raises WebhookNotFound."""
    key = check_name("webhook", name)
    found = reader.rows(
        conn, f"SELECT {_COLUMNS} FROM queuety.webhooks AS w WHERE w.name = %(name)s", {"name": key}
    )
    if not found:
        raise unknown(key)
    return _webhook(found[0])


def listing(conn: Connection, *, after: str | None = None, limit: int = 100) -> list[Webhook]:
    """Webhooks by name. after: the last name of the page before."""
    rows = reader.rows(
        conn,
        f"""
        SELECT {_COLUMNS}
        FROM queuety.webhooks AS w
        WHERE %(after)s::text IS NULL OR w.name > %(after)s
        ORDER BY w.name
        LIMIT %(limit)s
        """,
        {"after": after, "limit": limit},
    )
    return [_webhook(row) for row in rows]


def receiver(conn: Connection, name: str) -> Receiver | None:
    """What a delivery needs of a webhook; None if it is gone."""
    rows = reader.rows(
        conn,
        """
        SELECT
            w.url, w.allow_private, CASE WHEN w.paused_at IS NOT NULL THEN coalesce(w.pause_reason, '') END, w.secret,
            CASE WHEN w.old_secret_until > statement_timestamp() THEN w.old_secret END, w.headers,
            w.backoff
        FROM queuety.webhooks AS w
        WHERE w.name = %(name)s
        """,
        {"name": name},
    )
    if not rows:
        return None
    url, allow_private, paused, secret, old, headers, backoff = rows[0]
    return Receiver(url, allow_private, paused, (secret, old) if old else (secret,), headers, backoff)


def remove(conn: Connection, name: str) -> Webhook:
    """Forget a webhook and return what it was. Raises WebhookNotFound."""
    was = find(conn, name)
    conn.execute("DELETE FROM queuety.webhooks AS w WHERE w.name = %s", [was.name])
    return was


def rotate(conn: Connection, name: str, secret: str, overlap_s: float) -> Webhook:
    """Put a new secret in front; the one that was there signs as well for so long. Raises WebhookNotFound."""
    key = check_name("webhook", name)
    found = conn.execute(
        """
        UPDATE queuety.webhooks AS w
        SET
            secret = %(secret)s,
            old_secret = CASE WHEN %(overlap)s::float8 > 0 THEN w.secret END,
            old_secret_until = CASE
                WHEN %(overlap)s::float8 > 0 THEN statement_timestamp() + make_interval(secs => %(overlap)s::float8)
            END
        WHERE w.name = %(name)s
        """,
        {"name": key, "secret": secret, "overlap": overlap_s},
    )
    if not found.rowcount:
        raise unknown(key)
    return find(conn, key)


def pause(conn: Connection, name: str, reason: str) -> Webhook:
    """Write no more deliveries of a webhook; it may be paused already. Raises WebhookNotFound."""
    key = check_name("webhook", name)
    found = conn.execute(
        """
        UPDATE queuety.webhooks AS w
        SET paused_at = coalesce(w.paused_at, statement_timestamp()), pause_reason = nullif(%(reason)s, '')
        WHERE w.name = %(name)s
        """,
        {"name": key, "reason": reason},
    )
    if not found.rowcount:
        raise unknown(key)
    return find(conn, key)


def resume(conn: Connection, name: str) -> bool:
    """Let a paused webhook go on, and its deliveries that waited for that; False if it was not paused.

    Raises WebhookNotFound.
    """
    key = find(conn, name).name
    with conn.transaction():
        found = conn.execute(
            """
            UPDATE queuety.webhooks AS w
            SET paused_at = NULL, pause_reason = NULL
            WHERE w.name = %(name)s AND w.paused_at IS NOT NULL
            """,
            {"name": key},
        )
        if found.rowcount:
            # In the order of their ids: two who do so at once must not wait for each other.
            conn.execute(
                """
                WITH waits AS (
                    SELECT j.id
                    FROM queuety.jobs AS j
                    WHERE j.handler = %(handler)s AND j.state = 'pending' AND %(tag)s = ANY (j.tags)
                        AND j.available_at > statement_timestamp() AND j.attempts = 0
                    ORDER BY j.id
                    FOR UPDATE SKIP LOCKED
                )
                UPDATE queuety.jobs AS j
                SET available_at = statement_timestamp()
                FROM waits
                WHERE j.id = waits.id
                """,
                {"handler": HANDLER, "tag": f"webhook:{key}"},
            )
    return bool(found.rowcount)


def unknown(name: str) -> WebhookNotFound:
    return WebhookNotFound(f"there is no webhook {quoted(name)}", "see `queuety webhook list`")


def _webhook(row: Sequence[Any]) -> Webhook:
    name, url, events, handlers, queues, tags, *rest = row
    deliver_on, concurrency, attempts, headers, *times = rest
    return Webhook(
        name, url, tuple(events), tuple(handlers), tuple(queues), tuple(tags), deliver_on, concurrency, attempts,
        tuple(headers), *times,
    )  # fmt: skip
