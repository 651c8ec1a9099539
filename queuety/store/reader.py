"""Rows for people to look at: any time and any JSON that the database can hold can be read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from psycopg.adapt import Buffer, Loader
from psycopg.pq import Format
from psycopg.types.json import set_json_loads

from queuety.store.connect import Connection

EARLIEST = datetime.min.replace(tzinfo=UTC)
LATEST = datetime.max.replace(tzinfo=UTC)
LONGEST_TEXT = 1000

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LOW, _HIGH = (EARLIEST - _EPOCH) // _MICROSECOND, (LATEST - _EPOCH) // _MICROSECOND


def rows(conn: Connection, text: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
    """Run a statement of our own that only looks, and return its rows.

    Times come in UTC, whatever the session's time zone and date style; those that Python's datetime cannot hold,
    infinity too, come as the nearest it can: EARLIEST or LATEST.
    JSON that Python cannot read comes as {"unreadable": its first LONGEST_TEXT characters}.
    Planned anew each time, so that the plan fits the filters.
    """
    with conn.cursor(binary=True) as cursor:
        cursor.adapters.register_loader("timestamptz", _Instant)
        set_json_loads(_loads, cursor)
        return cursor.execute(text, values, prepare=False).fetchall()


class _Instant(Loader):
    """Microseconds since 2000 as they stand in the table; the text form would depend on the session."""

    format = Format.BINARY

    def load(self, data: Buffer) -> datetime:
        micros = int.from_bytes(data, "big", signed=True)
        return _EPOCH + timedelta(microseconds=min(max(micros, _LOW), _HIGH))


def _loads(data: str | bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):  # thousands of digits or levels, written by another language
        text = data if isinstance(data, str) else bytes(data).decode(errors="replace")
        return {"unreadable": text[:LONGEST_TEXT]}
