"""The SQL files: one statement each, named for its verb, with a header that says what it promises."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import LiteralString

_COMMENT = re.compile(r"^\s*--.*$\n?", re.MULTILINE)


@cache
def statement(name: str) -> LiteralString:
    """Return the statement in `sql/<name>.sql` without its comments.

    The comments are cut because psycopg would take a percent sign or a placeholder in them for its own.
    """
    text = (resources.files("queuety.store") / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    return _COMMENT.sub("", text).strip()


def array(numbers: list[int] | list[float]) -> str:
    """A PostgreSQL array literal of numbers.

    As text, so that the statement's parameter types are the same whatever the values: psycopg would pick
    smallint[], integer[] or bigint[] by the largest one and prepare the statement anew for each.
    """
    return "{" + ",".join(map(str, numbers)) + "}"
