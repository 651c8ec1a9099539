"""The SQL files: one statement each, named for its verb, with a header that says what it promises."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, LiteralString

if TYPE_CHECKING:
    from queuety.store.connect import Connection

_COMMENT = re.compile(r"^\s*--.*$\n?", re.MULTILINE)


@cache
def statement(name: str) -> LiteralString:
    """Return the statement in `sql/<name>.sql` without its comments.

    The comments are cut because psycopg would take a percent sign or a placeholder in them for its own.
    """
    text = (resources.files("queuety.store") / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    return _COMMENT.sub("", text).strip()


def array(items: Iterable[int] | Iterable[float] | Iterable[str]) -> str:
    """A PostgreSQL array literal of numbers, or of words without special signs.

    As text, so that the statement's parameter types are the same whatever the values: psycopg would pick
    smallint[], integer[] or bigint[] by the largest one and prepare the statement anew for each.
    """
    return "{" + ",".join(map(str, items)) + "}"


def texts(items: Sequence[str | None]) -> str:
    """A PostgreSQL array literal of any texts; None becomes NULL."""
    if not any(items):
        return "{" + ",".join(["NULL" if item is None else '""' for item in items]) + "}"
    return "{" + ",".join(map(_quoted, items)) + "}"


def _quoted(text: str | None) -> str:
    if text is None:
        return "NULL"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def perform(conn: Connection, name: str, **values: Any) -> Any:
    """Run a statement of ours on a connection of ours; returns the cursor."""
    return conn.execute(statement(name), values, prepare=conn.prepare_threshold is not None)
