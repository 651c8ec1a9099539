"""Log lines on standard error: for people or for machines, and never a reason to fail."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import TextIO

from queuety.process import running
from queuety.redaction import redact_text

# Chatty at info, and of no use to an operator of a queue.
_QUIET = ("alembic", "sqlalchemy", "asyncio")


def configure(level: str, form: str) -> None:
    """Send all logging to standard error. level: as the setting log_level.  form: console or json."""
    logging.raiseExceptions = False  # a reader that has gone must not cost more than its lines
    handler = _Standard()
    handler.setFormatter(_Machine() if form == "json" else _Console())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else logging.WARNING)


class _Standard(logging.StreamHandler[TextIO]):
    """Writes to whatever sys.stderr is now: each worker replaces its own after the fork."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class _Console(logging.Formatter):
    """`2030-01-31 09:00:00.123 INFO    worker[4711] what happened`, one line but for tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        what = "\\n".join(record.getMessage().splitlines())
        line = (
            f"{clock}.{int(record.msecs):03d} {record.levelname:<7} "
            f"{record.name.removeprefix('queuety.')}[{record.process}] {what}"
        )
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return redact_text(line)


class _Machine(logging.Formatter):
    """One JSON object a line; times in UTC. Lines about a job, and those of its handler, carry its fields."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        fields = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "process": record.name.removeprefix("queuety."),
            "pid": record.process,
            **running.fields(),
            **getattr(record, "queuety", {}),
            "message": redact_text(record.getMessage()),
        }
        if record.exc_info:
            fields["exception"] = redact_text(self.formatException(record.exc_info))
        return json.dumps(fields, default=str)
